/* The arithmetic of the tensor hash, version 1: keys, sums of a block, mix and closing.
 *
 * Shared by the processor and the GPU, so that both give the same bits;
 * docs/correctness/tensor-hash.md has the whole definition. Everything here is a pure function of
 * its arguments. Words and keys are those of a little-endian machine.
 *
 * A block is 4096 bytes, 256 quads of four 32-bit words. Every word is added to the key of its
 * place, and products of such sums add up in four accumulators. Because accumulators only add, a
 * block may be split at any quad over lanes, threads or machines, and its parts may be summed in
 * any order. The accumulators of a block and its number are then mixed, and the mixes of all blocks
 * add up in turn.
 */
#ifndef MU_TENSOR_HASH_MATH_H
#define MU_TENSOR_HASH_MATH_H

#include "tensor/shared_math.h"

enum {
    MU_HASH_QUAD_BYTES = 16,
    MU_HASH_QUAD_WORDS = 4,
    MU_HASH_BLOCK_BYTES = 4096,
    MU_HASH_BLOCK_QUADS = MU_HASH_BLOCK_BYTES / MU_HASH_QUAD_BYTES,
    MU_HASH_BLOCK_WORDS = MU_HASH_BLOCK_BYTES / 4,
    MU_HASH_FACTORS = 8,
};

/* A digest, and also a sum of mixes: each half is a number modulo 2^64. */
struct mu_digest {
    uint64_t lo, hi;
};

/* Of one block, modulo 2^64. Those of its parts are added. */
struct mu_hash_sums {
    uint64_t a, b, c, d;
};

/* The same table for every input: 4160 bytes. */
struct mu_hash_keys {
    uint32_t word[MU_HASH_BLOCK_WORDS]; /* of the words of a block */
    uint64_t factor[MU_HASH_FACTORS];   /* of the mix; odd */
};

/* The next output of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
 * generators, 2014). */
MU_SHARED uint64_t mu_hash_next_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

MU_SHARED void mu_hash_fill_keys(struct mu_hash_keys *keys) {
    uint64_t state = 0x243F6A8885A308D3u; /* the first bits of pi behind the point */
    for (int i = 0; i < MU_HASH_BLOCK_WORDS; i += 2) {
        uint64_t pair = mu_hash_next_random(&state);
        keys->word[i] = (uint32_t)pair;
        keys->word[i + 1] = (uint32_t)(pair >> 32);
    }
    for (int i = 0; i < MU_HASH_FACTORS; i++) {
        keys->factor[i] = mu_hash_next_random(&state) | 1u;
    }
}

/* Adds one quad; `key` has the four keys of its place in the block, word[4 * quad] on. */
MU_SHARED void mu_hash_add_quad(struct mu_hash_sums *sums, const uint32_t *words,
                                const uint32_t *key) {
    uint32_t x0 = words[0] + key[0];
    uint32_t x1 = words[1] + key[1];
    uint32_t x2 = words[2] + key[2];
    uint32_t x3 = words[3] + key[3];
    sums->a += (uint64_t)x0 * x1;
    sums->b += (uint64_t)x2 * x3;
    sums->c += (uint64_t)x0 * x3;
    sums->d += (uint64_t)x2 * x1;
}

MU_SHARED void mu_hash_add_sums(struct mu_hash_sums *sums, const struct mu_hash_sums *more) {
    sums->a += more->a;
    sums->b += more->b;
    sums->c += more->c;
    sums->d += more->d;
}

MU_SHARED uint64_t mu_hash_rotate(uint64_t value, int bits) {
    return value << bits | value >> (64 - bits);
}

/* The mix of the block number `index`. It is a bijection of (a, c), of (a, d), of (b, c) and of (b,
 * d) while the other two are fixed. So one changed accumulator always changes the mix. */
MU_SHARED struct mu_digest mu_hash_mix(const struct mu_hash_sums *sums, uint64_t index,
                                       const uint64_t *factor) {
    uint64_t x = sums->a + index * factor[0];
    uint64_t y = sums->c + index * factor[1];
    struct mu_digest mixed;
    x = (x ^ x >> 32) * factor[2];
    y = (y ^ y >> 32) * factor[3];
    x ^= x >> 29;
    y ^= y >> 29;
    x += sums->b;
    y += sums->d;
    x += mu_hash_rotate(y, 23);
    y ^= mu_hash_rotate(x, 31);
    x = (x ^ x >> 32) * factor[4];
    y = (y ^ y >> 32) * factor[5];
    x += y ^ y >> 29;
    y += x ^ x >> 29;
    x = (x ^ x >> 32) * factor[6];
    y = (y ^ y >> 32) * factor[7];
    mixed.lo = x ^ x >> 32;
    mixed.hi = y ^ y >> 32;
    return mixed;
}

MU_SHARED void mu_hash_add_digest(struct mu_digest *sum, const struct mu_digest *more) {
    sum->lo += more->lo;
    sum->hi += more->hi;
}

/* The content digest, from the sum of the mixes of all blocks and the length of the input. */
MU_SHARED struct mu_digest mu_hash_close(const struct mu_digest *sum, uint64_t bytes,
                                         const uint64_t *factor) {
    struct mu_hash_sums last;
    last.a = sum->lo;
    last.b = bytes;
    last.c = sum->hi;
    last.d = 0;
    return mu_hash_mix(&last, ~(uint64_t)0, factor);
}

/* The combined digest, made from those of the content and of the header. The header contains dtype
 * and shape. */
MU_SHARED struct mu_digest mu_hash_join(const struct mu_digest *content,
                                        const struct mu_digest *header, const uint64_t *factor) {
    struct mu_hash_sums both;
    both.a = content->lo;
    both.b = header->lo;
    both.c = content->hi;
    both.d = header->hi;
    return mu_hash_mix(&both, ~(uint64_t)1, factor);
}

#endif
