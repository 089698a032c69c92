/* A hash table that finds the number of a key, and the hashes of 64-bit numbers and of bytes.
 *
 * The caller keeps the keys, numbered from 1 on; the table holds the hash and the number of each.
 * Open addressing with linear probing; at most half of the slots are taken, and no key is taken
 * out. Any number of threads may search a table that nobody changes.
 *
 * Two tables are of another kind: the one of id_map.h, whose keys are taken out again, and the one
 * of cuda/nvtx.c, which threads search while another one adds to it.
 */
#ifndef MU_HASH_TABLE_H
#define MU_HASH_TABLE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct mu_hash_slot {
    uint32_t hash;
    uint32_t number; /* of the key; 0: the slot is free */
};

struct mu_hash_table {
    struct mu_hash_slot
        *slots;  /* owned, or the caller's own when it never calls init and reserve */
    size_t mask; /* the number of slots, a power of two, less 1 */
    size_t count;
};

/* A table with room for `count` keys. */
MU_MUST_CHECK int mu_hash_table_init(struct mu_hash_table *table, size_t count,
                                     struct mu_error *err);

/* Also for a table of zeros. */
void mu_hash_table_reset(struct mu_hash_table *table);

/* Makes room for one more key. */
MU_MUST_CHECK int mu_hash_table_reserve(struct mu_hash_table *table, struct mu_error *err);

/* Adds a key that is not there. There must be room for it. */
void mu_hash_table_put(struct mu_hash_table *table, uint64_t hash, uint32_t number);

static inline uint32_t mu_hash_fold(uint64_t hash) {
    return (uint32_t)(hash ^ hash >> 32);
}

/* Whether the key with that number among `keys` is `key`. */
typedef bool mu_hash_same(const void *keys, uint32_t number, const void *key);

/* The number of `key`, or 0 when it is not there. Inline, so that `same` is not a call. */
__attribute__((always_inline)) static inline uint32_t
mu_hash_table_find(const struct mu_hash_table *table, uint64_t hash, mu_hash_same *same,
                   const void *keys, const void *key) {
    uint32_t folded = mu_hash_fold(hash);
    for (size_t at = folded & table->mask;; at = (at + 1) & table->mask) {
        const struct mu_hash_slot *slot = &table->slots[at];
        if (slot->number == 0 || (slot->hash == folded && same(keys, slot->number, key))) {
            return slot->number;
        }
    }
}

/* Bytes as a key. */
struct mu_hash_text {
    const char *bytes;
    size_t length;
};

static inline uint64_t mu_hash_u64(uint64_t value) {
    value *= 0x9E3779B97F4A7C15u; /* 2^64 / golden ratio */
    return value ^ value >> 29;
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
