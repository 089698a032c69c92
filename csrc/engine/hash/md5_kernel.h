/* MD5 of many messages side by side, one in each 32-bit lane of a vector.
 *
 * Included by a file for each processor, which sets MU_MD5_VECTOR_BYTES (32 or 64), MU_MD5_GROUPS
 * and MU_MD5_ANY_FUNCTION (1: the processor has every function of three words in one instruction),
 * and gets mu_md5_run_blocks. A step waits for the one before it, so each step is done for several
 * groups of independent vectors in turn. The code uses the vector types of gcc and clang. Where the
 * processor has no such vectors, it runs in narrower ones.
 */
#ifndef MU_MD5_KERNEL_H
#define MU_MD5_KERNEL_H

#include <string.h>

#include "hash/md5_lanes.h"
#include "hash/md5_steps.h"

#define MU_MD5_WIDTH (MU_MD5_VECTOR_BYTES / 4)

/* Beyond what the processor fetches by itself, since it follows few streams at a time. */
enum { MU_MD5_AHEAD_BYTES = 256 };

typedef uint32_t mu_vector __attribute__((vector_size(MU_MD5_VECTOR_BYTES)));
typedef uint32_t mu_quad __attribute__((vector_size(16)));

/* --- sixteen words of each message, turned so that a vector holds one word of all ------------ */

static inline __attribute__((always_inline)) mu_quad mu_load_quad(const uint8_t *from) {
    mu_quad quad;
    memcpy(&quad, from, sizeof quad);
    return quad;
}

/* GCC has __builtin_shufflevector from version 12 on, and clang has no __builtin_shuffle, which
 * takes two vectors to one of the same width. MU_JOIN puts two vectors end to end into one that is
 * twice as wide. */
#if defined(__clang__) || __GNUC__ >= 12
#define MU_SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#define MU_JOIN(to, low, high, ...) (*(to) = __builtin_shufflevector(low, high, __VA_ARGS__))
#else
#define MU_SHUFFLE(x, y, ...) __builtin_shuffle(x, y, (mu_vector){__VA_ARGS__})
#define MU_JOIN(to, low, high, ...)                                                                \
    (memcpy((to), &(low), sizeof(low)),                                                            \
     memcpy((uint8_t *)(to) + sizeof(low), &(high), sizeof(high)))
#endif

/* Results are returned through a pointer: the calling convention for wide vectors depends on the
 * processor. */

#if MU_MD5_VECTOR_BYTES == 32

/* Four words each of the messages `lane` and `lane + 4`. */
static inline __attribute__((always_inline)) void
mu_gather_quads(mu_vector *quads, const uint8_t *const *data, int lane, size_t offset) {
    mu_quad low = mu_load_quad(data[lane] + offset);
    mu_quad high = mu_load_quad(data[lane + 4] + offset);
    MU_JOIN(quads, low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}

#define MU_UNPACK_LOW(x, y) MU_SHUFFLE(x, y, 0, 8, 1, 9, 4, 12, 5, 13)
#define MU_UNPACK_HIGH(x, y) MU_SHUFFLE(x, y, 2, 10, 3, 11, 6, 14, 7, 15)
#define MU_UNPACK_LOW_PAIRS(x, y) MU_SHUFFLE(x, y, 0, 1, 8, 9, 4, 5, 12, 13)
#define MU_UNPACK_HIGH_PAIRS(x, y) MU_SHUFFLE(x, y, 2, 3, 10, 11, 6, 7, 14, 15)

#else

typedef uint32_t mu_half __attribute__((vector_size(32)));

static inline __attribute__((always_inline)) void
mu_gather_half(mu_half *quads, const uint8_t *const *data, int lane, size_t offset) {
    mu_quad low = mu_load_quad(data[lane] + offset);
    mu_quad high = mu_load_quad(data[lane + 4] + offset);
    MU_JOIN(quads, low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}

/* Four words each of the messages `lane`, `lane + 4`, `lane + 8` and `lane + 12`. */
static inline __attribute__((always_inline)) void
mu_gather_quads(mu_vector *quads, const uint8_t *const *data, int lane, size_t offset) {
    mu_half low, high;
    mu_gather_half(&low, data, lane, offset);
    mu_gather_half(&high, data, lane + 8, offset);
    MU_JOIN(quads, low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

#define MU_UNPACK_LOW(x, y)                                                                        \
    MU_SHUFFLE(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define MU_UNPACK_HIGH(x, y)                                                                       \
    MU_SHUFFLE(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define MU_UNPACK_LOW_PAIRS(x, y)                                                                  \
    MU_SHUFFLE(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define MU_UNPACK_HIGH_PAIRS(x, y)                                                                 \
    MU_SHUFFLE(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)

#endif

/* Words 4 * quarter to 4 * quarter + 3 of one group's messages. */
static inline __attribute__((always_inline)) void
mu_turn_quarter(mu_vector words[4], const uint8_t *const *data, size_t offset) {
    mu_vector row0, row1, row2, row3;
    mu_gather_quads(&row0, data, 0, offset);
    mu_gather_quads(&row1, data, 1, offset);
    mu_gather_quads(&row2, data, 2, offset);
    mu_gather_quads(&row3, data, 3, offset);
    mu_vector low01 = MU_UNPACK_LOW(row0, row1);
    mu_vector low23 = MU_UNPACK_LOW(row2, row3);
    mu_vector high01 = MU_UNPACK_HIGH(row0, row1);
    mu_vector high23 = MU_UNPACK_HIGH(row2, row3);
    words[0] = MU_UNPACK_LOW_PAIRS(low01, low23);
    words[1] = MU_UNPACK_HIGH_PAIRS(low01, low23);
    words[2] = MU_UNPACK_LOW_PAIRS(high01, high23);
    words[3] = MU_UNPACK_HIGH_PAIRS(high01, high23);
}

static inline __attribute__((always_inline)) void
mu_turn_block(mu_vector words[16], const uint8_t *const *data, size_t offset) {
    for (int lane = 0; lane < MU_MD5_WIDTH; lane++) {
        __builtin_prefetch(data[lane] + offset + MU_MD5_AHEAD_BYTES);
    }
    for (size_t quarter = 0; quarter < 4; quarter++) {
        mu_turn_quarter(words + 4 * quarter, data, offset + 16 * quarter);
    }
}

/* --- the rounds ------------------------------------------------------------------------------ */

/* Each macro adds its function of (b, c, d) to `sum`. It uses b as late as possible, because b is
 * the result of the step before. I is c ^ (b | ~d) = ~((~b & d) ^ c), and adding ~x means
 * subtracting x + 1: mu_md5_addends contains the 1. Where one instruction computes any function of
 * three words, G and H must be a single expression. Elsewhere G is faster as a sum, and H_AGAIN is
 * faster with a part of the H before it. */
#define MU_MD5_ADD_F(sum, b, c, d) ((sum) + (((c ^ d) & b) ^ d))
#if MU_MD5_ANY_FUNCTION
#define MU_MD5_ADD_G(sum, b, c, d) ((sum) + (((b ^ c) & d) ^ c))
#define MU_MD5_ADD_H(sum, b, c, d) ((sum) + (b ^ (c ^ d)))
#else
#define MU_MD5_ADD_G(sum, b, c, d) ((sum) + (~d & c) + (b & d))
#define MU_MD5_ADD_H(sum, b, c, d) ((sum) + ((b ^ c) ^ d))
#endif
#define MU_MD5_ADD_H_AGAIN(sum, b, c, d) ((sum) + (b ^ (c ^ d)))
#define MU_MD5_ADD_I(sum, b, c, d) ((sum) - ((~b & d) ^ c))

/* Keeps gcc from changing the order of the additions, which would use b early. clang keeps the
 * order. */
static inline __attribute__((always_inline)) void mu_keep_order(mu_vector *sum) {
#if defined(__AVX512F__) || (defined(__AVX2__) && MU_MD5_VECTOR_BYTES == 32)
    __asm__("" : "+v"(*sum)); /* NOLINT(portability-no-assembler): not an instruction */
#else
    (void)sum;
#endif
}

#define MU_MD5_LANE_STEP(round, a, b, c, d, word, shift, addend)                                   \
    for (int g = 0; g < groups; g++) {                                                             \
        mu_vector sum = words[g][word] + mu_md5_addends[step] + a[g];                              \
        mu_keep_order(&sum);                                                                       \
        sum = MU_MD5_ADD_##round(sum, b[g], c[g], d[g]);                                           \
        a[g] = b[g] + (sum << (shift) | sum >> (32 - (shift)));                                    \
    }                                                                                              \
    step++;

/* `groups` is a constant wherever this is called, MU_MD5_GROUPS at most. */
static inline __attribute__((always_inline)) void
mu_md5_run_blocks(uint32_t *states, const uint8_t *const *data, size_t blocks, const int groups) {
    mu_vector state[4][MU_MD5_GROUPS];
    for (int word = 0; word < 4; word++) {
        memcpy(state[word], states + word * groups * MU_MD5_WIDTH,
               (size_t)groups * sizeof(mu_vector));
    }
    for (size_t offset = 0; offset < blocks * 64; offset += 64) {
        mu_vector words[MU_MD5_GROUPS][16];
        mu_vector a[MU_MD5_GROUPS], b[MU_MD5_GROUPS], c[MU_MD5_GROUPS], d[MU_MD5_GROUPS];
        for (int g = 0; g < groups; g++) {
            mu_turn_block(words[g], data + g * MU_MD5_WIDTH, offset);
        }
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
    }
    for (int word = 0; word < 4; word++) {
        memcpy(states + word * groups * MU_MD5_WIDTH, state[word],
               (size_t)groups * sizeof(mu_vector));
    }
}

#endif
