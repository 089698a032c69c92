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

/* For each quad: the lanes (A, B) and (C, D) of its accumulators. */
struct lanes_block {
    lanes ab, cd;
};

static inline void lanes_add(struct lanes_block *block, const uint8_t *bytes, const uint32_t *key) {
    lanes words = lanes_add_words(lanes_load(bytes), lanes_load(key));
    factors even = lanes_even(words), odd = lanes_odd(words);
    block->ab = lanes_add_products(block->ab, even, odd);
    block->cd = lanes_add_products(block->cd, even, lanes_exchange(odd));
}

static inline struct mu_hash_block folded(const struct lanes_block *block) {
    uint64_t ab[2], cd[2];
    lanes_fold(block->ab, ab);
    lanes_fold(block->cd, cd);
    return (struct mu_hash_block){.a = ab[0], .b = ab[1], .c = cd[0], .d = cd[1]};
}

static void add_quads(struct mu_hash_block *block, const uint8_t *bytes, size_t quads,
                      const uint32_t *key) {
    struct lanes_block wide = {lanes_zero(), lanes_zero()};
    size_t i = 0;
    for (; i + LANES_QUADS <= quads; i += LANES_QUADS) {
        lanes_add(&wide, bytes + i * MU_HASH_QUAD_BYTES, key + i * MU_HASH_QUAD_WORDS);
    }
    struct mu_hash_block found = folded(&wide);
    for (; i < quads; i++) {
        uint32_t words[MU_HASH_QUAD_WORDS];
        memcpy(words, bytes + i * MU_HASH_QUAD_BYTES, sizeof(words));
        mu_hash_add_quad(&found, words, key + i * MU_HASH_QUAD_WORDS);
    }
    block->a += found.a;
    block->b += found.b;
    block->c += found.c;
    block->d += found.d;
}

static void add_block(struct mu_hash_sums *sums, const struct mu_hash_block *block,
                      uint64_t index) {
    mu_hash_add_block(sums, block, index);
}

static inline struct mu_hash_block whole_block(const uint8_t *bytes, const uint32_t *key) {
    struct lanes_block wide = {lanes_zero(), lanes_zero()};
#pragma GCC unroll 4
    for (int i = 0; i < MU_HASH_BLOCK_QUADS; i += LANES_QUADS) {
        lanes_add(&wide, bytes + i * MU_HASH_QUAD_BYTES, key + i * MU_HASH_QUAD_WORDS);
    }
    return folded(&wide);
}

static void add_blocks(struct mu_hash_sums *sums, const uint8_t *bytes, size_t blocks,
                       uint64_t index, const struct mu_hash_keys *keys) {
    for (size_t i = 0; i < blocks; i++) {
        struct mu_hash_block block = whole_block(bytes + i * MU_HASH_BLOCK_BYTES, keys->word);
        mu_hash_add_block(sums, &block, index + i);
    }
}

#endif
