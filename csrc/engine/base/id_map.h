/* A hash map from 64-bit keys to pointers, and the hash of a string of bytes.
 *
 * Open addressing with linear probing; a removed key leaves no tombstone. The key 0 is not allowed.
 * The map owns its table, but not the objects that the pointers refer to. One thread at a time.
 */
#ifndef MU_ID_MAP_H
#define MU_ID_MAP_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

static inline uint64_t mu_hash_u64(uint64_t value) {
    value *= 0x9E3779B97F4A7C15u; /* 2^64 / golden ratio */
    return value ^ value >> 29;
}

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

static inline uint64_t mu_hash_bytes(const char *text, size_t length) {
    uint64_t hash = length + 1;
    for (; length >= 8; text += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, text, 8);
        hash = mu_hash_u64(hash ^ word);
    }
    uint64_t rest = 0;
    if (length >= 4) { /* two overlapping loads cover 4 to 7 bytes */
        uint32_t low, high;
        memcpy(&low, text, 4);
        memcpy(&high, text + length - 4, 4);
        rest = low | (uint64_t)high << 32;
    } else if (length > 0) {
        rest = (unsigned char)text[0] | (uint64_t)(unsigned char)text[length / 2] << 8 |
               (uint64_t)(unsigned char)text[length - 1] << 16;
    }
    return mu_hash_u64(mu_hash_u64(hash ^ rest));
}

#endif
