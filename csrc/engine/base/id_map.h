/* A hash map from 64-bit keys to pointers.
 *
 * Open addressing with linear probing; a removed key leaves no tombstone. The key 0 is not allowed.
 * The map owns its table, but not the objects that the pointers refer to. One thread at a time.
 *
 * It shares no code with hash_table.h: a slot holds its whole key here, so that nothing is compared
 * elsewhere, and taking keys out moves other slots.
 */
#ifndef MU_ID_MAP_H
#define MU_ID_MAP_H

#include "base/error.h"
#include "base/hash_table.h"

#include <stddef.h>
#include <stdint.h>

struct mu_id_slot {
    uint64_t key;
    void *value;
};

struct mu_id_map {
    struct mu_id_slot *slots; /* owned */
    size_t mask, count;
};

MU_MUST_CHECK int mu_id_map_init(struct mu_id_map *map, struct mu_error *err);
void mu_id_map_reset(struct mu_id_map *map);

/* Replaces the value when the key is there. */
MU_MUST_CHECK int mu_id_map_put(struct mu_id_map *map, uint64_t key, void *value,
                                struct mu_error *err);

/* Replaces the value of a key that is in the map; needs no memory. */
void mu_id_map_replace(struct mu_id_map *map, uint64_t key, void *value);

/* The value that was there, or NULL. */
void *mu_id_map_remove(struct mu_id_map *map, uint64_t key);

static inline void *mu_id_map_find(const struct mu_id_map *map, uint64_t key) {
    for (size_t at = mu_hash_u64(key) & map->mask;; at = (at + 1) & map->mask) {
        if (map->slots[at].key == key) {
            return map->slots[at].value;
        }
        if (map->slots[at].key == 0) {
            return NULL;
        }
    }
}

#endif
