#include "base/hash_table.h"

#include <stdlib.h>

#include "base/invariant.h"

enum { SLOTS_AT_LEAST = 16 };

static size_t slots_for(size_t keys) {
    size_t slots = SLOTS_AT_LEAST;
    while (slots / 2 < keys) {
        slots *= 2;
    }
    return slots;
}

int mu_hash_table_init(struct mu_hash_table *table, size_t count, struct mu_error *err) {
    size_t slots = slots_for(count);
    *table = (struct mu_hash_table){.mask = slots - 1};
    table->slots = calloc(slots, sizeof(*table->slots));
    return table->slots == NULL ? mu_error_no_memory(err, "hash table") : MU_OK;
}

void mu_hash_table_reset(struct mu_hash_table *table) {
    free(table->slots);
    *table = (struct mu_hash_table){0};
}

static void put(struct mu_hash_table *table, struct mu_hash_slot key) {
    size_t at = key.hash & table->mask;
    while (table->slots[at].number != 0) {
        at = (at + 1) & table->mask;
    }
    table->slots[at] = key;
    table->count++;
}

int mu_hash_table_reserve(struct mu_hash_table *table, struct mu_error *err) {
    if (table->count < (table->mask + 1) / 2) {
        return MU_OK;
    }
    struct mu_hash_table larger;
    int code = mu_hash_table_init(&larger, table->count + 1, err);
    if (code != MU_OK) {
        return code;
    }
    for (size_t i = 0; i <= table->mask; i++) {
        if (table->slots[i].number != 0) {
            put(&larger, table->slots[i]);
        }
    }
    free(table->slots);
    *table = larger;
    return MU_OK;
}

void mu_hash_table_put(struct mu_hash_table *table, uint64_t hash, uint32_t number) {
    MU_INVARIANT(number != 0 && table->count < (table->mask + 1) / 2);
    put(table, (struct mu_hash_slot){mu_hash_fold(hash), number});
}
