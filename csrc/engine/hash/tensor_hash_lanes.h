/* The loops over vector lanes, written once for every width.
 *
 * Before the include a file defines LANES_QUADS, the types `lanes` and `factors` and the functions
 * below. `lanes` holds LANES_QUADS quads: as four words each, or as two sums of 64 bits each.
 * `factors` holds two words of each quad.
 *
 * - lanes_zero(): all zeros
 * - lanes_load(address): loads from any alignment
 * - lanes_fold(a, out): stores two numbers, the totals of the first and of the second sums of all
 *   quads
 * - lanes_add_words(a, b): sums of 32-bit words
 * - lanes_even(a), lanes_odd(a): the words 0 and 2 of each quad, and the words 1 and 3
 * - lanes_exchange(x): exchanges the two words of each quad
 * - lanes_add_products(sum, x, y): adds to the two sums of each quad the 64-bit products of its two
 *   words in x and in y
 */
#ifndef MU_TENSOR_HASH_LANES_H
#define MU_TENSOR_HASH_LANES_H

#include "hash/tensor_hash_kernel.h"

#include <string.h>

/* For each quad: the lanes (A, B) and (C, D) of its sums. */
struct lanes_sums {
    lanes ab, cd;
};

static inline void lanes_add(struct lanes_sums *sums, const uint8_t *bytes, const uint32_t *key) {
    lanes words = lanes_add_words(lanes_load(bytes), lanes_load(key));
    factors even = lanes_even(words), odd = lanes_odd(words);
    sums->ab = lanes_add_products(sums->ab, even, odd);
    sums->cd = lanes_add_products(sums->cd, even, lanes_exchange(odd));
}

static inline struct mu_hash_sums folded_sums(const struct lanes_sums *sums) {
    uint64_t ab[2], cd[2];
    lanes_fold(sums->ab, ab);
    lanes_fold(sums->cd, cd);
    return (struct mu_hash_sums){.a = ab[0], .b = ab[1], .c = cd[0], .d = cd[1]};
}

static void add_quads(struct mu_hash_sums *sums, const uint8_t *bytes, size_t quads,
                      const uint32_t *key) {
    struct lanes_sums wide = {lanes_zero(), lanes_zero()};
    size_t i = 0;
    for (; i + LANES_QUADS <= quads; i += LANES_QUADS) {
        lanes_add(&wide, bytes + i * MU_HASH_QUAD_BYTES, key + i * MU_HASH_QUAD_WORDS);
    }
    struct mu_hash_sums folded = folded_sums(&wide);
    for (; i < quads; i++) {
        uint32_t words[MU_HASH_QUAD_WORDS];
        memcpy(words, bytes + i * MU_HASH_QUAD_BYTES, sizeof(words));
        mu_hash_add_quad(&folded, words, key + i * MU_HASH_QUAD_WORDS);
    }
    mu_hash_add_sums(sums, &folded);
}

static inline struct mu_hash_sums lanes_block(const uint8_t *bytes, const uint32_t *key) {
    struct lanes_sums wide = {lanes_zero(), lanes_zero()};
#pragma GCC unroll 4
    for (int i = 0; i < MU_HASH_BLOCK_QUADS; i += LANES_QUADS) {
        lanes_add(&wide, bytes + i * MU_HASH_QUAD_BYTES, key + i * MU_HASH_QUAD_WORDS);
    }
    return folded_sums(&wide);
}

static void add_blocks(struct mu_digest *sum, const uint8_t *bytes, size_t blocks, uint64_t index,
                       const struct mu_hash_keys *keys) {
    for (size_t i = 0; i < blocks; i++) {
        struct mu_hash_sums sums = lanes_block(bytes + i * MU_HASH_BLOCK_BYTES, keys->word);
        struct mu_digest mixed = mu_hash_mix(&sums, index + i, keys->factor);
        mu_hash_add_digest(sum, &mixed);
    }
}

#endif
