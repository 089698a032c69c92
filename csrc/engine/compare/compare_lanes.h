/* The kernels of compare_kernels.h, for vectors of MU_VECTOR_BYTES (16, 32 or 64).
 *
 * Each file that includes this one is compiled for one instruction set, and gets its own table,
 * `compare_kernels`. It is written with the compiler's vector types. The compiler splits them where
 * the processor's vectors are narrower, so the widest variant is tested on any machine.
 */
#include <string.h>

#include "compare/compare_kernels.h"
#include "tensor/number.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(MU_NEON)
#include <arm_neon.h>
#endif

enum {
    WIDTH = MU_VECTOR_BYTES / 8,
    VECTORS = MU_COMPARE_LANES / WIDTH,
#if defined(__SSE2__) && MU_VECTOR_BYTES == 16
    AT_ONCE = 1, /* vectors of each sum that are kept in registers, of which there are 16 */
#else
    AT_ONCE = VECTORS,
#endif
};

/* How far ahead of the loads memory is fetched into the first-level cache. */
enum { PREFETCH_BYTES = 8192, LINE_BYTES = 64 };

typedef double doubles __attribute__((vector_size(MU_VECTOR_BYTES)));
typedef int64_t longs __attribute__((vector_size(MU_VECTOR_BYTES)));
typedef float floats __attribute__((vector_size(MU_VECTOR_BYTES / 2)));
typedef uint32_t words __attribute__((vector_size(MU_VECTOR_BYTES / 2)));
typedef int32_t eight __attribute__((vector_size(4 * MU_COMPARE_LANES)));
typedef uint16_t halves __attribute__((vector_size(MU_VECTOR_BYTES / 4)));

#define INLINE static inline __attribute__((always_inline))

/* WIDTH elements of one type, from number `i` on, as doubles. */
typedef doubles (*loader)(const char *elements, size_t i);

INLINE doubles load_f64(const char *elements, size_t i) {
    doubles x;
    memcpy(&x, elements + 8 * i, sizeof(x));
    return x;
}

#if defined(__AVX512F__) && MU_VECTOR_BYTES == 64
INLINE doubles of_floats(floats x) {
    return (doubles)_mm512_cvtps_pd((__m256)x);
}

INLINE floats floats_of_f16(const char *bytes) {
    return (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)bytes));
}

INLINE words words_of(const char *bytes) {
    return (words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)bytes));
}
#elif defined(__AVX2__) && MU_VECTOR_BYTES == 32
INLINE doubles of_floats(floats x) {
    return (doubles)_mm256_cvtps_pd((__m128)x);
}

INLINE floats floats_of_f16(const char *bytes) {
    return (floats)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)bytes));
}

INLINE words words_of(const char *bytes) {
    return (words)_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)bytes));
}
#elif defined(MU_NEON)
INLINE doubles of_floats(floats x) {
    return (doubles)vcvt_f64_f32((float32x2_t)x);
}

/* Two numbers of 16 bits, and two zeros that nobody reads. */
INLINE uint32x2_t two_halves(const char *bytes) {
    uint32_t both;
    memcpy(&both, bytes, sizeof(both));
    return (uint32x2_t){both, 0};
}

INLINE floats floats_of_f16(const char *bytes) {
    float32x4_t values = vcvt_f32_f16(vreinterpret_f16_u32(two_halves(bytes)));
    return (floats)vget_low_f32(values);
}

INLINE words words_of(const char *bytes) {
    uint32x4_t values = vmovl_u16(vreinterpret_u16_u32(two_halves(bytes)));
    return (words)vget_low_u32(values);
}
#else
INLINE doubles of_floats(floats x) {
    return __builtin_convertvector(x, doubles);
}

INLINE floats floats_of_f16(const char *bytes) {
    uint16_t bits[WIDTH];
    floats values;
    memcpy(bits, bytes, sizeof(bits));
    for (int i = 0; i < WIDTH; i++) {
        values[i] = mu_float16_value(bits[i]);
    }
    return values;
}

INLINE words words_of(const char *bytes) {
    halves bits;
    memcpy(&bits, bytes, sizeof(bits));
    return __builtin_convertvector(bits, words);
}
#endif

INLINE doubles load_f32(const char *elements, size_t i) {
    floats x;
#ifdef MU_NEON /* gcc would load two floats as an integer */
    x = (floats)vld1_u8((const uint8_t *)elements + 4 * i);
#else
    memcpy(&x, elements + 4 * i, sizeof(x));
#endif
    return of_floats(x);
}

INLINE doubles load_bf16(const char *elements, size_t i) {
    return of_floats((floats)(words_of(elements + 2 * i) << 16));
}

INLINE doubles load_f16(const char *elements, size_t i) {
    return of_floats(floats_of_f16(elements + 2 * i));
}

INLINE doubles load_lanes(const double *lanes) {
    return load_f64((const char *)lanes, 0);
}

/* In AVX2 as separate instructions: compilers put such operations of two vectors together, and have
 * too few registers then. */
#if defined(__AVX2__) && MU_VECTOR_BYTES == 32
INLINE doubles absolute(doubles x) {
    return (doubles)_mm256_andnot_pd(_mm256_set1_pd(-0.0), (__m256d)x);
}

INLINE doubles with_bits(doubles x, doubles y) {
    return (doubles)_mm256_or_pd((__m256d)x, (__m256d)y);
}

INLINE doubles other_bits(doubles x, doubles y) {
    return (doubles)_mm256_xor_pd((__m256d)x, (__m256d)y);
}
#else
INLINE doubles absolute(doubles x) {
    return (doubles)((longs)x & INT64_MAX);
}

INLINE doubles with_bits(doubles x, doubles y) {
    return (doubles)((longs)x | (longs)y);
}

INLINE doubles other_bits(doubles x, doubles y) {
    return (doubles)((longs)x ^ (longs)y);
}
#endif

/* The maximum of numbers that are not negative. A NaN may be ignored. */
INLINE doubles greater(doubles x, doubles y) {
#if defined(__AVX512F__) && MU_VECTOR_BYTES == 64
    return (doubles)_mm512_max_pd((__m512d)x, (__m512d)y);
#elif defined(__AVX2__) && MU_VECTOR_BYTES == 32
    return (doubles)_mm256_max_pd((__m256d)x, (__m256d)y);
#elif defined(MU_NEON)
    return (doubles)vmaxnmq_f64((float64x2_t)x, (float64x2_t)y);
#else
    longs take = x > y;
    return (doubles)(((longs)x & take) | ((longs)y & ~take));
#endif
}

/* x * y + z, rounded once where the processor can, else twice: for products that are exact, or
 * where both will do. */
INLINE doubles add_product(doubles x, doubles y, doubles z) {
#if defined(__AVX512F__) && MU_VECTOR_BYTES == 64
    return (doubles)_mm512_fmadd_pd((__m512d)x, (__m512d)y, (__m512d)z);
#elif defined(__FMA__) && MU_VECTOR_BYTES == 32
    return (doubles)_mm256_fmadd_pd((__m256d)x, (__m256d)y, (__m256d)z);
#elif defined(MU_NEON)
    return (doubles)vfmaq_f64((float64x2_t)z, (float64x2_t)x, (float64x2_t)y);
#else
    return x * y + z;
#endif
}

INLINE double greatest(doubles x) {
    double most = x[0];
    for (int i = 1; i < WIDTH; i++) {
        most = x[i] > most ? x[i] : most;
    }
    return most;
}

INLINE int64_t total(longs x) {
    int64_t sum = 0;
    for (int i = 0; i < WIDTH; i++) {
        sum += x[i];
    }
    return sum;
}

INLINE int64_t any_bit(longs x) {
    int64_t bits = 0;
    for (int i = 0; i < WIDTH; i++) {
        bits |= x[i];
    }
    return bits;
}

INLINE int64_t count_opposite(loader load, const char *a, const char *b, size_t count) {
    longs found = {0};
    for (size_t i = 0; i < count; i += WIDTH) {
        doubles x = load(a, i), y = load(b, i);
        found -= ((x < 0.0) & (y > 0.0)) | ((x > 0.0) & (y < 0.0));
    }
    return total(found);
}

/* 0 where y is 0. */
INLINE double find_max_rel(loader load, const char *a, const char *b, size_t count) {
    doubles most = {0};
    for (size_t i = 0; i < count; i += WIDTH) {
        doubles x = load(a, i), y = load(b, i);
        doubles quotient = absolute(x - y) / absolute(y);
        most = greater(most, (doubles)((longs)quotient & (y != 0.0)));
    }
    return greatest(most);
}

INLINE int64_t count_mismatches(loader load, const char *a, const char *b, size_t count,
                                const struct mu_compare_block *block) {
    longs found = {0};
    double atol = block->atol, rtol = block->rtol;
    for (size_t i = 0; i < count; i += WIDTH) {
        doubles x = load(a, i), y = load(b, i);
        found -= absolute(x - y) > atol + rtol * absolute(y);
    }
    return total(found);
}

/* AT_ONCE vectors of each sum. */
struct sums {
    doubles aa[AT_ONCE], bb[AT_ONCE], ab[AT_ONCE], dd[AT_ONCE];
};

/* Of `rel_below` and `signs` only the sign bits count: they are set where max_rel may be above
 * max_rel_before, and where the signs of a pair differ. */
struct summary {
    doubles most, rel_below, signs;
    longs mismatches;
    eight float_signs;
};

INLINE eight eight_at(const char *floats) {
    eight bits;
    memcpy(&bits, floats, sizeof(bits));
    return bits;
}

INLINE void load_sums(struct sums *sums, const struct mu_compare_lanes *lanes, size_t lane) {
    memcpy(sums->aa, lanes->aa + lane, sizeof(sums->aa));
    memcpy(sums->bb, lanes->bb + lane, sizeof(sums->bb));
    memcpy(sums->ab, lanes->ab + lane, sizeof(sums->ab));
    memcpy(sums->dd, lanes->dd + lane, sizeof(sums->dd));
}

INLINE void store_sums(const struct sums *sums, struct mu_compare_lanes *lanes, size_t lane) {
    memcpy(lanes->aa + lane, sums->aa, sizeof(sums->aa));
    memcpy(lanes->bb + lane, sums->bb, sizeof(sums->bb));
    memcpy(lanes->ab + lane, sums->ab, sizeof(sums->ab));
    memcpy(lanes->dd + lane, sums->dd, sizeof(sums->dd));
}

/* Products of two numbers of the narrower types are exact in double, and never denormal. */
INLINE doubles add_to_sum(bool is_f64, doubles x, doubles y, doubles z) {
    return is_f64 ? x * y + z : add_product(x, y, z);
}

/* Walks over the whole block with AT_ONCE vectors of the lanes, so that everything stays in
 * registers.
 *
 * Where |a - b| is above max_rel_before * |b|, less a little for rounding, the quotient may be
 * above max_rel_before. Doubles are scaled up first, lest a small product is rounded to a denormal.
 */
INLINE void compare_group(loader load, size_t size, bool count_along, const char *a, const char *b,
                          size_t count, size_t lane, struct mu_compare_block *block,
                          struct summary *summary) {
    bool is_f64 = size == sizeof(double);
    bool signs_of_all = size == sizeof(float) && AT_ONCE == VECTORS;
    struct sums sums;
    struct summary so_far = *summary;
    double atol = block->atol, rtol = block->rtol;
    double scale = is_f64 && block->max_rel_before < 0x1p64 ? 0x1p64 : 1;
    doubles limit = (doubles){0} + block->max_rel_before * (1 - 0x1p-50) * scale;
    load_sums(&sums, &block->lanes, lane);
    for (size_t i = lane; i < count; i += MU_COMPARE_LANES) {
        if (i * size % LINE_BYTES < MU_COMPARE_LANES * size) {
            __builtin_prefetch(a + i * size + PREFETCH_BYTES, 0, 3);
            __builtin_prefetch(b + i * size + PREFETCH_BYTES, 0, 3);
        }
        if (signs_of_all) {
            so_far.float_signs |= eight_at(a + i * size) ^ eight_at(b + i * size);
        }
        for (size_t v = 0; v < AT_ONCE; v++) {
            doubles x = load(a, i + v * WIDTH), y = load(b, i + v * WIDTH);
            if (!signs_of_all) {
                so_far.signs = with_bits(so_far.signs, other_bits(x, y));
            }
            sums.aa[v] = add_to_sum(is_f64, x, x, sums.aa[v]);
            sums.ab[v] = add_to_sum(is_f64, x, y, sums.ab[v]);
            sums.bb[v] = add_to_sum(is_f64, y, y, sums.bb[v]);
            doubles difference = x - y;
            doubles error = absolute(difference), magnitude = absolute(y);
            sums.dd[v] += difference * difference;
            so_far.most = greater(so_far.most, error);
            if (count_along) {
                so_far.mismatches -= error > atol + rtol * magnitude;
            }
            so_far.rel_below =
                with_bits(so_far.rel_below, add_product(limit, magnitude, -error * scale));
        }
    }
    store_sums(&sums, &block->lanes, lane);
    *summary = so_far;
}

INLINE bool any_sign(const struct summary *summary) {
    int32_t bits = 0;
    for (int i = 0; i < MU_COMPARE_LANES; i++) {
        bits |= summary->float_signs[i];
    }
    return bits < 0 || any_bit((longs)summary->signs) < 0;
}

INLINE void compare(loader load, size_t size, const char *a, const char *b, size_t count,
                    struct mu_compare_block *block) {
    struct summary summary = {{0}, {0}, {0}, {0}, {0}};
    for (size_t lane = 0; lane < MU_COMPARE_LANES; lane += AT_ONCE * WIDTH) {
        if (block->over_atol) {
            compare_group(load, size, true, a, b, count, lane, block, &summary);
        } else {
            compare_group(load, size, false, a, b, count, lane, block, &summary);
        }
    }
    block->max_abs = greatest(summary.most);
    if (block->over_atol) {
        block->mismatches = total(summary.mismatches);
    } else {
        block->mismatches =
            block->max_abs > block->atol ? count_mismatches(load, a, b, count, block) : 0;
    }
    block->sign_differences = any_sign(&summary) ? count_opposite(load, a, b, count) : 0;
    block->max_rel = any_bit((longs)summary.rel_below) < 0 ? find_max_rel(load, a, b, count) : 0;
}

INLINE void add_squares(loader load, const char *a, size_t count, struct mu_compare_lanes *lanes) {
    for (size_t lane = 0; lane < MU_COMPARE_LANES; lane += WIDTH) {
        doubles aa = load_lanes(lanes->aa + lane), bb = load_lanes(lanes->bb + lane);
        doubles ab = load_lanes(lanes->ab + lane);
        for (size_t i = lane; i < count; i += MU_COMPARE_LANES) {
            doubles x = load(a, i);
            doubles square = x * x;
            aa += square;
            bb += square;
            ab += square;
        }
        memcpy(lanes->aa + lane, &aa, sizeof(aa));
        memcpy(lanes->bb + lane, &bb, sizeof(bb));
        memcpy(lanes->ab + lane, &ab, sizeof(ab));
    }
}

static void compare_f16(const void *a, const void *b, size_t count,
                        struct mu_compare_block *block) {
    compare(load_f16, 2, a, b, count, block);
}

static void compare_bf16(const void *a, const void *b, size_t count,
                         struct mu_compare_block *block) {
    compare(load_bf16, 2, a, b, count, block);
}

static void compare_f32(const void *a, const void *b, size_t count,
                        struct mu_compare_block *block) {
    compare(load_f32, 4, a, b, count, block);
}

static void compare_f64(const void *a, const void *b, size_t count,
                        struct mu_compare_block *block) {
    compare(load_f64, 8, a, b, count, block);
}

static void squares_f16(const void *a, size_t count, struct mu_compare_lanes *lanes) {
    add_squares(load_f16, a, count, lanes);
}

static void squares_bf16(const void *a, size_t count, struct mu_compare_lanes *lanes) {
    add_squares(load_bf16, a, count, lanes);
}

static void squares_f32(const void *a, size_t count, struct mu_compare_lanes *lanes) {
    add_squares(load_f32, a, count, lanes);
}

static void squares_f64(const void *a, size_t count, struct mu_compare_lanes *lanes) {
    add_squares(load_f64, a, count, lanes);
}

#define COMPARE_KERNELS                                                                            \
    {                                                                                              \
        .compare = {compare_f16, compare_bf16, compare_f32, compare_f64},                          \
        .squares = {squares_f16, squares_bf16, squares_f32, squares_f64},                          \
    }
