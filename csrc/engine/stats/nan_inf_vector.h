/* The search for NaN and Inf, for vectors of MU_VECTOR_BYTES: included once by each file that makes
 * a variant (nan_inf_kernels.h), and by the test, which runs the 64-byte logic without AVX-512.
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

#define INLINE static inline __attribute__((always_inline))

/* For floats of `bits` bits whose sign is the top one and whose infinity, without its sign, is
 * `infinity`: greater magnitudes are NaN. `lift` takes magnitudes from infinity on, and no others,
 * into the top bit. */
#define DEFINE_WIDTH(bits)                                                                         \
    typedef uint##bits##_t lanes##bits __attribute__((vector_size(MU_VECTOR_BYTES)));              \
                                                                                                   \
    INLINE bool has_special##bits(const uint8_t *bytes, size_t numbers, uint##bits##_t infinity) { \
        enum { STEP = MU_VECTOR_BYTES / (bits / 8), UNROLL = 4 };                                  \
        const uint##bits##_t top = (uint##bits##_t)1 << (bits - 1);                                \
        const uint##bits##_t magnitude = (uint##bits##_t) ~top;                                    \
        const uint##bits##_t lift = (uint##bits##_t)(top - infinity);                              \
        lanes##bits seen[UNROLL] = {{0}};                                                          \
        uint##bits##_t all = 0;                                                                    \
        size_t i = 0;                                                                              \
        for (; i + UNROLL * STEP <= numbers; i += UNROLL * STEP) {                                 \
            for (int v = 0; v < UNROLL; v++) {                                                     \
                lanes##bits x;                                                                     \
                memcpy(&x, bytes + i * (bits / 8) + (size_t)v * MU_VECTOR_BYTES, sizeof(x));       \
                seen[v] |= (x & magnitude) + lift;                                                 \
            }                                                                                      \
        }                                                                                          \
        seen[0] |= seen[1] | seen[2] | seen[3];                                                    \
        for (int lane = 0; lane < STEP; lane++) {                                                  \
            all |= seen[0][lane];                                                                  \
        }                                                                                          \
        for (; i < numbers; i++) {                                                                 \
            uint##bits##_t x;                                                                      \
            memcpy(&x, bytes + i * (bits / 8), sizeof(x));                                         \
            all |= (uint##bits##_t)((x & magnitude) + lift);                                       \
        }                                                                                          \
        return (all & top) != 0;                                                                   \
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

DEFINE_WIDTH(8)
DEFINE_WIDTH(16)
DEFINE_WIDTH(32)
DEFINE_WIDTH(64)

/* Of the types whose NaN is one pattern. Counts of a byte hold for 255 vectors. */
INLINE int64_t count_byte(const uint8_t *bytes, size_t numbers, uint8_t pattern) {
    int64_t count = 0;
    size_t i = 0;
    while (i + MU_VECTOR_BYTES <= numbers) {
        lanes8 seen = {0};
        for (int v = 0; v < 255 && i + MU_VECTOR_BYTES <= numbers; v++, i += MU_VECTOR_BYTES) {
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

INLINE void count_block(int part, const uint8_t *bytes, size_t numbers, int64_t *counts) {
    switch (part) {
    case MU_DTYPE_FLOAT16:
        count16(bytes, numbers, 0x7C00u, counts);
        break;
    case MU_DTYPE_BFLOAT16:
        count16(bytes, numbers, 0x7F80u, counts);
        break;
    case MU_DTYPE_FLOAT32:
        count32(bytes, numbers, 0x7F800000u, counts);
        break;
    case MU_DTYPE_FLOAT64:
        count64(bytes, numbers, 0x7FF0000000000000u, counts);
        break;
    case MU_DTYPE_FLOAT8_E5M2:
        count8(bytes, numbers, 0x7Cu, counts);
        break;
    case MU_DTYPE_FLOAT8_E4M3FN:
        counts[MU_NANS] += count_byte(bytes, numbers, 0x7Fu) + count_byte(bytes, numbers, 0xFFu);
        break;
    case MU_DTYPE_FLOAT8_E4M3FNUZ:
    case MU_DTYPE_FLOAT8_E5M2FNUZ:
        counts[MU_NANS] += count_byte(bytes, numbers, 0x80u);
        break;
    case MU_DTYPE_FLOAT8_E8M0FNU:
        counts[MU_NANS] += count_byte(bytes, numbers, 0xFFu);
        break;
    default:
        break;
    }
}

#endif
