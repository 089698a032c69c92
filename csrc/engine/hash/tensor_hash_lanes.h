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

/* A number in each lane of the sums. */
typedef uint64_t sum_lanes __attribute__((vector_size(8 * MU_HASH_LANES)));

/* By address: without instructions for such vectors, compilers warn of passing them. */
static inline void make_random(sum_lanes *lanes) {
    sum_lanes z = *lanes;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    *lanes = z ^ z >> 31;
}

/* Adds an accumulator times its factors, which mu_hash_block_factor has from `place` on. */
static inline void add_terms(sum_lanes *term, uint64_t accumulator, uint64_t index, int place) {
    static const sum_lanes steps = {MU_HASH_STEP, 2 * MU_HASH_STEP, 3 * MU_HASH_STEP,
                                    4 * MU_HASH_STEP};
    uint64_t n = index * MU_HASH_BLOCK_FACTORS + (uint64_t)place;
    sum_lanes factor = steps + (MU_HASH_SEED + n * MU_HASH_STEP);
    make_random(&factor);
    factor ^= 0xD1342543DE82EF95u;
    make_random(&factor);
    *term += (factor | 1u) * accumulator;
}

static void add_block(struct mu_hash_sums *sums, const struct mu_hash_block *block,
                      uint64_t index) {
    sum_lanes s, t, term = {0};
    add_terms(&term, block->a, index, 0);
    add_terms(&term, block->b, index, 4);
    add_terms(&term, block->c, index, 8);
    add_terms(&term, block->d, index, 12);
    memcpy(&s, sums->s, sizeof(s));
    memcpy(&t, sums->t, sizeof(t));
    s += term;
    t += term * index;
    memcpy(sums->s, &s, sizeof(s));
    memcpy(sums->t, &t, sizeof(t));
}

/* The accumulators of a whole block, and its factors: made in between, one by one, they keep units
 * busy that the products leave free. */
static inline struct mu_hash_block whole_block(const uint8_t *bytes, const uint32_t *key,
                                               uint64_t index, uint64_t *factor) {
    enum { STEP = MU_HASH_BLOCK_QUADS / MU_HASH_BLOCK_FACTORS };
    struct lanes_block wide = {lanes_zero(), lanes_zero()};
    for (int place = 0; place < MU_HASH_BLOCK_FACTORS; place++) {
        factor[place] = mu_hash_block_factor(index, place);
#pragma GCC unroll 4
        for (int i = 0; i < STEP; i += LANES_QUADS) {
            lanes_add(&wide, bytes, key);
            bytes += LANES_QUADS * MU_HASH_QUAD_BYTES;
            key += LANES_QUADS * MU_HASH_QUAD_WORDS;
        }
    }
    return folded(&wide);
}

static void add_blocks(struct mu_hash_sums *sums, const uint8_t *bytes, size_t blocks,
                       uint64_t index, const struct mu_hash_keys *keys) {
    struct mu_hash_sums local = {0};
    for (size_t i = 0; i < blocks; i++) {
        uint64_t factor[MU_HASH_BLOCK_FACTORS];
        /* Processors fetch ahead within a page only, so the next one is opened here. */
        __builtin_prefetch(bytes + (i + 1) * MU_HASH_BLOCK_BYTES);
        struct mu_hash_block block =
            whole_block(bytes + i * MU_HASH_BLOCK_BYTES, keys->word, index + i, factor);
        mu_hash_add_block(&local, &block, factor, index + i);
    }
    mu_hash_add_sums(sums, &local);
}

#endif
