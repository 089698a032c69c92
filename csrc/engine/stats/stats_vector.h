/* The inner loops of the statistics, for vectors of MU_VECTOR_BYTES: included once by each file
 * that makes a variant (stats_kernels.h), and by the test, which runs the 64-byte logic without
 * AVX-512. The file for NEON defines MU_NEON.
 *
 * A block is read from memory once, for its range, its zeros and the sums of the numbers, their
 * squares and their magnitudes, in double. When the sum of squares is so close to that of the mean
 * that their difference would lose digits, a second loop sums the squared differences from the
 * mean; the block is still in the cache then. The i-th number is always added in the same lane,
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
#elif defined(MU_NEON)
#include <arm_neon.h>
#endif

enum {
    LANES = 16,        /* numbers of a step; each has its own sum of squares */
    PAIRS = LANES / 2, /* numbers i and i + PAIRS of a step are added to each other first */
    FLOAT_WIDTH = MU_VECTOR_BYTES / 4,
    WIDTH = MU_VECTOR_BYTES / 8,
    FLOAT_VECTORS = LANES / FLOAT_WIDTH,
    VECTORS = LANES / WIDTH,
    PAIR_VECTORS = PAIRS / WIDTH,
};

/* How far ahead of the loads memory is fetched into the first-level cache. Measured: with 2 KiB the
 * loads still wait, 16 KiB leave too little room in a cache of 32 or 48 KiB. */
enum { PREFETCH_BYTES = 8192, LINE_BYTES = 64 };

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
enum { RANGE_OF_BITS = true };

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

INLINE void keep_bits(ints *most, ints *least, const floats *x) {
    *most = (ints)_mm512_max_epi32((__m512i)*x, (__m512i)*most);
    *least = (ints)_mm512_max_epu32((__m512i)*x, (__m512i)*least);
}

INLINE void count_zeros(ints *zeros, const floats *x) {
    __mmask16 found = _mm512_testn_epi32_mask((__m512i)*x, _mm512_set1_epi32(INT32_MAX));
    *zeros =
        (ints)_mm512_mask_sub_epi32((__m512i)*zeros, found, (__m512i)*zeros, _mm512_set1_epi32(-1));
}
#elif defined(__AVX2__) && MU_VECTOR_BYTES == 32
enum { RANGE_OF_BITS = true };

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

INLINE void keep_bits(ints *most, ints *least, const floats *x) {
    *most = (ints)_mm256_max_epi32((__m256i)*x, (__m256i)*most);
    *least = (ints)_mm256_max_epu32((__m256i)*x, (__m256i)*least);
}

INLINE void count_zeros(ints *zeros, const floats *x) {
    *zeros -= *x == 0.0f;
}
#elif defined(__SSE2__) && MU_VECTOR_BYTES == 16
enum { RANGE_OF_BITS = false }; /* it has no maximum of integers */

INLINE void keep_range(floats *min, floats *max, const floats *x) {
    *min = (floats)_mm_min_ps((__m128)*x, (__m128)*min);
    *max = (floats)_mm_max_ps((__m128)*x, (__m128)*max);
}

INLINE void keep_double_range(doubles *min, doubles *max, const doubles *x) {
    *min = (doubles)_mm_min_pd((__m128d)*x, (__m128d)*min);
    *max = (doubles)_mm_max_pd((__m128d)*x, (__m128d)*max);
}
#elif defined(MU_NEON)
enum { RANGE_OF_BITS = false }; /* the units that add compare integers too */

INLINE void keep_range(floats *min, floats *max, const floats *x) {
    *min = (floats)vminq_f32((float32x4_t)*x, (float32x4_t)*min);
    *max = (floats)vmaxq_f32((float32x4_t)*x, (float32x4_t)*max);
}

INLINE void keep_double_range(doubles *min, doubles *max, const doubles *x) {
    *min = (doubles)vminq_f64((float64x2_t)*x, (float64x2_t)*min);
    *max = (doubles)vmaxq_f64((float64x2_t)*x, (float64x2_t)*max);
}
#else
enum { RANGE_OF_BITS = true };

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
#endif

#if !defined(__AVX2__) || MU_VECTOR_BYTES == 16
typedef uint32_t uints __attribute__((vector_size(MU_VECTOR_BYTES)));

INLINE void keep_bits(ints *most, ints *least, const floats *x) {
    ints bits = (ints)*x, more = bits > *most, less = (ints)((uints)bits > (uints)*least);
    *most = (more & bits) | (~more & *most);
    *least = (less & bits) | (~less & *least);
}

INLINE void count_zeros(ints *zeros, const floats *x) {
    *zeros -= *x == 0.0f;
}

INLINE doubles widened(const few_floats *x) {
    return __builtin_convertvector(*x, doubles);
}

INLINE doubles plus_exact_square(const doubles *sum, const doubles *x) {
#ifdef MU_NEON
    return (doubles)vfmaq_f64((float64x2_t)*sum, (float64x2_t)*x, (float64x2_t)*x);
#else
    return *x * *x + *sum;
#endif
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
#ifdef MU_NEON
    return (doubles)vcvt_f64_f32(vreinterpret_f32_u8(vld1_u8(bytes)));
#else
    few_floats values;
    memcpy(&values, bytes, sizeof(values));
    return widened(&values);
#endif
}

/* --- range and zeros -------------------------------------------------------------------------- */

/* Ranges of the numbers seen so far. Whatever a NaN or an Inf does to them, their block is given up
 * (is_plain). */

struct double_range {
    doubles min, max;
    longs zeros;
};

INLINE void start_double_range(struct double_range *range) {
    *range = (struct double_range){{0}, {0}, {0}};
    range->min += (double)MU_FLOAT_INFINITY;
    range->max -= (double)MU_FLOAT_INFINITY;
}

INLINE void add_to_double_range(struct double_range *range, const uint8_t *step) {
    for (size_t v = 0; v < VECTORS; v++) {
        doubles x = doubles_of_float64(step + v * sizeof(x));
        keep_double_range(&range->min, &range->max, &x);
        range->zeros -= x == 0.0;
    }
}

INLINE void finish_double_range(const struct double_range *range, struct mu_stats_part *part) {
    for (int i = 0; i < WIDTH; i++) {
        part->min = range->min[i] < part->min ? range->min[i] : part->min;
        part->max = range->max[i] > part->max ? range->max[i] : part->max;
        part->zeros += range->zeros[i];
    }
}

struct float_range {
    floats min, max;
};

INLINE void start_float_range(struct float_range *range) {
    *range = (struct float_range){{0}, {0}};
    range->min += MU_FLOAT_INFINITY;
    range->max -= MU_FLOAT_INFINITY;
}

INLINE floats floats_at(const uint8_t *bytes) {
    floats x;
    memcpy(&x, bytes, sizeof(x));
    return x;
}

INLINE void add_to_float_range(struct float_range *range, const uint8_t *step) {
    for (size_t v = 0; v < FLOAT_VECTORS; v++) {
        floats x = floats_at(step + v * sizeof(x));
        keep_range(&range->min, &range->max, &x);
    }
}

INLINE void finish_float_range(const struct float_range *range, struct mu_stats_part *part) {
    for (int i = 0; i < FLOAT_WIDTH; i++) {
        double min = (double)range->min[i], max = (double)range->max[i];
        part->min = min < part->min ? min : part->min;
        part->max = max > part->max ? max : part->max;
    }
}

/* The range in the bits of floats, so that the units that add have nothing to do with it. Compared
 * as signed integers, the greatest are the bits of the greatest number from 0 on; compared as
 * unsigned ones, those of the least number below 0. */
struct bits_range {
    ints most, least;
};

INLINE void start_bits_range(struct bits_range *range) {
    *range = (struct bits_range){(ints){0} + INT32_MIN, {0}};
}

INLINE void add_to_bits_range(struct bits_range *range, const uint8_t *step) {
    for (size_t v = 0; v < FLOAT_VECTORS; v++) {
        floats x = floats_at(step + v * sizeof(x));
        keep_bits(&range->most, &range->least, &x);
    }
}

INLINE double value_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return (double)value;
}

/* False where all numbers have one sign: `part` is not changed then. */
INLINE bool finish_bits_range(const struct bits_range *range, struct mu_stats_part *part) {
    int32_t most = INT32_MIN;
    uint32_t least = 0;
    for (int i = 0; i < FLOAT_WIDTH; i++) {
        most = range->most[i] > most ? range->most[i] : most;
        least = (uint32_t)range->least[i] > least ? (uint32_t)range->least[i] : least;
    }
    if (most < 0 || least <= INT32_MAX) {
        return false;
    }
    part->min = value_of(least);
    part->max = value_of((uint32_t)most);
    return true;
}

/* What a block needs of the two above; the other one is optimized away. */
struct range {
    struct bits_range bits;
    struct float_range floats;
    ints zeros;
};

INLINE void start_range(struct range *range) {
    start_bits_range(&range->bits);
    start_float_range(&range->floats);
    range->zeros = (ints){0};
}

INLINE void add_to_range(struct range *range, const uint8_t *step) {
    if (RANGE_OF_BITS) {
        add_to_bits_range(&range->bits, step);
    } else {
        add_to_float_range(&range->floats, step);
    }
    for (size_t v = 0; v < FLOAT_VECTORS; v++) {
        floats x = floats_at(step + v * sizeof(x));
        count_zeros(&range->zeros, &x);
    }
}

/* `bytes`: the same steps again, for the case that the bits do not tell the range. */
INLINE void finish_range(struct range *range, const uint8_t *bytes, size_t steps,
                         struct mu_stats_part *part) {
    for (int i = 0; i < FLOAT_WIDTH; i++) {
        part->zeros += range->zeros[i];
    }
    if (RANGE_OF_BITS && finish_bits_range(&range->bits, part)) {
        return;
    }
    if (RANGE_OF_BITS) {
        for (size_t step = 0; step < steps; step++) {
            add_to_float_range(&range->floats, bytes + step * LANES * sizeof(float));
        }
    }
    finish_float_range(&range->floats, part);
}

/* --- sums ------------------------------------------------------------------------------------- */

/* The numbers of one block. */
struct block {
    const uint8_t *bytes;
    size_t steps; /* whole ones */
    size_t left;  /* numbers behind them */
    double rest[LANES];
};

/* Of each lane. */
struct lanes {
    doubles values[PAIR_VECTORS], squares[VECTORS], magnitudes[PAIR_VECTORS];
};

struct block_sums {
    double values, squares, magnitudes;
};

INLINE void prefetch(const uint8_t *step, size_t size) {
    for (size_t at = 0; at < LANES * size; at += LINE_BYTES) {
        __builtin_prefetch(step + PREFETCH_BYTES + at, 0, 3);
    }
}

INLINE doubles magnitude(const doubles *x) {
    return (doubles)((longs)*x & INT64_MAX);
}

/* `squares_fit`: those of all numbers are exact in double. */
INLINE void add_square(bool squares_fit, doubles *sum, const doubles *x) {
    *sum = squares_fit ? plus_exact_square(sum, x) : *sum + *x * *x;
}

INLINE void add_step(load_doubles load, size_t size, bool squares_fit, const uint8_t *step,
                     struct lanes *lanes) {
    for (size_t v = 0; v < PAIR_VECTORS; v++) {
        doubles x = load(step + v * WIDTH * size), y = load(step + (PAIRS + v * WIDTH) * size);
        lanes->values[v] += x + y;
        lanes->magnitudes[v] += magnitude(&x) + magnitude(&y);
        add_square(squares_fit, &lanes->squares[v], &x);
        add_square(squares_fit, &lanes->squares[PAIR_VECTORS + v], &y);
    }
}

INLINE double fold(const void *vectors, int count) {
    double lanes[LANES];
    memcpy(lanes, vectors, (size_t)count * sizeof(double));
    for (int half = count / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; lane++) {
            lanes[lane] += lanes[lane + half];
        }
    }
    return lanes[0];
}

INLINE void fold_all(const struct lanes *lanes, struct block_sums *sums) {
    sums->values = fold(lanes->values, PAIRS);
    sums->squares = fold(lanes->squares, LANES);
    sums->magnitudes = fold(lanes->magnitudes, PAIRS);
}

/* The numbers behind the last whole step are put into block->rest. Those that lack are zeros, which
 * change no sum. */
INLINE void add_rest(load_doubles load, size_t size, bool squares_fit, struct block *block,
                     struct lanes *lanes, struct mu_stats_part *part) {
    uint8_t padded[LANES * sizeof(double)] = {0};
    memcpy(padded, block->bytes + block->steps * LANES * size, block->left * size);
    add_step(load, size, squares_fit, padded, lanes);
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

/* The range and the zeros go to `part`, here and in the next. The loops add to `running` and
 * `seen`, whose addresses nobody takes behind them: compilers keep those in registers, and would
 * store the others in each step. */
INLINE void sum_up_floats(struct block *block, struct block_sums *sums,
                          struct mu_stats_part *part) {
    enum { SIZE = sizeof(float) };
    struct lanes lanes, running = {{{0}}, {{0}}, {{0}}};
    struct range range, seen;
    start_range(&seen);
    for (size_t step = 0; step < block->steps; step++) {
        const uint8_t *bytes = block->bytes + step * LANES * SIZE;
        prefetch(bytes, SIZE);
        add_to_range(&seen, bytes);
        add_step(doubles_of_float32, SIZE, true, bytes, &running);
    }
    lanes = running;
    range = seen;
    finish_range(&range, block->bytes, block->steps, part);
    if (block->left > 0) {
        add_rest(doubles_of_float32, SIZE, true, block, &lanes, part);
    }
    fold_all(&lanes, sums);
}

INLINE void sum_up_doubles(struct block *block, struct block_sums *sums,
                           struct mu_stats_part *part) {
    enum { SIZE = sizeof(double) };
    struct lanes lanes, running = {{{0}}, {{0}}, {{0}}};
    struct double_range range, seen;
    start_double_range(&seen);
    for (size_t step = 0; step < block->steps; step++) {
        const uint8_t *bytes = block->bytes + step * LANES * SIZE;
        prefetch(bytes, SIZE);
        add_to_double_range(&seen, bytes);
        add_step(doubles_of_float64, SIZE, false, bytes, &running);
    }
    lanes = running;
    range = seen;
    finish_double_range(&range, part);
    if (block->left > 0) {
        add_rest(doubles_of_float64, SIZE, false, block, &lanes, part);
    }
    fold_all(&lanes, sums);
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
    sums->values = fold(lanes[0], LANES);
    sums->squares = fold(lanes[1], LANES);
}

/* --- one block -------------------------------------------------------------------------------- */

/* Any NaN or Inf shows in the sum of magnitudes. */
INLINE bool is_plain(const struct block_sums *sums, const struct mu_stats_part *part) {
    double abs_max = -part->min > part->max ? -part->min : part->max;
    return sums->magnitudes <= DBL_MAX && (abs_max == 0 || mu_stats_scale_of(abs_max) == 0);
}

/* Moments of a block whose range is in `part` already; false, and `part` cleared, where it is not
 * plain. */
INLINE bool finish_block(load_doubles load, size_t size, const struct block *block,
                         struct block_sums *sums, struct mu_stats_part *part) {
    double center = 0;
    if (!is_plain(sums, part)) {
        mu_stats_part_clear(part);
        return false;
    }
    part->finite = (int64_t)(block->steps * LANES + block->left);
    part->abs_sum = sums->magnitudes;
    part->scale = sums->magnitudes == 0 ? part->scale : 0;
    double mean = sums->values / (double)part->finite;
    if ((sums->squares - sums->values * mean) * SQUARES_LOSS_MAX < sums->squares) {
        center = mu_stats_within(mean, part->min, part->max);
        sum_up_from(load, size, center, block, sums);
    }
    mu_stats_set_moments(part, center, sums->values, sums->squares);
    return true;
}

static bool float32_block(const uint8_t *bytes, size_t numbers, struct mu_stats_part *part) {
    struct block block = {.bytes = bytes, .steps = numbers / LANES, .left = numbers % LANES};
    struct block_sums sums;
    sum_up_floats(&block, &sums, part);
    return finish_block(doubles_of_float32, sizeof(float), &block, &sums, part);
}

static bool float64_block(const uint8_t *bytes, size_t numbers, struct mu_stats_part *part) {
    struct block block = {.bytes = bytes, .steps = numbers / LANES, .left = numbers % LANES};
    struct block_sums sums;
    sum_up_doubles(&block, &sums, part);
    return finish_block(doubles_of_float64, sizeof(double), &block, &sums, part);
}

#define MU_STATS_KERNELS {.float32 = float32_block, .float64 = float64_block}

#endif
