#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/cpu.h"
#include "stats/nan_inf.h"
#include "stats/nan_inf_kernels.h"
#include "stats/stats.h"
#include "stats/stats_kernels.h"
#include "tensor/decode.h"
#include "tests/check.h"

/* The 64-byte loops, made of what this processor has: the logic of the AVX-512 variants. */
#pragma GCC diagnostic ignored "-Wpsabi" /* no vector crosses a call: all is inlined */
#define MU_VECTOR_BYTES 64
#include "stats/nan_inf_vector.h"
#undef INLINE
#include "stats/stats_vector.h"

static const struct mu_stats_kernels wide_kernels = MU_STATS_KERNELS;

static void wide_nan_inf_block(const struct mu_special_rule *rule, const uint8_t *bytes,
                               size_t numbers, int64_t *counts) {
    count_block(rule, bytes, numbers, counts);
}

/* Every number is decoded to a double first. */
static const struct mu_stats_kernels decoding_kernels = {.float64 = float64_block};

enum { VARIANTS_MAX = 5 };

struct variant {
    const char *name;
    const struct mu_stats_kernels *stats;
    mu_nan_inf_block nan_inf;
};

static int list_variants(struct variant *variants) {
    int count = 0;
    variants[count++] =
        (struct variant){"portable", &mu_stats_kernels_portable, mu_nan_inf_block_portable};
    variants[count++] = (struct variant){"64 bytes", &wide_kernels, wide_nan_inf_block};
    variants[count++] = (struct variant){"decoded", &decoding_kernels, wide_nan_inf_block};
#ifdef __x86_64__
    if (mu_cpu_has(MU_CPU_AVX2)) {
        variants[count++] = (struct variant){"avx2", &mu_stats_kernels_avx2, mu_nan_inf_block_avx2};
    }
    if (mu_cpu_has(MU_CPU_AVX512)) {
        variants[count++] =
            (struct variant){"avx512", &mu_stats_kernels_avx512, mu_nan_inf_block_avx512};
    }
#elif defined(__aarch64__)
    CHECK(mu_stats_kernels_best() == &mu_stats_kernels_neon);
    CHECK(mu_nan_inf_block_best() == mu_nan_inf_block_neon);
    variants[count++] = (struct variant){"neon", &mu_stats_kernels_neon, mu_nan_inf_block_neon};
#endif
    return count;
}

/* --- the oracle: one number at a time, two passes in long double ------------------------------ */

static bool is_same(double left, double right) {
    return isnan(left) ? isnan(right) : left == right;
}

static void oracle_count(struct mu_stats *want, double x, int64_t element) {
    want->count++;
    if (isnan(x)) {
        want->first_nan = want->nans++ == 0 ? element : want->first_nan;
    } else if (isinf(x)) {
        want->first_inf = want->pos_infs + want->neg_infs == 0 ? element : want->first_inf;
        want->pos_infs += x > 0;
        want->neg_infs += x < 0;
    } else {
        want->min = want->finite == 0 || x < want->min ? x : want->min;
        want->max = want->finite == 0 || x > want->max ? x : want->max;
        want->finite++;
        want->zeros += x == 0;
    }
}

struct sums {
    long double sum, abs_sum, squares;
};

static struct sums sums_about(const double *numbers, int64_t count, long double center) {
    struct sums sums = {0, 0, 0};
    for (int64_t i = 0; i < count; i++) {
        if (isfinite(numbers[i])) {
            long double apart = numbers[i] - center;
            sums.sum += numbers[i];
            sums.abs_sum += fabsl(numbers[i]);
            sums.squares += apart * apart;
        }
    }
    return sums;
}

static void oracle(const double *numbers, int64_t count, int parts, struct mu_stats *want,
                   struct sums *sums) {
    *want = (struct mu_stats){.first_nan = -1, .first_inf = -1};
    want->min = want->max = want->mean = want->std = want->abs_max = NAN;
    for (int64_t i = 0; i < count; i++) {
        oracle_count(want, numbers[i], i / parts);
    }
    *sums = sums_about(numbers, count, 0);
    want->l1 = (double)sums->abs_sum;
    want->l2 = (double)sqrtl(sums->squares);
    if (want->finite > 0) {
        long double mean = sums->sum / want->finite;
        want->mean = (double)mean;
        want->abs_max = fmax(-want->min, want->max);
        if (want->finite > 1) {
            long double squares = sums_about(numbers, count, mean).squares;
            want->std = (double)sqrtl(squares / (want->finite - 1));
        }
    }
}

static bool is_close(double got, double want, double rel) {
    return is_same(got, want) || fabs(got - want) <= rel * fabs(want);
}

/* The bounds that stats.h states, and exact counts. */
static void check_against(const struct mu_stats *got, const struct mu_stats *want,
                          const struct sums *sums) {
    CHECK_INT(got->count, want->count);
    CHECK_INT(got->finite, want->finite);
    CHECK_INT(got->zeros, want->zeros);
    CHECK_INT(got->nans, want->nans);
    CHECK_INT(got->pos_infs, want->pos_infs);
    CHECK_INT(got->neg_infs, want->neg_infs);
    CHECK_INT(got->first_nan, want->first_nan);
    CHECK_INT(got->first_inf, want->first_inf);
    CHECK(is_same(got->min, want->min));
    CHECK(is_same(got->max, want->max));
    CHECK(is_same(got->abs_max, want->abs_max));
    CHECK(is_close(got->l1, want->l1, 1e-12));
    CHECK(is_close(got->l2, want->l2, 1e-12));
    CHECK(is_close(got->std, want->std, 1e-10));
    CHECK(is_same(got->mean, want->mean) ||
          fabs(got->mean - want->mean) <= (double)(1e-12L * sums->abs_sum / want->finite));
}

static void check_equal_bits(const struct mu_stats_part *got, const struct mu_stats_part *want,
                             const char *variant) {
    bool equal =
        got->finite == want->finite && got->zeros == want->zeros && got->nans == want->nans &&
        got->pos_infs == want->pos_infs && got->neg_infs == want->neg_infs &&
        got->first_nan == want->first_nan && got->first_inf == want->first_inf &&
        got->min == want->min && got->max == want->max && got->mean == want->mean &&
        got->mean_rest == want->mean_rest && got->abs_sum == want->abs_sum && got->m2 == want->m2 &&
        got->int_min == want->int_min && got->int_max == want->int_max && got->scale == want->scale;
    if (!CHECK(equal)) {
        fprintf(stderr, "the variant %s differs from the first\n", variant);
    }
}

static double *decoded(const struct mu_tensor *tensor, int64_t *count) {
    const struct mu_dtype_info *info = mu_dtype_info(tensor->dtype);
    int64_t bytes = mu_tensor_bytes(tensor);
    uint8_t *dense = malloc((size_t)bytes + 16);
    double *numbers = malloc((size_t)tensor->elements * info->parts * sizeof(double) + 16);
    struct mu_tensor_walk walk;
    size_t got, at = 0;
    mu_tensor_walk_start(&walk, tensor, 0, tensor->elements);
    for (;;) {
        uint8_t scratch[256];
        const uint8_t *piece = mu_tensor_walk_next(&walk, scratch, sizeof(scratch), &got);
        if (got == 0) {
            break;
        }
        memcpy(dense + at, piece, got);
        at += got;
    }
    mu_decode_doubles(tensor->dtype, dense, (size_t)tensor->elements, numbers);
    *count = tensor->elements * info->parts;
    free(dense);
    return numbers;
}

static void check_nan_inf(mu_nan_inf_block block, const struct mu_tensor *tensor,
                          const struct mu_stats *want) {
    int64_t counts[MU_NAN_INF_COUNTS];
    mu_nan_inf_count_with(block, tensor, counts);
    CHECK_INT(counts[MU_NANS], want->nans);
    CHECK_INT(counts[MU_POS_INFS], want->pos_infs);
    CHECK_INT(counts[MU_NEG_INFS], want->neg_infs);
}

/* All variants against the oracle, and against each other bit for bit. */
static void check_tensor(const struct mu_tensor *tensor) {
    struct variant variants[VARIANTS_MAX];
    int variant_count = list_variants(variants);
    struct mu_stats want, got;
    struct mu_stats_part first, part;
    struct sums sums;
    int64_t count;
    double *numbers = decoded(tensor, &count);
    oracle(numbers, count, mu_dtype_info(tensor->dtype)->parts, &want, &sums);
    free(numbers);
    mu_stats_part_with(variants[0].stats, tensor, &first);
    for (int i = 0; i < variant_count; i++) {
        mu_stats_part_with(variants[i].stats, tensor, &part);
        if (variants[i].stats != &decoding_kernels) {
            check_equal_bits(&part, &first, variants[i].name);
        }
        mu_stats_finish(&part, &got);
        check_against(&got, &want, &sums);
        check_nan_inf(variants[i].nan_inf, tensor, &want);
    }
    mu_stats_of(tensor, &got);
    check_against(&got, &want, &sums);
}

static void check_bytes_as(int dtype, const void *data, int64_t elements) {
    struct mu_tensor tensor = {
        .data = data, .shape = &elements, .elements = elements, .ndim = 1, .dtype = (uint8_t)dtype};
    check_tensor(&tensor);
}

static void check_doubles(const double *numbers, int64_t count) {
    check_bytes_as(MU_DTYPE_FLOAT64, numbers, count);
}

/* --- inputs ----------------------------------------------------------------------------------- */

static uint64_t random_state = 1;

static uint64_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 0x2545F4914F6CDD1Du;
}

/* From -0.5 to 0.5. */
static double random_number(void) {
    return (double)(random_bits() >> 11) * 0x1p-53 - 0.5;
}

static const int64_t lengths[] = {0,    1,    2,    3,     15,    16,    17,    31,   32,
                                  33,   63,   64,   100,   1000,  2047,  2048,  2049, 4095,
                                  4096, 4097, 8192, 10000, 40000, 70001, 300000};
enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]), LENGTH_MAX = 300000 };

/* Any bits at all: every dtype's NaNs, infinities and subnormals among them. */
static void test_random_bits_of_every_type(void) {
    uint64_t *data = malloc((LENGTH_MAX + 1) * 16);
    for (int64_t i = 0; i < 2 * LENGTH_MAX + 2; i++) {
        data[i] = random_bits();
    }
    for (int dtype = 0; dtype < MU_DTYPE_COUNT; dtype++) {
        for (int i = 0; i < LENGTHS; i += dtype % 2 + 1) {
            check_bytes_as(dtype, (const char *)data + 1, lengths[i]);
        }
    }
    free(data);
}

static void test_plain_floats(void) {
    float *data = malloc(LENGTH_MAX * sizeof(*data));
    for (int64_t i = 0; i < LENGTH_MAX; i++) {
        data[i] = (float)random_number();
    }
    for (int i = 0; i < LENGTHS; i++) {
        check_bytes_as(MU_DTYPE_FLOAT32, data, lengths[i]);
        check_bytes_as(MU_DTYPE_COMPLEX64, data, lengths[i] / 2);
    }
    for (int64_t i = 0; i < LENGTH_MAX; i += 977) {
        data[i] = i % 2 ? NAN : -INFINITY;
    }
    for (int i = 0; i < LENGTHS; i++) {
        check_bytes_as(MU_DTYPE_FLOAT32, data, lengths[i]);
        check_bytes_as(MU_DTYPE_COMPLEX64, data, lengths[i] / 2);
    }
    free(data);
}

/* center + width times a random number, in both float types. */
static void check_spread(double center, double width) {
    enum { COUNT = 50000 };
    double *doubles = malloc(COUNT * sizeof(*doubles));
    float *floats = malloc(COUNT * sizeof(*floats));
    for (int64_t i = 0; i < COUNT; i++) {
        doubles[i] = center + width * random_number();
        floats[i] = (float)doubles[i];
    }
    check_bytes_as(MU_DTYPE_FLOAT64, doubles, COUNT);
    check_bytes_as(MU_DTYPE_FLOAT32, floats, COUNT);
    free(doubles);
    free(floats);
}

static void test_far_means(void) {
    check_spread(1e4, 2e-2);
    check_spread(-1e4, 2e-2);
    check_spread(1e8, 1);
    check_spread(1e8, 1e-3);
    check_spread(0, 1e30);
    check_spread(1e-40, 1e-42);
}

enum { SCALED_COUNT = 9000 };

static void check_scaled(double low, double high) {
    double *numbers = malloc(SCALED_COUNT * sizeof(*numbers));
    for (int64_t i = 0; i < SCALED_COUNT; i++) {
        numbers[i] = (i % 3 == 0 ? low : high) * (2 * random_number());
    }
    check_doubles(numbers, SCALED_COUNT);
    numbers[1234] = NAN;
    numbers[5000] = INFINITY;
    check_doubles(numbers, SCALED_COUNT);
    free(numbers);
}

static void test_squares_beyond_doubles(void) {
    check_scaled(1e300, 1e300);
    check_scaled(1e-300, 1e-300);
    check_scaled(5e-324, 1e-320);
    check_scaled(1e300, 1);
    check_scaled(1e300, 1e-300);
    check_scaled(1, 1e-300);
    check_scaled(1e120, 1e121);
    check_scaled(0, 1e-300);
}

/* Blocks of another scale each, merged. */
static void test_blocks_of_all_scales(void) {
    enum { BLOCK = 2048, BLOCKS = 9 };
    static const double sizes[BLOCKS] = {1, 1e-300, 0, 1e-300, 1, 1e-310, 5e-324, 1e-300, 1e-120};
    double *numbers = malloc(BLOCK * BLOCKS * sizeof(*numbers));
    for (int64_t i = 0; i < BLOCK * BLOCKS; i++) {
        numbers[i] = sizes[i / BLOCK] * random_number();
    }
    check_doubles(numbers, BLOCK * BLOCKS);
    check_doubles(numbers + BLOCK, 3 * BLOCK);
    check_doubles(numbers + 5 * BLOCK, 4 * BLOCK);
    for (int64_t i = 0; i < BLOCK; i++) {
        numbers[3 * BLOCK + i] = 1e305 * random_number();
    }
    check_doubles(numbers, BLOCK * BLOCKS);
    free(numbers);
}

static void test_extremes(void) {
    static const double pairs[][2] = {
        {DBL_MAX, DBL_MAX}, {DBL_MAX, 0},          {5e-324, 5e-324},    {DBL_MIN, -DBL_MIN},
        {0.0, -0.0},        {INFINITY, -INFINITY}, {NAN, NAN},          {NAN, 1},
        {INFINITY, 1},      {1e300, -1e300},       {FLT_MAX, -FLT_MAX}, {1e308, 1e308}};
    double numbers[100];
    for (size_t p = 0; p < sizeof(pairs) / sizeof(pairs[0]); p++) {
        for (int i = 0; i < 100; i++) {
            numbers[i] = pairs[p][i % 2];
        }
        for (int64_t count = 1; count <= 100; count += 1 + count / 2) {
            check_doubles(numbers, count);
        }
    }
}

/* Ranges that the bits of floats do not tell: numbers of one sign, and zeros of both. A variant
 * that takes zeros for numbers of the other sign, or skips the second look, finds another range. */
static void test_floats_of_one_sign(void) {
    static const float pairs[][2] = {{1, 2},
                                     {-1, -2},
                                     {0, 0},
                                     {-0.0f, -0.0f},
                                     {0, -0.0f},
                                     {0, 5},
                                     {-0.0f, 5},
                                     {0, -5},
                                     {-0.0f, -5},
                                     {-1, 1},
                                     {0x1p-149f, 0x1p-140f},
                                     {-0x1p-149f, -FLT_MAX}};
    enum { COUNT = 40000 };
    float *numbers = malloc(COUNT * sizeof(*numbers));
    for (size_t p = 0; p < sizeof(pairs) / sizeof(pairs[0]); p++) {
        for (int i = 0; i < COUNT; i++) {
            numbers[i] = pairs[p][i % 7 == 3];
        }
        check_bytes_as(MU_DTYPE_FLOAT32, numbers, COUNT);
        check_bytes_as(MU_DTYPE_FLOAT32, numbers, 100);
    }
    free(numbers);
}

/* The mean of equal numbers is the number, and they have no deviation at all. */
static void test_equal_numbers(void) {
    enum { COUNT = 20011 };
    double *numbers = malloc(COUNT * sizeof(*numbers));
    for (int round = 0; round < 20; round++) {
        struct mu_stats stats;
        int64_t count = COUNT - round;
        struct mu_tensor tensor = {.data = numbers,
                                   .shape = &count,
                                   .elements = count,
                                   .ndim = 1,
                                   .dtype = MU_DTYPE_FLOAT64};
        for (int64_t i = 0; i < count; i++) {
            numbers[i] = i == 0 ? random_number() : numbers[0];
        }
        mu_stats_of(&tensor, &stats);
        CHECK(stats.mean == numbers[0] && stats.std == 0);
    }
    free(numbers);
}

static void test_longs(void) {
    static const int64_t numbers[] = {INT64_MIN, INT64_MAX, -1, 0, 1, INT64_MAX - 1};
    int64_t count = 6;
    struct mu_stats stats;
    struct mu_tensor tensor = {
        .data = numbers, .shape = &count, .elements = count, .ndim = 1, .dtype = MU_DTYPE_INT64};
    mu_stats_of(&tensor, &stats);
    CHECK_INT(stats.int_min, INT64_MIN);
    CHECK_INT(stats.int_max, INT64_MAX);
    tensor.dtype = MU_DTYPE_UINT64;
    mu_stats_of(&tensor, &stats);
    CHECK_INT(stats.int_min, 0);
    CHECK((uint64_t)stats.int_max == UINT64_MAX);
    CHECK(stats.max == 0x1p64);
    count = tensor.elements = 2;
    mu_stats_of(&tensor, &stats);
    CHECK_INT(stats.int_min, INT64_MAX);
    CHECK((uint64_t)stats.int_max == 1ull << 63);
}

static void test_strides(void) {
    enum { ROWS = 130, COLUMNS = 170 };
    float *data = malloc(ROWS * COLUMNS * sizeof(*data));
    int64_t shapes[][3] = {{COLUMNS, ROWS, 1}, {ROWS, 85, 1}, {7, ROWS, COLUMNS}, {2, 3, 5}};
    int64_t strides[][3] = {{1, COLUMNS, 9}, {COLUMNS, 2, 0}, {0, COLUMNS, 1}, {0, 0, 0}};
    for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
        data[i] = i % 1000 == 999 ? INFINITY : (float)random_number();
    }
    for (int i = 0; i < 4; i++) {
        struct mu_tensor tensor = {.data = data,
                                   .shape = shapes[i],
                                   .strides = strides[i],
                                   .ndim = 3,
                                   .dtype = MU_DTYPE_FLOAT32};
        CHECK_INT(mu_tensor_check(&tensor, NULL), MU_OK);
        check_tensor(&tensor);
    }
    int64_t backwards = -1, count = ROWS * COLUMNS;
    struct mu_tensor tensor = {.data = data + count - 1,
                               .shape = &count,
                               .strides = &backwards,
                               .elements = count,
                               .ndim = 1,
                               .dtype = MU_DTYPE_FLOAT32};
    check_tensor(&tensor);
    free(data);
}

/* Parts of a tensor, merged, are the whole. */
static void test_merge(void) {
    enum { COUNT = 30000, CUT = 12345 };
    double *numbers = malloc(COUNT * sizeof(*numbers));
    int64_t left_count = CUT, right_count = COUNT - CUT;
    struct mu_tensor left = {.data = numbers,
                             .shape = &left_count,
                             .elements = CUT,
                             .ndim = 1,
                             .dtype = MU_DTYPE_FLOAT64};
    struct mu_tensor right = {.data = numbers + CUT,
                              .shape = &right_count,
                              .elements = COUNT - CUT,
                              .ndim = 1,
                              .dtype = MU_DTYPE_FLOAT64};
    struct mu_stats_part whole, part;
    struct mu_stats want, got;
    struct sums sums;
    for (int i = 0; i < COUNT; i++) {
        numbers[i] = 5 + random_number();
    }
    oracle(numbers, COUNT, 1, &want, &sums);
    mu_stats_part_clear(&whole);
    mu_stats_part_of(&left, &part);
    mu_stats_merge(&whole, &part);
    mu_stats_part_of(&right, &part);
    mu_stats_merge(&whole, &part);
    mu_stats_finish(&whole, &got);
    check_against(&got, &want, &sums);
    free(numbers);
}

int main(void) {
    if (!mu_cpu_has(MU_CPU_AVX512)) {
        printf("(no AVX-512 here: its logic only) ");
    }
    test_random_bits_of_every_type();
    test_plain_floats();
    test_far_means();
    test_squares_beyond_doubles();
    test_blocks_of_all_scales();
    test_extremes();
    test_floats_of_one_sign();
    test_equal_numbers();
    test_longs();
    test_strides();
    test_merge();
    return check_report();
}
