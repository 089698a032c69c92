/* The inner loops of the statistics, for vectors of MU_VECTOR_BYTES: included once by each file
 * that makes a variant (stats_kernels.h), and by the test, which runs the 64-byte logic without
 * AVX-512.
 *
 * A block is read from memory once and from the cache twice: once for its range and zeros, and once
 * for the sums of the numbers, their squares and their magnitudes, in double. When the sum of
 * squares is so close to that of the mean that their difference would lose digits, a third loop
 * sums the squared differences from the mean. The i-th number is always added in the same lane,
 * whatever the width, and lanes are folded in one order.
 */
#ifndef MU_STATS_VECTOR_H
#define MU_STATS_VECTOR_H

#include <float.h>
#include <string.h>

#include "stats/stats_kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

enum {
    LANES = 16, /* numbers of a step; each has its own sums */
    FLOAT_WIDTH = MU_VECTOR_BYTES / 4,
    WIDTH = MU_VECTOR_BYTES / 8,
    FLOAT_VECTORS = LANES / FLOAT_WIDTH,
    VECTORS = LANES / WIDTH,
    CHAINS = FLOAT_VECTORS > 1 ? 2 : 1, /* minima that do not wait for each other */
};

/* While the sums of a block are computed, the next block is prefetched. */
enum { PREFETCH_BYTES = 16384 };

/* The sum of squares may be at most this many times the sum of squared differences; it costs 6 of
 * 53 bits. */
#define SQUARES_LOSS_MAX 64.0

typedef double doubles __attribute__((vector_size(MU_VECTOR_BYTES)));
typedef int64_t longs __attribute__((vector_size(MU_VECTOR_BYTES)));
typedef float floats __attribute__((vector_size(MU_VECTOR_BYTES)));
typedef int32_t ints __attribute__((vector_size(MU_VECTOR_BYTES)));
typedef float few_floats
    __attribute__((vector_size(MU_VECTOR_BYTES / 2))); /* a vector of doubles */

#define INLINE static inline __attribute__((always_inline))

/* --- what no operator does, or compilers do badly --------------------------------------------- */

/* The square of a float fits a double. So it makes no difference whether it is rounded before it is
 * added (plus_exact_square), and the fused instruction may be used where there is one. */

#if defined(__AVX512F__) && MU_VECTOR_BYTES == 64
INLINE void keep_range(floats *min, floats *max, const floats *x) {
    *min = (floats)_mm512_min_ps((__m512)*x, (__m512)*min);
    *max = (floats)_mm512_max_ps((__m512)*x, (__m512)*max);
}

INLINE void keep_double_range(doubles *min, doubles *max, const doubles *x) {
    *min = (doubles)_mm512_min_pd((__m512d)*x, (__m512d)*min);
    *max = (doubles)_mm512_max_pd((__m512d)*x, (__m512d)*max);
}

INLINE doubles widened(const few_floats *x) {
    return (doubles)_mm512_cvtps_pd((__m256)*x);
}

INLINE doubles plus_exact_square(const doubles *sum, const doubles *x) {
    return (doubles)_mm512_fmadd_pd((__m512d)*x, (__m512d)*x, (__m512d)*sum);
}
#elif defined(__AVX2__) && MU_VECTOR_BYTES == 32
INLINE void keep_range(floats *min, floats *max, const floats *x) {
    *min = (floats)_mm256_min_ps((__m256)*x, (__m256)*min);
    *max = (floats)_mm256_max_ps((__m256)*x, (__m256)*max);
}

INLINE void keep_double_range(doubles *min, doubles *max, const doubles *x) {
    *min = (doubles)_mm256_min_pd((__m256d)*x, (__m256d)*min);
    *max = (doubles)_mm256_max_pd((__m256d)*x, (__m256d)*max);
}

INLINE doubles widened(const few_floats *x) {
    return (doubles)_mm256_cvtps_pd((__m128)*x);
}

INLINE doubles plus_exact_square(const doubles *sum, const doubles *x) {
    return (doubles)_mm256_fmadd_pd((__m256d)*x, (__m256d)*x, (__m256d)*sum);
}
#elif defined(__SSE2__) && MU_VECTOR_BYTES == 16
INLINE void keep_range(floats *min, floats *max, const floats *x) {
    *min = (floats)_mm_min_ps((__m128)*x, (__m128)*min);
    *max = (floats)_mm_max_ps((__m128)*x, (__m128)*max);
}

INLINE void keep_double_range(doubles *min, doubles *max, const doubles *x) {
    *min = (doubles)_mm_min_pd((__m128d)*x, (__m128d)*min);
    *max = (doubles)_mm_max_pd((__m128d)*x, (__m128d)*max);
}

INLINE doubles widened(const few_floats *x) {
    return __builtin_convertvector(*x, doubles);
}

INLINE doubles plus_exact_square(const doubles *sum, const doubles *x) {
    return *x * *x + *sum;
}
#else
INLINE void keep_range(floats *min, floats *max, const floats *x) {
    ints less = *x<*min, more = *x> * max;
    *min = (floats)((less & (ints)*x) | (~less & (ints)*min));
    *max = (floats)((more & (ints)*x) | (~more & (ints)*max));
}

INLINE void keep_double_range(doubles *min, doubles *max, const doubles *x) {
    longs less = *x<*min, more = *x> * max;
    *min = (doubles)((less & (longs)*x) | (~less & (longs)*min));
    *max = (doubles)((more & (longs)*x) | (~more & (longs)*max));
}

INLINE doubles widened(const few_floats *x) {
    return __builtin_convertvector(*x, doubles);
}

INLINE doubles plus_exact_square(const doubles *sum, const doubles *x) {
    return *x * *x + *sum;
}
#endif

/* --- loads ------------------------------------------------------------------------------------ */

typedef doubles (*load_doubles)(const uint8_t *bytes);

INLINE doubles doubles_of_float64(const uint8_t *bytes) {
    doubles values;
    memcpy(&values, bytes, sizeof(values));
    return values;
}

INLINE doubles doubles_of_float32(const uint8_t *bytes) {
    few_floats values;
    memcpy(&values, bytes, sizeof(values));
    return widened(&values);
}

/* --- range and zeros -------------------------------------------------------------------------- */

INLINE void range_of_floats(const uint8_t *bytes, size_t steps, struct mu_stats_part *part) {
    floats min[CHAINS] = {{0}}, max[CHAINS] = {{0}};
    ints zeros = {0};
    for (int c = 0; c < CHAINS; c++) {
        min[c] += MU_FLOAT_INFINITY;
        max[c] -= MU_FLOAT_INFINITY;
    }
    for (size_t step = 0; step < steps; step++) {
        for (size_t v = 0; v < FLOAT_VECTORS; v++) {
            floats x;
            memcpy(&x, bytes + (step * FLOAT_VECTORS + v) * sizeof(x), sizeof(x));
            keep_range(&min[v % CHAINS], &max[v % CHAINS], &x);
            zeros -= x == 0.0f;
        }
    }
    for (int i = 0; i < CHAINS * FLOAT_WIDTH; i++) {
        double least = (double)min[i / FLOAT_WIDTH][i % FLOAT_WIDTH];
        double most = (double)max[i / FLOAT_WIDTH][i % FLOAT_WIDTH];
        part->min = least < part->min ? least : part->min;
        part->max = most > part->max ? most : part->max;
    }
    for (int i = 0; i < FLOAT_WIDTH; i++) {
        part->zeros += zeros[i];
    }
}

INLINE void range_of_doubles(const uint8_t *bytes, size_t steps, struct mu_stats_part *part) {
    doubles min = {0}, max = {0};
    longs zeros = {0};
    min += (double)MU_FLOAT_INFINITY;
    max -= (double)MU_FLOAT_INFINITY;
    for (size_t v = 0; v < steps * VECTORS; v++) {
        doubles x = doubles_of_float64(bytes + v * MU_VECTOR_BYTES);
        keep_double_range(&min, &max, &x);
        zeros -= x == 0.0;
    }
    for (int i = 0; i < WIDTH; i++) {
        part->min = min[i] < part->min ? min[i] : part->min;
        part->max = max[i] > part->max ? max[i] : part->max;
        part->zeros += zeros[i];
    }
}

/* --- sums ------------------------------------------------------------------------------------- */

/* The numbers of one block. */
struct block {
    const uint8_t *bytes;
    size_t steps; /* whole ones */
    size_t left;  /* numbers behind them */
    double rest[LANES];
};

struct block_sums {
    double values, squares, magnitudes;
};

INLINE double fold(double lanes[LANES]) {
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; lane++) {
            lanes[lane] += lanes[lane + half];
        }
    }
    return lanes[0];
}

/* `squares_fit`: those of all numbers are exact in double. */
INLINE void sum_up(load_doubles load, size_t size, bool squares_fit, const struct block *block,
                   struct block_sums *sums) {
    doubles values[VECTORS] = {{0}}, squares[VECTORS] = {{0}}, magnitudes[VECTORS] = {{0}};
    double lanes[3][LANES];
    for (size_t step = 0; step < block->steps; step++) {
        __builtin_prefetch(block->bytes + step * LANES * size + PREFETCH_BYTES, 0, 2);
        for (size_t v = 0; v < VECTORS; v++) {
            doubles x = load(block->bytes + (step * LANES + v * WIDTH) * size);
            values[v] += x;
            squares[v] = squares_fit ? plus_exact_square(&squares[v], &x) : squares[v] + x * x;
            magnitudes[v] += (doubles)((longs)x & INT64_MAX);
        }
    }
    memcpy(lanes[0], values, sizeof(values));
    memcpy(lanes[1], squares, sizeof(squares));
    memcpy(lanes[2], magnitudes, sizeof(magnitudes));
    for (size_t i = 0; i < block->left; i++) {
        double x = block->rest[i];
        lanes[0][i] += x;
        lanes[1][i] += x * x;
        lanes[2][i] += x < 0 ? -x : x;
    }
    sums->values = fold(lanes[0]);
    sums->squares = fold(lanes[1]);
    sums->magnitudes = fold(lanes[2]);
}

/* Of the differences from `center`. */
INLINE void sum_up_from(load_doubles load, size_t size, double center, const struct block *block,
                        struct block_sums *sums) {
    doubles values[VECTORS] = {{0}}, squares[VECTORS] = {{0}};
    double lanes[2][LANES];
    for (size_t step = 0; step < block->steps; step++) {
        for (size_t v = 0; v < VECTORS; v++) {
            doubles x = load(block->bytes + (step * LANES + v * WIDTH) * size) - center;
            values[v] += x;
            squares[v] += x * x;
        }
    }
    memcpy(lanes[0], values, sizeof(values));
    memcpy(lanes[1], squares, sizeof(squares));
    for (size_t i = 0; i < block->left; i++) {
        double x = block->rest[i] - center;
        lanes[0][i] += x;
        lanes[1][i] += x * x;
    }
    sums->values = fold(lanes[0]);
    sums->squares = fold(lanes[1]);
}

/* --- one block -------------------------------------------------------------------------------- */

/* The numbers behind the last whole step, as doubles, and their part of range and zeros. */
INLINE void take_rest(load_doubles load, size_t size, struct block *block,
                      struct mu_stats_part *part) {
    uint8_t padded[LANES * sizeof(double)] = {0};
    memcpy(padded, block->bytes + block->steps * LANES * size, block->left * size);
    for (size_t v = 0; v < VECTORS; v++) {
        doubles x = load(padded + v * WIDTH * size);
        memcpy(block->rest + v * WIDTH, &x, sizeof(x));
    }
    for (size_t i = 0; i < block->left; i++) {
        double x = block->rest[i];
        part->min = x < part->min ? x : part->min;
        part->max = x > part->max ? x : part->max;
        part->zeros += x == 0;
    }
}

/* Any NaN or Inf shows in the sum of magnitudes. */
INLINE bool is_plain(const struct block_sums *sums, const struct mu_stats_part *part) {
    double abs_max = -part->min > part->max ? -part->min : part->max;
    return sums->magnitudes <= DBL_MAX && (abs_max == 0 || mu_stats_scale_of(abs_max) == 0);
}

/* The block's range is in `part` already. */
INLINE bool measure(load_doubles load, size_t size, bool squares_fit, struct block *block,
                    struct mu_stats_part *part) {
    struct block_sums sums;
    double center = 0;
    if (block->left > 0) {
        take_rest(load, size, block, part);
    }
    sum_up(load, size, squares_fit, block, &sums);
    if (!is_plain(&sums, part)) {
        mu_stats_part_clear(part);
        return false;
    }
    part->finite = (int64_t)(block->steps * LANES + block->left);
    part->abs_sum = sums.magnitudes;
    part->scale = sums.magnitudes == 0 ? part->scale : 0;
    double mean = sums.values / (double)part->finite;
    if ((sums.squares - sums.values * mean) * SQUARES_LOSS_MAX < sums.squares) {
        center = mu_stats_within(mean, part->min, part->max);
        sum_up_from(load, size, center, block, &sums);
    }
    mu_stats_set_moments(part, center, sums.values, sums.squares);
    return true;
}

static bool float32_block(const uint8_t *bytes, size_t numbers, struct mu_stats_part *part) {
    struct block block = {.bytes = bytes, .steps = numbers / LANES, .left = numbers % LANES};
    range_of_floats(bytes, block.steps, part);
    return measure(doubles_of_float32, sizeof(float), true, &block, part);
}

static bool float64_block(const uint8_t *bytes, size_t numbers, struct mu_stats_part *part) {
    struct block block = {.bytes = bytes, .steps = numbers / LANES, .left = numbers % LANES};
    range_of_doubles(bytes, block.steps, part);
    return measure(doubles_of_float64, sizeof(double), false, &block, part);
}

#define MU_STATS_KERNELS {.float32 = float32_block, .float64 = float64_block}

#endif
