#include "replace/aho_corasick_names.h"
#include "base/id_map.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int mu_ac_names_init(struct mu_ac_names *names, size_t count, size_t bytes, struct mu_error *err) {
    size_t slots = 2;
    while (slots / 2 < count) {
        slots *= 2;
    }
    *names = (struct mu_ac_names){.mask = slots - 1, .used = 1};
    names->slots = calloc(slots, sizeof(*names->slots));
    names->bytes = calloc(1 + bytes + count, 1);
    if (names->slots == NULL || names->bytes == NULL) {
        return mu_error_no_memory(err, "automaton");
    }
    return MU_OK;
}

void mu_ac_names_reset(struct mu_ac_names *names) {
    free(names->slots);
    free(names->bytes);
    *names = (struct mu_ac_names){0};
}

static uint32_t tag_of(uint64_t hash) {
    return (uint32_t)(hash >> 32);
}

/* The slot of a name, or the free one that it is to get. */
static struct mu_ac_name *slot_of(const struct mu_ac_names *names, uint64_t hash, const char *bytes,
                                  size_t length) {
    for (size_t at = hash & names->mask;; at = (at + 1) & names->mask) {
        struct mu_ac_name *slot = &names->slots[at];
        const char *name = names->bytes + slot->begin;
        if (slot->begin == 0 || (slot->tag == tag_of(hash) && strncmp(name, bytes, length) == 0 &&
                                 name[length] == '\0')) {
            return slot;
        }
    }
}

struct mu_ac_name *mu_ac_names_add(struct mu_ac_names *names, const char *bytes, size_t length) {
    uint64_t hash = mu_hash_bytes(bytes, length);
    struct mu_ac_name *slot = slot_of(names, hash, bytes, length);
    if (slot->begin == 0) {
        slot->tag = tag_of(hash);
        slot->begin = (uint32_t)names->used;
        memcpy(names->bytes + names->used, bytes, length);
        names->used += length + 1;
    }
    return slot;
}

const struct mu_ac_name *mu_ac_names_find(const struct mu_ac_names *names, const char *bytes,
                                          size_t length) {
    struct mu_ac_name *slot = slot_of(names, mu_hash_bytes(bytes, length), bytes, length);
    return slot->begin == 0 ? NULL : slot;
}
