/* The arithmetic of the tensor hash, version 2: keys, accumulators of a block, sums and closing.
 *
 * Shared by the processor and the GPU, so that both give the same bits;
 * docs/correctness/tensor-hash.md has the whole definition. Everything here is a pure function of
 * its arguments. Words and keys are those of a little-endian machine.
 *
 * A block is 4096 bytes, 256 quads of four 32-bit words. Every word is added to the key of its
 * place, and products of such sums add up in the block's four accumulators. These are multiplied by
 * factors of their block and add up in the sums of the input. Nothing but additions joins quads and
 * blocks, so that an input may be split at any quad over lanes, threads, ranks or files, and its
 * parts may be summed in any order.
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
    MU_HASH_LANES = 4,
    MU_HASH_BLOCK_FACTORS = 4 * MU_HASH_LANES, /* one for each accumulator and lane */
};

struct mu_digest {
    uint64_t lo, hi;
};

/* The accumulators of one block, modulo 2^64. */
struct mu_hash_block {
    uint64_t a, b, c, d;
};

/* Of an input or a part of it, modulo 2^64: in each lane the accumulators of all blocks times their
 * factors, and the same times the block's number. */
struct mu_hash_sums {
    uint64_t s[MU_HASH_LANES], t[MU_HASH_LANES];
};

/* The same table for every input. */
struct mu_hash_keys {
    uint32_t word[MU_HASH_BLOCK_WORDS]; /* of the words of a block */
    uint64_t factor[MU_HASH_FACTORS];   /* of the mix; odd */
};

/* splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): its step,
 * and its output for a state. */
#define MU_HASH_STEP 0x9E3779B97F4A7C15u

MU_SHARED uint64_t mu_hash_output(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* The first bits of pi behind the point; and the state after the outputs that make the keys. */
#define MU_HASH_START 0x243F6A8885A308D3u
#define MU_HASH_SEED (MU_HASH_START + MU_HASH_BLOCK_WORDS / 2 * MU_HASH_STEP)

MU_SHARED uint64_t mu_hash_next_random(uint64_t *state) {
    return mu_hash_output(*state += MU_HASH_STEP);
}

MU_SHARED void mu_hash_fill_keys(struct mu_hash_keys *keys) {
    uint64_t state = MU_HASH_START;
    for (int i = 0; i < MU_HASH_BLOCK_WORDS; i += 2) {
        uint64_t pair = mu_hash_next_random(&state);
        keys->word[i] = (uint32_t)pair;
        keys->word[i + 1] = (uint32_t)(pair >> 32);
    }
    for (int i = 0; i < MU_HASH_FACTORS; i++) {
        keys->factor[i] = mu_hash_next_random(&state) | 1u;
    }
}

/* The factor of a block: `place` is 4 * accumulator + lane. Odd, so that no bit is lost. */
MU_SHARED uint64_t mu_hash_block_factor(uint64_t block, int place) {
    uint64_t n = block * MU_HASH_BLOCK_FACTORS + (uint64_t)place;
    uint64_t random = mu_hash_output(MU_HASH_SEED + (n + 1) * MU_HASH_STEP);
    return mu_hash_output(random ^ 0xD1342543DE82EF95u) | 1u;
}

/* Adds one quad; `key` has the four keys of its place in the block, word[4 * quad] on. */
MU_SHARED void mu_hash_add_quad(struct mu_hash_block *block, const uint32_t *words,
                                const uint32_t *key) {
    uint32_t x0 = words[0] + key[0];
    uint32_t x1 = words[1] + key[1];
    uint32_t x2 = words[2] + key[2];
    uint32_t x3 = words[3] + key[3];
    block->a += (uint64_t)x0 * x1;
    block->b += (uint64_t)x2 * x3;
    block->c += (uint64_t)x0 * x3;
    block->d += (uint64_t)x2 * x1;
}

/* Adds the accumulators of the block number `index`, of the whole block or of some of its quads;
 * `factor` has the factors of that block. */
MU_SHARED void mu_hash_add_block(struct mu_hash_sums *sums, const struct mu_hash_block *block,
                                 const uint64_t *factor, uint64_t index) {
    for (int lane = 0; lane < MU_HASH_LANES; lane++) {
        uint64_t term = block->a * factor[lane] + block->b * factor[lane + 4] +
                        block->c * factor[lane + 8] + block->d * factor[lane + 12];
        sums->s[lane] += term;
        sums->t[lane] += term * index;
    }
}

MU_SHARED void mu_hash_add_sums(struct mu_hash_sums *sums, const struct mu_hash_sums *more) {
    for (int lane = 0; lane < MU_HASH_LANES; lane++) {
        sums->s[lane] += more->s[lane];
        sums->t[lane] += more->t[lane];
    }
}

MU_SHARED uint64_t mu_hash_rotate(uint64_t value, int bits) {
    return value << bits | value >> (64 - bits);
}

/* The mix of four numbers and an index. It is a bijection of (a, c), of (a, d), of (b, c) and of
 * (b, d) while the other two are fixed. So one changed number always changes the mix. */
MU_SHARED struct mu_digest mu_hash_mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                                       uint64_t index, const uint64_t *factor) {
    uint64_t x = a + index * factor[0];
    uint64_t y = c + index * factor[1];
    struct mu_digest mixed;
    x = (x ^ x >> 32) * factor[2];
    y = (y ^ y >> 32) * factor[3];
    x ^= x >> 29;
    y ^= y >> 29;
    x += b;
    y += d;
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

/* The content digest, from the sums of the whole input and its length. */
MU_SHARED struct mu_digest mu_hash_close(const struct mu_hash_sums *sums, uint64_t bytes,
                                         const uint64_t *factor) {
    return mu_hash_mix(sums->s[0], sums->s[1], sums->s[2], sums->s[3], bytes + 1, factor);
}

/* The combined digest, made from those of the content and of the header. The header contains dtype
 * and shape. */
MU_SHARED struct mu_digest mu_hash_join(const struct mu_digest *content,
                                        const struct mu_digest *header, const uint64_t *factor) {
    return mu_hash_mix(content->lo, header->lo, content->hi, header->hi, ~(uint64_t)1, factor);
}

#endif
