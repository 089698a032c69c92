/* The search for NaN and Inf, for vectors of MU_VECTOR_BYTES: included once by each file that makes
 * a variant (nan_inf_kernels.h), and by the test, which runs the 64-byte logic without AVX-512. The
 * file for NEON defines MU_NEON.
 *
 * Only integers are compared, so the mode of the floating-point unit does not matter. A block is
 * first tested for any NaN or Inf. Only a block that has one is counted.
 */
#ifndef MU_NAN_INF_VECTOR_H
#define MU_NAN_INF_VECTOR_H

#include <stdbool.h>
#include <string.h>

#include "stats/nan_inf_kernels.h"
#include "tensor/number.h"

#ifdef MU_NEON
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

enum { UNROLL = 4 };

typedef uint8_t lanes8 __attribute__((vector_size(MU_VECTOR_BYTES)));
typedef uint16_t lanes16 __attribute__((vector_size(MU_VECTOR_BYTES)));
typedef uint32_t lanes32 __attribute__((vector_size(MU_VECTOR_BYTES)));
typedef uint64_t lanes64 __attribute__((vector_size(MU_VECTOR_BYTES)));

/* special_in##bits(bytes, vectors, infinity) looks at so many vectors, a multiple of UNROLL, of
 * floats of `bits` bits. Their sign is the top bit; `infinity` is the infinity without its sign,
 * and greater magnitudes are NaN. */
#ifdef MU_NEON

/* Twice a number's bits, as an unsigned number, order by its magnitude: the sign is shifted out. So
 * the greatest tells. */
#define DEFINE_SPECIAL_IN(bits, lanes_type)                                                        \
    INLINE bool special_in##bits(const uint8_t *bytes, size_t vectors, uint##bits##_t infinity) {  \
        lanes_type most[UNROLL] = {{0}};                                                           \
        if (vectors == 0) {                                                                        \
            return false;                                                                          \
        }                                                                                          \
        for (size_t i = 0; i < vectors; i += UNROLL) {                                             \
            for (int v = 0; v < UNROLL; v++) {                                                     \
                lanes_type x;                                                                      \
                memcpy(&x, bytes + (i + (size_t)v) * sizeof(x), sizeof(x));                        \
                most[v] = vmaxq_u##bits(most[v], vshlq_n_u##bits(x, 1));                           \
            }                                                                                      \
        }                                                                                          \
        most[0] = vmaxq_u##bits(vmaxq_u##bits(most[0], most[1]), vmaxq_u##bits(most[2], most[3])); \
        return vmaxvq_u##bits(most[0]) >= (uint##bits##_t)(infinity << 1);                         \
    }

DEFINE_SPECIAL_IN(8, uint8x16_t)
DEFINE_SPECIAL_IN(16, uint16x8_t)
DEFINE_SPECIAL_IN(32, uint32x4_t)

/* The high words decide. There is no maximum of 64 bits. */
INLINE bool special_in64(const uint8_t *bytes, size_t vectors, uint64_t infinity) {
    uint32x4_t most[UNROLL / 2] = {{0}};
    if (vectors == 0) {
        return false;
    }
    for (size_t i = 0; i < vectors; i += UNROLL) {
        for (size_t v = 0; v < UNROLL; v += 2) {
            const uint8_t *at = bytes + (i + v) * MU_VECTOR_BYTES;
            uint32x4_t low = vreinterpretq_u32_u8(vld1q_u8(at));
            uint32x4_t high = vreinterpretq_u32_u8(vld1q_u8(at + MU_VECTOR_BYTES));
            uint32x4_t words = vuzp2q_u32(low, high);
            most[v / 2] = vmaxq_u32(most[v / 2], vshlq_n_u32(words, 1));
        }
    }
    return vmaxvq_u32(vmaxq_u32(most[0], most[1])) >= (uint32_t)(infinity >> 31);
}

#else

/* `lift` takes magnitudes from infinity on, and no others, into the top bit. */
#define DEFINE_SPECIAL_IN(bits)                                                                    \
    INLINE bool special_in##bits(const uint8_t *bytes, size_t vectors, uint##bits##_t infinity) {  \
        const uint##bits##_t top = (uint##bits##_t)1 << (bits - 1);                                \
        const uint##bits##_t magnitude = (uint##bits##_t) ~top;                                    \
        const uint##bits##_t lift = (uint##bits##_t)(top - infinity);                              \
        lanes##bits seen[UNROLL] = {{0}};                                                          \
        uint##bits##_t all = 0;                                                                    \
        for (size_t i = 0; i < vectors; i += UNROLL) {                                             \
            for (int v = 0; v < UNROLL; v++) {                                                     \
                lanes##bits x;                                                                     \
                memcpy(&x, bytes + (i + (size_t)v) * sizeof(x), sizeof(x));                        \
                seen[v] |= (x & magnitude) + lift;                                                 \
            }                                                                                      \
        }                                                                                          \
        seen[0] |= seen[1] | seen[2] | seen[3];                                                    \
        for (size_t lane = 0; lane < MU_VECTOR_BYTES / sizeof(all); lane++) {                      \
            all |= seen[0][lane];                                                                  \
        }                                                                                          \
        return (all & top) != 0;                                                                   \
    }

DEFINE_SPECIAL_IN(8)
DEFINE_SPECIAL_IN(16)
DEFINE_SPECIAL_IN(32)
DEFINE_SPECIAL_IN(64)

#endif

#define DEFINE_COUNT(bits)                                                                         \
    INLINE bool has_special##bits(const uint8_t *bytes, size_t numbers, uint##bits##_t infinity) { \
        enum { STEP = UNROLL * MU_VECTOR_BYTES / (bits / 8) };                                     \
        const uint##bits##_t magnitude = (uint##bits##_t) ~((uint##bits##_t)1 << (bits - 1));      \
        size_t i = numbers - numbers % STEP;                                                       \
        bool found = special_in##bits(bytes, i / STEP * UNROLL, infinity);                         \
        for (; i < numbers; i++) {                                                                 \
            uint##bits##_t x;                                                                      \
            memcpy(&x, bytes + i * (bits / 8), sizeof(x));                                         \
            found |= (uint##bits##_t)(x & magnitude) >= infinity;                                  \
        }                                                                                          \
        return found;                                                                              \
    }                                                                                              \
                                                                                                   \
    INLINE void count##bits(const uint8_t *bytes, size_t numbers, uint##bits##_t infinity,         \
                            int64_t *counts) {                                                     \
        const uint##bits##_t top = (uint##bits##_t)1 << (bits - 1);                                \
        int64_t nans = 0, pos_infs = 0, neg_infs = 0;                                              \
        if (!has_special##bits(bytes, numbers, infinity)) {                                        \
            return;                                                                                \
        }                                                                                          \
        for (size_t i = 0; i < numbers; i++) {                                                     \
            uint##bits##_t x;                                                                      \
            memcpy(&x, bytes + i * (bits / 8), sizeof(x));                                         \
            nans += (uint##bits##_t)(x & (uint##bits##_t) ~top) > infinity;                        \
            pos_infs += x == infinity;                                                             \
            neg_infs += x == (infinity | top);                                                     \
        }                                                                                          \
        counts[MU_NANS] += nans;                                                                   \
        counts[MU_POS_INFS] += pos_infs;                                                           \
        counts[MU_NEG_INFS] += neg_infs;                                                           \
    }

DEFINE_COUNT(8)
DEFINE_COUNT(16)
DEFINE_COUNT(32)
DEFINE_COUNT(64)

/* Of the types whose NaN is one pattern. Counts of a byte hold for 255 vectors. */
INLINE int64_t count_byte(const uint8_t *bytes, size_t numbers, uint8_t pattern) {
    int64_t count = 0;
    size_t i = 0;
    while (i + MU_VECTOR_BYTES <= numbers) {
        size_t vectors = (numbers - i) / MU_VECTOR_BYTES;
        lanes8 seen = {0};
        vectors = vectors < 255 ? vectors : 255;
        for (size_t v = 0; v < vectors; v++, i += MU_VECTOR_BYTES) {
            lanes8 x;
            memcpy(&x, bytes + i, sizeof(x));
            seen -= (lanes8)(x == pattern);
        }
        for (int lane = 0; lane < MU_VECTOR_BYTES; lane++) {
            count += seen[lane];
        }
    }
    for (; i < numbers; i++) {
        count += bytes[i] == pattern;
    }
    return count;
}

/* Of the 8-bit types without infinities. Where the mask has no sign, a NaN is of either. */
INLINE void count_nan8(const struct mu_special_rule *rule, const uint8_t *bytes, size_t numbers,
                       int64_t *counts) {
    uint8_t pattern = (uint8_t)(rule->mask - rule->add);
    counts[MU_NANS] += count_byte(bytes, numbers, pattern);
    if (rule->mask == 0x7F) {
        counts[MU_NANS] += count_byte(bytes, numbers, pattern ^ 0x80);
    }
}

INLINE void count_block(const struct mu_special_rule *rule, const uint8_t *bytes, size_t numbers,
                        int64_t *counts) {
    if (rule->bits == 16) {
        count16(bytes, numbers, (uint16_t)rule->infinity, counts);
    } else if (rule->bits == 32) {
        count32(bytes, numbers, (uint32_t)rule->infinity, counts);
    } else if (rule->bits == 64) {
        count64(bytes, numbers, rule->infinity, counts);
    } else if (rule->bits == 8 && rule->infinity <= rule->mask) {
        count8(bytes, numbers, (uint8_t)rule->infinity, counts);
    } else if (rule->bits == 8) {
        count_nan8(rule, bytes, numbers, counts);
    }
}

#endif
