/* The inner loops of the statistics, for vectors of MU_VECTOR_BYTES: included once by each file
 * that makes a variant (stats_kernels.h), and by the test, which runs the 64-byte logic without
 * AVX-512.
 *
 * Numbers become doubles as they are loaded, 16 at a time, the i-th of them always in lane i. Lanes
 * are folded in halves. Numbers behind the last 16 go through the same lanes one by one.
 */
#ifndef MU_STATS_VECTOR_H
#define MU_STATS_VECTOR_H

#include <float.h>
#include <string.h>

#include "stats_kernels.h"

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

enum {
    LANES = 16,
    WIDTH = MU_VECTOR_BYTES / 8, /* doubles in a vector */
    VECTORS = LANES / WIDTH,
};

typedef double doubles __attribute__((vector_size(MU_VECTOR_BYTES)));
typedef int64_t longs __attribute__((vector_size(MU_VECTOR_BYTES)));
typedef float floats __attribute__((vector_size(MU_VECTOR_BYTES / 2)));
typedef uint32_t words __attribute__((vector_size(MU_VECTOR_BYTES / 2)));
typedef uint16_t halves __attribute__((vector_size(MU_VECTOR_BYTES / 4)));

#define INLINE static inline __attribute__((always_inline))

/* --- loads: WIDTH numbers of a type as doubles ----------------------------------------------- */

typedef doubles (*load_function)(const uint8_t *bytes);

INLINE doubles load_float64(const uint8_t *bytes) {
    doubles values;
    memcpy(&values, bytes, sizeof(values));
    return values;
}

INLINE doubles load_float32(const uint8_t *bytes) {
    floats values;
    memcpy(&values, bytes, sizeof(values));
    return __builtin_convertvector(values, doubles);
}

INLINE doubles load_bfloat16(const uint8_t *bytes) {
    halves bits;
    memcpy(&bits, bytes, sizeof(bits));
    words wide = __builtin_convertvector(bits, words) << 16;
    return __builtin_convertvector((floats)wide, doubles);
}

#if defined(__F16C__) && MU_VECTOR_BYTES == 64
INLINE doubles load_float16(const uint8_t *bytes) {
    __m256 values = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)bytes));
    return __builtin_convertvector((floats)values, doubles);
}
#elif defined(__F16C__) && MU_VECTOR_BYTES == 32
INLINE doubles load_float16(const uint8_t *bytes) {
    __m128 values = _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)bytes));
    return __builtin_convertvector((floats)values, doubles);
}
#else
/* The exponent's bias changes by a multiplication, which subnormals survive; Inf and NaN are those
 * whose exponent was all ones. */
INLINE doubles load_float16(const uint8_t *bytes) {
    halves bits;
    memcpy(&bits, bytes, sizeof(bits));
    words wide = __builtin_convertvector(bits, words);
    words magnitude = (wide & 0x7FFFu) << 13;
    words special = (words)(magnitude >= (0x7C00u << 13)) & 0x7F800000u;
    floats scaled = (floats)magnitude * 0x1p112f;
    words value = (words)scaled | special | (wide & 0x8000u) << 16;
    return __builtin_convertvector((floats)value, doubles);
}
#endif

/* --- minimum and maximum of numbers that are not NaN; no operator makes them -------------------
 */

#if defined(__AVX512F__) && MU_VECTOR_BYTES == 64
INLINE void keep_least(doubles *least, const doubles *values) {
    *least = (doubles)_mm512_min_pd((__m512d)*values, (__m512d)*least);
}

INLINE void keep_greatest(doubles *greatest, const doubles *values) {
    *greatest = (doubles)_mm512_max_pd((__m512d)*values, (__m512d)*greatest);
}
#elif defined(__AVX2__) && MU_VECTOR_BYTES == 32
INLINE void keep_least(doubles *least, const doubles *values) {
    *least = (doubles)_mm256_min_pd((__m256d)*values, (__m256d)*least);
}

INLINE void keep_greatest(doubles *greatest, const doubles *values) {
    *greatest = (doubles)_mm256_max_pd((__m256d)*values, (__m256d)*greatest);
}
#elif defined(__SSE2__) && MU_VECTOR_BYTES == 16
INLINE void keep_least(doubles *least, const doubles *values) {
    *least = (doubles)_mm_min_pd((__m128d)*values, (__m128d)*least);
}

INLINE void keep_greatest(doubles *greatest, const doubles *values) {
    *greatest = (doubles)_mm_max_pd((__m128d)*values, (__m128d)*greatest);
}
#else
INLINE void keep_where(const longs *which, doubles *kept, const doubles *values) {
    *kept = (doubles)((*which & (longs)*values) | (~*which & (longs)*kept));
}

INLINE void keep_least(doubles *least, const doubles *values) {
    longs less = *values < *least;
    keep_where(&less, least, values);
}

INLINE void keep_greatest(doubles *greatest, const doubles *values) {
    longs more = *values > *greatest;
    keep_where(&more, greatest, values);
}
#endif

/* --- one block -------------------------------------------------------------------------------- */

INLINE double fold(double lanes[LANES]) {
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; lane++) {
            lanes[lane] += lanes[lane + half];
        }
    }
    return lanes[0];
}

/* The numbers behind the last whole step, fewer than LANES, as doubles. */
INLINE void load_rest(load_function load, size_t size, const uint8_t *bytes, size_t count,
                      double out[LANES]) {
    uint8_t padded[LANES * sizeof(double)] = {0};
    memcpy(padded, bytes, count * size);
    for (int v = 0; v < VECTORS; v++) {
        doubles values = load(padded + (size_t)v * WIDTH * size);
        memcpy(out + (size_t)v * WIDTH, &values, sizeof(values));
    }
}

struct first_pass {
    doubles sum[VECTORS], abs_sum[VECTORS];
    doubles min, max;
    longs zeros;
};

INLINE void first_pass_step(struct first_pass *pass, load_function load, size_t size,
                            const uint8_t *bytes) {
    for (int v = 0; v < VECTORS; v++) {
        doubles values = load(bytes + (size_t)v * WIDTH * size);
        pass->sum[v] += values;
        pass->abs_sum[v] += (doubles)((longs)values & INT64_MAX);
        keep_least(&pass->min, &values);
        keep_greatest(&pass->max, &values);
        pass->zeros -= (longs)(values == 0.0);
    }
}

INLINE void first_pass_rest(const double *rest, size_t count, double *sum, double *abs_sum,
                            struct mu_stats_part *part) {
    for (size_t i = 0; i < count; i++) {
        sum[i] += rest[i];
        abs_sum[i] += rest[i] < 0 ? -rest[i] : rest[i];
        part->min = rest[i] < part->min ? rest[i] : part->min;
        part->max = rest[i] > part->max ? rest[i] : part->max;
        part->zeros += rest[i] == 0;
    }
}

/* The sum of all numbers. */
INLINE double first_pass_end(const struct first_pass *pass, const double *rest, size_t count,
                             struct mu_stats_part *part) {
    double sum[LANES], abs_sum[LANES];
    memcpy(sum, pass->sum, sizeof(sum));
    memcpy(abs_sum, pass->abs_sum, sizeof(abs_sum));
    for (int i = 0; i < WIDTH; i++) {
        part->min = pass->min[i] < part->min ? pass->min[i] : part->min;
        part->max = pass->max[i] > part->max ? pass->max[i] : part->max;
        part->zeros += pass->zeros[i];
    }
    first_pass_rest(rest, count, sum, abs_sum, part);
    part->abs_sum = fold(abs_sum);
    return fold(sum);
}

/* Of the block's numbers, finite and of mean `mean` up to rounding: the differences, and their
 * squares. */
INLINE void second_pass(load_function load, size_t size, const uint8_t *bytes, size_t steps,
                        const double *rest, size_t count, double mean, struct mu_stats_part *part) {
    doubles apart[VECTORS] = {{0}}, squares[VECTORS] = {{0}};
    double apart_lanes[LANES], square_lanes[LANES];
    for (size_t step = 0; step < steps; step++) {
        for (int v = 0; v < VECTORS; v++) {
            doubles x = load(bytes + (step * LANES + (size_t)v * WIDTH) * size) - mean;
            apart[v] += x;
            squares[v] += x * x;
        }
    }
    memcpy(apart_lanes, apart, sizeof(apart_lanes));
    memcpy(square_lanes, squares, sizeof(square_lanes));
    for (size_t i = 0; i < count; i++) {
        double x = rest[i] - mean;
        apart_lanes[i] += x;
        square_lanes[i] += x * x;
    }
    mu_stats_set_moments(part, mean, fold(apart_lanes), fold(square_lanes));
}

/* A NaN or Inf among the numbers shows in the sum of their magnitudes. */
INLINE bool is_plain(const struct mu_stats_part *part) {
    double abs_max = -part->min > part->max ? -part->min : part->max;
    return part->abs_sum <= DBL_MAX && (abs_max == 0 || mu_stats_scale_of(abs_max) == 0);
}

INLINE bool block_of(load_function load, size_t size, const uint8_t *bytes, size_t numbers,
                     struct mu_stats_part *part) {
    struct first_pass pass = {.zeros = {0}};
    size_t steps = numbers / LANES, left = numbers % LANES;
    double rest[LANES];
    pass.min += part->min;
    pass.max += part->max;
    for (size_t step = 0; step < steps; step++) {
        first_pass_step(&pass, load, size, bytes + step * LANES * size);
    }
    if (left > 0) {
        load_rest(load, size, bytes + steps * LANES * size, left, rest);
    }
    double sum = first_pass_end(&pass, rest, left, part);
    if (!is_plain(part)) {
        mu_stats_part_clear(part);
        return false;
    }
    part->finite = (int64_t)numbers;
    part->scale = part->abs_sum == 0 ? part->scale : 0;
    double mean = mu_stats_within(sum / (double)numbers, part->min, part->max);
    second_pass(load, size, bytes, steps, rest, left, mean, part);
    return true;
}

static bool float16_block(const uint8_t *bytes, size_t numbers, struct mu_stats_part *part) {
    return block_of(load_float16, 2, bytes, numbers, part);
}

static bool bfloat16_block(const uint8_t *bytes, size_t numbers, struct mu_stats_part *part) {
    return block_of(load_bfloat16, 2, bytes, numbers, part);
}

static bool float32_block(const uint8_t *bytes, size_t numbers, struct mu_stats_part *part) {
    return block_of(load_float32, 4, bytes, numbers, part);
}

static bool float64_block(const uint8_t *bytes, size_t numbers, struct mu_stats_part *part) {
    return block_of(load_float64, 8, bytes, numbers, part);
}

#define MU_STATS_KERNELS                                                                           \
    {.float16 = float16_block,                                                                     \
     .bfloat16 = bfloat16_block,                                                                   \
     .float32 = float32_block,                                                                     \
     .float64 = float64_block}

#endif
