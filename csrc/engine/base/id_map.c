#include "base/id_map.h"

#include <assert.h>
#include <stdlib.h>

enum { SLOTS_AT_START = 64 };

int mu_id_map_init(struct mu_id_map *map, struct mu_error *err) {
    map->slots = calloc(SLOTS_AT_START, sizeof(*map->slots));
    map->mask = SLOTS_AT_START - 1;
    map->count = 0;
    return map->slots == NULL ? mu_error_no_memory(err, "hash map") : MU_OK;
}

void mu_id_map_reset(struct mu_id_map *map) {
    free(map->slots);
    map->slots = NULL;
    map->mask = map->count = 0;
}

static struct mu_id_slot *slot_of(const struct mu_id_map *map, uint64_t key) {
    size_t at = mu_hash_u64(key) & map->mask;
    while (map->slots[at].key != 0 && map->slots[at].key != key) {
        at = (at + 1) & map->mask;
    }
    return &map->slots[at];
}

MU_MUST_CHECK static int grow(struct mu_id_map *map, struct mu_error *err) {
    struct mu_id_map larger = {.mask = map->mask * 2 + 1, .count = map->count};
    larger.slots = calloc(larger.mask + 1, sizeof(*larger.slots));
    if (larger.slots == NULL) {
        return mu_error_no_memory(err, "hash map");
    }
    for (size_t i = 0; i <= map->mask; i++) {
        if (map->slots[i].key != 0) {
            *slot_of(&larger, map->slots[i].key) = map->slots[i];
        }
    }
    free(map->slots);
    *map = larger;
    return MU_OK;
}

int mu_id_map_put(struct mu_id_map *map, uint64_t key, void *value, struct mu_error *err) {
    if (map->count * 2 > map->mask) {
        int code = grow(map, err);
        if (code != MU_OK) {
            return code;
        }
    }
    struct mu_id_slot *slot = slot_of(map, key);
    map->count += slot->key == 0;
    slot->key = key;
    slot->value = value;
    return MU_OK;
}

void mu_id_map_replace(struct mu_id_map *map, uint64_t key, void *value) {
    struct mu_id_slot *slot = slot_of(map, key);
    assert(slot->key == key);
    slot->value = value;
}

/* Moves later entries of the same run into the hole, so that a probe never stops too early. */
static void close_hole(struct mu_id_map *map, size_t hole) {
    for (size_t at = (hole + 1) & map->mask; map->slots[at].key != 0; at = (at + 1) & map->mask) {
        size_t home = mu_hash_u64(map->slots[at].key) & map->mask;
        if (((at - home) & map->mask) >= ((at - hole) & map->mask)) {
            map->slots[hole] = map->slots[at];
            hole = at;
        }
    }
    map->slots[hole].key = 0;
}

void *mu_id_map_remove(struct mu_id_map *map, uint64_t key) {
    struct mu_id_slot *slot = slot_of(map, key);
    if (slot->key == 0) {
        return NULL;
    }
    void *value = slot->value;
    map->count--;
    close_hole(map, (size_t)(slot - map->slots));
    return value;
}
