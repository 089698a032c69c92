/* MD5 of many messages side by side, one in each 32-bit lane of a vector.
 *
 * Included by a file for each processor, which sets MU_MD5_VECTOR_BYTES (16, 32 or 64), defines
 * MU_NEON if it is for NEON, and gets mu_md5_run_blocks. A step waits for the one before it, so
 * each step is done for several groups of independent vectors in turn. Between the steps of a block
 * the words of the next one are put in order, since they wait for nothing. The code uses the vector
 * types of gcc and clang. Where the processor has no such vectors, it runs in narrower ones.
 */
#ifndef MU_MD5_KERNEL_H
#define MU_MD5_KERNEL_H

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(MU_NEON)
#include <arm_neon.h>
#endif

#include "hash/md5_lanes.h"
#include "hash/md5_steps.h"

#define MU_MD5_WIDTH (MU_MD5_VECTOR_BYTES / 4)
#define MU_MD5_INLINE static inline __attribute__((always_inline))

enum { MU_MD5_GROUPS = MU_MD5_WIDTH == 4 ? 4 : 2, MU_MD5_STEP_COUNT = 64, MU_MD5_WORDS = 16 };

typedef uint32_t mu_vector __attribute__((vector_size(MU_MD5_VECTOR_BYTES)));
typedef uint64_t mu_pairs __attribute__((vector_size(MU_MD5_VECTOR_BYTES)));
typedef uint32_t mu_half __attribute__((vector_size(MU_MD5_VECTOR_BYTES / 2)));

/* --- the words of a block, turned so that a vector holds one word of all messages ------------ */

/* GCC has __builtin_shufflevector from version 12 on, and clang has no __builtin_shuffle. */
#if defined(__clang__) || __GNUC__ >= 12
#define MU_SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#define MU_SHUFFLE_PAIRS(x, y, ...)                                                                \
    ((mu_vector)__builtin_shufflevector((mu_pairs)(x), (mu_pairs)(y), __VA_ARGS__))
#else
#define MU_SHUFFLE(x, y, ...) __builtin_shuffle(x, y, (mu_vector){__VA_ARGS__})
#define MU_SHUFFLE_PAIRS(x, y, ...)                                                                \
    ((mu_vector)__builtin_shuffle((mu_pairs)(x), (mu_pairs)(y), (mu_pairs){__VA_ARGS__}))
#endif

#if MU_MD5_VECTOR_BYTES == 16
#define MU_UNPACK_LOW(x, y) MU_SHUFFLE(x, y, 0, 4, 1, 5)
#define MU_UNPACK_HIGH(x, y) MU_SHUFFLE(x, y, 2, 6, 3, 7)
#define MU_UNPACK_LOW_PAIRS(x, y) MU_SHUFFLE_PAIRS(x, y, 0, 2)
#define MU_UNPACK_HIGH_PAIRS(x, y) MU_SHUFFLE_PAIRS(x, y, 1, 3)
#elif MU_MD5_VECTOR_BYTES == 32
#define MU_UNPACK_LOW(x, y) MU_SHUFFLE(x, y, 0, 8, 1, 9, 4, 12, 5, 13)
#define MU_UNPACK_HIGH(x, y) MU_SHUFFLE(x, y, 2, 10, 3, 11, 6, 14, 7, 15)
#define MU_UNPACK_LOW_PAIRS(x, y) MU_SHUFFLE_PAIRS(x, y, 0, 4, 2, 6)
#define MU_UNPACK_HIGH_PAIRS(x, y) MU_SHUFFLE_PAIRS(x, y, 1, 5, 3, 7)
#else
#define MU_UNPACK_LOW(x, y)                                                                        \
    MU_SHUFFLE(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define MU_UNPACK_HIGH(x, y)                                                                       \
    MU_SHUFFLE(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define MU_UNPACK_LOW_PAIRS(x, y) MU_SHUFFLE_PAIRS(x, y, 0, 8, 2, 10, 4, 12, 6, 14)
#define MU_UNPACK_HIGH_PAIRS(x, y) MU_SHUFFLE_PAIRS(x, y, 1, 9, 3, 11, 5, 13, 7, 15)
#define MU_EVEN_QUADS(x, y) MU_SHUFFLE_PAIRS(x, y, 0, 1, 4, 5, 8, 9, 12, 13)
#define MU_ODD_QUADS(x, y) MU_SHUFFLE_PAIRS(x, y, 2, 3, 6, 7, 10, 11, 14, 15)
#endif

/* Half a vector from one message, and half a vector from another; where a vector has four lanes, a
 * whole one from the first. The result is returned through a pointer: the calling convention for
 * wide vectors depends on the processor. */
MU_MD5_INLINE void mu_load_row(mu_vector *row, const uint8_t *low_from, const uint8_t *high_from) {
#if MU_MD5_VECTOR_BYTES == 16
    (void)high_from;
    memcpy(row, low_from, sizeof *row);
#else
    mu_half low, high;
    memcpy(&low, low_from, sizeof low);
    memcpy(&high, high_from, sizeof high);
#if defined(__AVX512F__) && MU_MD5_VECTOR_BYTES == 64
    __m512i wide = _mm512_castsi256_si512((__m256i)low);
    *row = (mu_vector)_mm512_inserti64x4(wide, (__m256i)high, 1);
#elif defined(__AVX2__) && MU_MD5_VECTOR_BYTES == 32
    __m256i wide = _mm256_castsi128_si256((__m128i)low);
    *row = (mu_vector)_mm256_inserti128_si256(wide, (__m128i)high, 1);
#else
    memcpy(row, &low, sizeof low);
    memcpy((uint8_t *)row + sizeof low, &high, sizeof high);
#endif
#endif
}

/* A slice of a block has as many words as a row has of one message. The slices of one group's
 * messages are turned one after the other, each in several parts, by eight messages at a time, or
 * by four where there are no more. */
enum {
    MU_MD5_SLICE_WORDS = MU_MD5_WIDTH == 4 ? 4 : MU_MD5_WIDTH / 2,
    MU_MD5_SLICES = MU_MD5_WORDS / MU_MD5_SLICE_WORDS,
    MU_MD5_EIGHT_PARTS = 8,
    MU_MD5_SLICE_PARTS = MU_MD5_WIDTH == 16 ? 2 * MU_MD5_EIGHT_PARTS : MU_MD5_EIGHT_PARTS,
};

/* What is between the parts of a slice. */
struct mu_md5_slice {
    mu_vector rows[4]; /* of the messages i and i + 4, or of i alone */
    mu_vector unpacked[4];
    mu_vector first[4]; /* the first eight messages, turned, where a vector has sixteen lanes */
};

/* Stores two words of each message of the group: `even` and `odd` have those of eight messages. */
MU_MD5_INLINE void mu_store_words(struct mu_md5_slice *slice, mu_vector *words, mu_vector even,
                                  mu_vector odd, int pair, int eight) {
#if MU_MD5_VECTOR_BYTES < 64
    (void)slice;
    (void)eight;
    words[2 * pair] = even;
    words[2 * pair + 1] = odd;
#else
    mu_vector *first = slice->first + (size_t)pair * 2;
    if (eight == 0) {
        first[0] = even;
        first[1] = odd;
        return;
    }
    words[2 * pair] = MU_EVEN_QUADS(first[0], even);
    words[2 * pair + 1] = MU_EVEN_QUADS(first[1], odd);
    words[2 * pair + 4] = MU_ODD_QUADS(first[0], even);
    words[2 * pair + 5] = MU_ODD_QUADS(first[1], odd);
#endif
}

MU_MD5_INLINE void mu_turn_part(struct mu_md5_slice *slice, mu_vector *words,
                                const uint8_t *const *data, size_t offset, int part) {
    mu_vector *rows = slice->rows, *unpacked = slice->unpacked;
    int eight = part / MU_MD5_EIGHT_PARTS, of_eight = part % MU_MD5_EIGHT_PARTS;
    if (of_eight < 4) {
        const uint8_t *const *from = data + eight * 8 + of_eight;
        const uint8_t *other = MU_MD5_WIDTH == 4 ? NULL : from[4] + offset;
        mu_load_row(&rows[of_eight], from[0] + offset, other);
    } else if (of_eight < 6) {
        int pair = 2 * (of_eight - 4);
        unpacked[pair] = MU_UNPACK_LOW(rows[pair], rows[pair + 1]);
        unpacked[pair + 1] = MU_UNPACK_HIGH(rows[pair], rows[pair + 1]);
    } else {
        int pair = of_eight - 6;
        mu_vector even = MU_UNPACK_LOW_PAIRS(unpacked[pair], unpacked[pair + 2]);
        mu_vector odd = MU_UNPACK_HIGH_PAIRS(unpacked[pair], unpacked[pair + 2]);
        mu_store_words(slice, words, even, odd, pair, eight);
    }
}

/* A part of the slice `index` of all groups' slices. */
MU_MD5_INLINE void mu_turn_part_of(struct mu_md5_slice *slice, mu_vector *words,
                                   const uint8_t *const *data, size_t offset, int index, int part) {
    int group = index / MU_MD5_SLICES, first_word = index % MU_MD5_SLICES * MU_MD5_SLICE_WORDS;
    mu_turn_part(slice, words + group * MU_MD5_WORDS + first_word, data + group * MU_MD5_WIDTH,
                 offset + 4 * (size_t)first_word, part);
}

/* A block at once. */
MU_MD5_INLINE void mu_turn_block(mu_vector *words, const uint8_t *const *data, const int groups) {
    for (int index = 0; index < groups * MU_MD5_SLICES; index++) {
        struct mu_md5_slice slice;
#pragma GCC unroll 16
        for (int part = 0; part < MU_MD5_SLICE_PARTS; part++) {
            mu_turn_part_of(&slice, words, data, 0, index, part);
        }
    }
}

/* What is done for a block beside one of the steps of the block before it. */
MU_MD5_INLINE void mu_turn_beside(struct mu_md5_slice *slice, mu_vector *words,
                                  const uint8_t *const *data, size_t offset, const int groups,
                                  int step) {
    int parts = groups * MU_MD5_SLICES * MU_MD5_SLICE_PARTS;
    int first = step * parts / MU_MD5_STEP_COUNT, after = (step + 1) * parts / MU_MD5_STEP_COUNT;
    for (int part = first; part < after; part++) {
        mu_turn_part_of(slice, words, data, offset, part / MU_MD5_SLICE_PARTS,
                        part % MU_MD5_SLICE_PARTS);
    }
}

/* --- the rounds ------------------------------------------------------------------------------ */

/* Each macro adds its function of (b, c, d) to `sum`. It uses b as late as possible, because b is
 * the result of the step before. I is c ^ (b | ~d) = ~((~b & d) ^ c), and adding ~x means
 * subtracting x + 1: mu_md5_addends contains the 1.
 *
 * AVX-512 has one instruction for any function of three words, given by its table of eight bits. It
 * is faster where the operand that it overwrites is the newest, b. gcc chooses another one unless
 * it is forced. NEON has one that chooses bits, and one that shifts into what another shift has
 * left. Elsewhere G is faster as a sum. H_AGAIN is faster with a part of the H before it. */
#ifdef __AVX512VL__
#if MU_MD5_VECTOR_BYTES == 64
#define MU_TERNARY(b, c, d, table)                                                                 \
    ((mu_vector)_mm512_ternarylogic_epi32((__m512i)(b), (__m512i)(c), (__m512i)(d), table))
#else
#define MU_TERNARY(b, c, d, table)                                                                 \
    ((mu_vector)_mm256_ternarylogic_epi32((__m256i)(b), (__m256i)(c), (__m256i)(d), table))
#endif
#define MU_MD5_ADD_F(sum, b, c, d) ((sum) + MU_TERNARY(b, c, d, 0xCA))
#define MU_MD5_ADD_G(sum, b, c, d) ((sum) + MU_TERNARY(b, c, d, 0xE4))
#define MU_MD5_ADD_H(sum, b, c, d) ((sum) + MU_TERNARY(b, c, d, 0x96))
#define MU_MD5_ADD_H_AGAIN(sum, b, c, d) MU_MD5_ADD_H(sum, b, c, d)
#define MU_MD5_ADD_I(sum, b, c, d) ((sum) - MU_TERNARY(b, c, d, 0xC6))
#else
#ifdef MU_NEON
#define MU_MD5_CHOOSE(bits, ones, zeros)                                                           \
    ((mu_vector)vbslq_u32((uint32x4_t)(bits), (uint32x4_t)(ones), (uint32x4_t)(zeros)))
#define MU_MD5_ADD_F(sum, b, c, d) ((sum) + MU_MD5_CHOOSE(b, c, d))
#define MU_MD5_ADD_G(sum, b, c, d) ((sum) + MU_MD5_CHOOSE(d, b, c))
#else
#define MU_MD5_ADD_F(sum, b, c, d) ((sum) + (((c ^ d) & b) ^ d))
#define MU_MD5_ADD_G(sum, b, c, d) ((sum) + (~d & c) + (b & d))
#endif
#define MU_MD5_ADD_H(sum, b, c, d) ((sum) + ((b ^ c) ^ d))
#define MU_MD5_ADD_H_AGAIN(sum, b, c, d) ((sum) + (b ^ (c ^ d)))
#define MU_MD5_ADD_I(sum, b, c, d) ((sum) - ((~b & d) ^ c))
#endif

#ifdef MU_NEON
#define MU_MD5_ROTATE(x, shift)                                                                    \
    ((mu_vector)vsriq_n_u32(vshlq_n_u32((uint32x4_t)(x), shift), (uint32x4_t)(x), 32 - (shift)))
#else
#define MU_MD5_ROTATE(x, shift) ((x) << (shift) | (x) >> (32 - (shift)))
#endif

/* Keeps gcc from changing the order of the additions, which would use b early. clang keeps the
 * order. */
MU_MD5_INLINE void mu_keep_order(mu_vector *sum) {
#if defined(__AVX512F__) || (defined(__AVX2__) && MU_MD5_VECTOR_BYTES == 32)
    __asm__("" : "+v"(*sum)); /* NOLINT(portability-no-assembler): not an instruction */
#elif defined(MU_NEON)
    __asm__("" : "+w"(*sum)); /* NOLINT(portability-no-assembler): not an instruction */
#else
    (void)sum;
#endif
}

/* The addends, in a way that keeps gcc from making vectors of all of them before the loop over the
 * blocks: they would be in the cache and be loaded with an instruction each. */
MU_MD5_INLINE const uint32_t *mu_addends(void) {
    const uint32_t *addends = mu_md5_addends;
    __asm__("" : "+r"(addends)); /* NOLINT(portability-no-assembler): not an instruction */
    return addends;
}

#define MU_MD5_LANE_STEP(round, a, b, c, d, word, shift, addend)                                   \
    for (int g = 0; g < groups; g++) {                                                             \
        mu_vector sum = a[g] + now[MU_MD5_WORDS * g + (word)];                                     \
        mu_keep_order(&sum);                                                                       \
        sum += addends[step];                                                                      \
        mu_keep_order(&sum);                                                                       \
        sum = MU_MD5_ADD_##round(sum, b[g], c[g], d[g]);                                           \
        a[g] = b[g] + MU_MD5_ROTATE(sum, shift);                                                   \
    }                                                                                              \
    mu_turn_beside(&slice, next, data, after, groups, step);                                       \
    step++;

/* `groups` is a constant wherever this is called, MU_MD5_GROUPS at most. */
MU_MD5_INLINE void mu_md5_run_blocks(uint32_t *states, const uint8_t *const *data, size_t blocks,
                                     const int groups) {
    mu_vector state[4][MU_MD5_GROUPS];
    mu_vector words[2][MU_MD5_GROUPS * MU_MD5_WORDS], *now = words[0], *next = words[1];
    struct mu_md5_slice slice;
    for (int word = 0; word < 4; word++) {
        memcpy(state[word], states + word * groups * MU_MD5_WIDTH,
               (size_t)groups * sizeof(mu_vector));
    }
    mu_turn_block(now, data, groups);
    for (size_t block = 0; block < blocks; block++) {
        /* Nothing follows the last block, which is turned again. */
        size_t after = 64 * (block + 1 < blocks ? block + 1 : block);
        const uint32_t *addends = mu_addends();
        mu_vector a[MU_MD5_GROUPS], b[MU_MD5_GROUPS], c[MU_MD5_GROUPS], d[MU_MD5_GROUPS];
        for (int g = 0; g < groups; g++) {
            a[g] = state[0][g];
            b[g] = state[1][g];
            c[g] = state[2][g];
            d[g] = state[3][g];
        }
        int step = 0;
        MU_MD5_STEPS(MU_MD5_LANE_STEP)
        for (int g = 0; g < groups; g++) {
            state[0][g] += a[g];
            state[1][g] += b[g];
            state[2][g] += c[g];
            state[3][g] += d[g];
        }
        mu_vector *done = now;
        now = next;
        next = done;
    }
    for (int word = 0; word < 4; word++) {
        memcpy(states + word * groups * MU_MD5_WIDTH, state[word],
               (size_t)groups * sizeof(mu_vector));
    }
}

#endif
