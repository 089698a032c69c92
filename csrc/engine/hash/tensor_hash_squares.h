/* Transposes squares of elements, as many on a side as fit a quad, within vectors of a quad. */
#ifndef MU_TENSOR_HASH_SQUARES_H
#define MU_TENSOR_HASH_SQUARES_H

#include <stdint.h>
#include <string.h>

#include "hash/tensor_hash_math.h"

/* GCC has __builtin_shufflevector from version 12 on, and clang has no __builtin_shuffle. */
#if defined(__clang__) || __GNUC__ >= 12
#define MU_SQUARES_SHUFFLE(type, x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define MU_SQUARES_SHUFFLE(type, x, y, ...) __builtin_shuffle(x, y, (type){__VA_ARGS__})
#endif

typedef uint8_t mu_square8 __attribute__((vector_size(MU_HASH_QUAD_BYTES)));
typedef uint16_t mu_square16 __attribute__((vector_size(MU_HASH_QUAD_BYTES)));
typedef uint32_t mu_square32 __attribute__((vector_size(MU_HASH_QUAD_BYTES)));
typedef uint64_t mu_square64 __attribute__((vector_size(MU_HASH_QUAD_BYTES)));

#define MU_LOW8(x, y)                                                                              \
    MU_SQUARES_SHUFFLE(mu_square8, x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define MU_HIGH8(x, y)                                                                             \
    MU_SQUARES_SHUFFLE(mu_square8, x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, \
                       31)
#define MU_LOW16(x, y) MU_SQUARES_SHUFFLE(mu_square16, x, y, 0, 8, 1, 9, 2, 10, 3, 11)
#define MU_HIGH16(x, y) MU_SQUARES_SHUFFLE(mu_square16, x, y, 4, 12, 5, 13, 6, 14, 7, 15)
#define MU_LOW32(x, y) MU_SQUARES_SHUFFLE(mu_square32, x, y, 0, 4, 1, 5)
#define MU_HIGH32(x, y) MU_SQUARES_SHUFFLE(mu_square32, x, y, 2, 6, 3, 7)
#define MU_LOW64(x, y) MU_SQUARES_SHUFFLE(mu_square64, x, y, 0, 2)
#define MU_HIGH64(x, y) MU_SQUARES_SHUFFLE(mu_square64, x, y, 1, 3)

/* Elements of the first and of the second half of the rows take turns, as often as it takes for
 * each to be where it is to be: log2 of the side. Stores the first `lines` rows. */
#define MU_TRANSPOSE_SQUARE(bits)                                                                  \
    static inline void mu_hash_transpose##bits(uint8_t *to, int64_t pitch, const uint8_t *from,    \
                                               int64_t step, int64_t lines) {                      \
        enum { SIDE = MU_HASH_QUAD_BYTES * 8 / bits, HALF = SIDE / 2 };                            \
        mu_square##bits rows[SIDE], next[SIDE];                                                    \
        for (int row = 0; row < SIDE; row++) {                                                     \
            memcpy(&rows[row], from + row * step, sizeof(rows[row]));                              \
        }                                                                                          \
        _Pragma("GCC unroll 4") for (int turn = 1; turn < SIDE; turn *= 2) {                       \
            _Pragma("GCC unroll 8") for (int row = 0; row < HALF; row++) {                         \
                next[2 * row] = MU_LOW##bits(rows[row], rows[row + HALF]);                         \
                next[2 * row + 1] = MU_HIGH##bits(rows[row], rows[row + HALF]);                    \
            }                                                                                      \
            memcpy(rows, next, sizeof(rows));                                                      \
        }                                                                                          \
        for (int row = 0; row < SIDE && row < lines; row++) {                                      \
            memcpy(to + row * pitch, &rows[row], sizeof(rows[row]));                               \
        }                                                                                          \
    }

MU_TRANSPOSE_SQUARE(8)
MU_TRANSPOSE_SQUARE(16)
MU_TRANSPOSE_SQUARE(32)
MU_TRANSPOSE_SQUARE(64)

/* `item`: bytes of an element. `lines`: how many of the result are stored, `pitch` bytes apart. */
static inline void mu_hash_transpose(uint8_t *to, int64_t pitch, const uint8_t *from, int64_t step,
                                     int64_t lines, int64_t item) {
    switch (item) {
    case 1:
        mu_hash_transpose8(to, pitch, from, step, lines);
        break;
    case 2:
        mu_hash_transpose16(to, pitch, from, step, lines);
        break;
    case 4:
        mu_hash_transpose32(to, pitch, from, step, lines);
        break;
    case 8:
        mu_hash_transpose64(to, pitch, from, step, lines);
        break;
    default:
        memcpy(to, from, MU_HASH_QUAD_BYTES);
        break;
    }
}

#endif
