#include <math.h>
#include <stdlib.h>

#include "base/cpu.h"
#include "compare/compare.h"
#include "compare/compare_block.h"
#include "tensor/decode.h"
#include "tests/check.h"

/* The widest vectors, split by the compiler into what this machine has. */
#define MU_VECTOR_BYTES 64
#include "compare/compare_lanes.h"

static const struct mu_compare_kernels split_vectors = COMPARE_KERNELS;

struct variant {
    const char *name;
    const struct mu_compare_kernels *kernels; /* NULL: this machine cannot run them */
};

static struct variant variants[] = {
    {"portable", &mu_compare_portable},
    {"split vectors", &split_vectors},
    {"AVX2", NULL},
    {"AVX-512", NULL},
    {"NEON", NULL},
};

enum { VARIANTS = sizeof(variants) / sizeof(variants[0]) };

static void find_variants(void) {
#ifdef __x86_64__
    if (mu_cpu_has(MU_CPU_AVX2)) {
        variants[2].kernels = &mu_compare_avx2;
    }
    if (mu_cpu_has(MU_CPU_AVX512)) {
        variants[3].kernels = &mu_compare_avx512;
    }
#elif defined(__aarch64__)
    variants[4].kernels = &mu_compare_neon;
    CHECK(mu_compare_best() == &mu_compare_neon);
#endif
    for (int i = 0; i < VARIANTS; i++) {
        if (variants[i].kernels == NULL) {
            printf("(no %s here) ", variants[i].name);
        }
    }
}

static uint64_t random_state = 1;

static uint64_t random_bits(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state >> 32 ^ random_state << 16;
}

static int same_double(double x, double y) {
    return memcmp(&x, &y, sizeof(x)) == 0;
}

/* --- the kernels against element by element ----------------------------------------------- */

static const int kernel_dtypes[MU_COMPARE_TYPES] = {
    [MU_COMPARE_F16] = MU_DTYPE_FLOAT16,
    [MU_COMPARE_BF16] = MU_DTYPE_BFLOAT16,
    [MU_COMPARE_F32] = MU_DTYPE_FLOAT32,
    [MU_COMPARE_F64] = MU_DTYPE_FLOAT64,
};

/* Keeps the bits that make an exponent of all ones from being one: no NaN, no infinity. */
static void make_finite(int dtype, uint8_t *element) {
    size_t size = mu_dtype_info(dtype)->size;
    element[size - 1] &= dtype == MU_DTYPE_FLOAT16 ? 0xBF : 0xDF;
}

/* `b` is `a` but for some last bits, signs and whole elements; all of it finite. */
static void fill(int dtype, uint8_t *a, uint8_t *b, size_t count) {
    size_t size = mu_dtype_info(dtype)->size;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = random_bits() ^ random_bits() << 32;
        bits = random_bits() % 8 == 0 ? 0 : bits;
        memcpy(a + i * size, &bits, size);
        uint64_t kind = random_bits() % 8;
        bits = kind == 0 ? random_bits() ^ random_bits() << 32 : kind < 4 ? bits ^ kind : bits;
        memcpy(b + i * size, &bits, size);
        b[i * size + size - 1] ^= kind == 4 ? 0x80 : 0;
        make_finite(dtype, a + i * size);
        make_finite(dtype, b + i * size);
    }
}

static void add_verdicts(const struct mu_compare_verdict *verdicts, size_t count,
                         struct mu_compare_lanes *lanes, struct mu_compare_part *part) {
    for (size_t i = 0; i < count; i++) {
        size_t lane = i % MU_COMPARE_LANES;
        mu_compare_part_add(part, &verdicts[i], (int64_t)i);
        lanes->aa[lane] += verdicts[i].sum_aa;
        lanes->bb[lane] += verdicts[i].sum_bb;
        lanes->ab[lane] += verdicts[i].sum_ab;
        lanes->dd[lane] += verdicts[i].sum_dd;
    }
}

static void check_kernel(const struct variant *variant, int type, bool over_atol) {
    enum { COUNT = 512 };
    static uint8_t a[8 * COUNT + 1], b[8 * COUNT + 1];
    int dtype = kernel_dtypes[type];
    struct mu_compare_tolerance tolerance = {.atol = 1e-3, .rtol = 1e-2};
    struct mu_compare_pair pair;
    static struct mu_compare_verdict verdicts[COUNT];
    struct mu_compare_lanes lanes = {{0}, {0}, {0}, {0}};
    struct mu_compare_part part;
    fill(dtype, a + 1, b + 1, COUNT); /* not aligned */
    mu_compare_pair_init(&pair, dtype, dtype, &tolerance, variant->kernels);
    mu_compare_elements(&pair, a + 1, b + 1, COUNT, verdicts);
    mu_compare_part_init(&part);
    add_verdicts(verdicts, COUNT, &lanes, &part);

    struct mu_compare_block block = {.atol = tolerance.atol,
                                     .rtol = tolerance.rtol,
                                     .over_atol = over_atol,
                                     .max_rel_before = nextafter(part.max_rel, 0)};
    variant->kernels->compare[type](a + 1, b + 1, COUNT, &block);
    CHECK_BYTES(&block.lanes, &lanes, sizeof(lanes));
    CHECK(same_double(block.max_abs, part.max_abs));
    CHECK(same_double(block.max_rel, part.max_rel));
    CHECK_INT(block.mismatches, part.mismatches);
    CHECK_INT(block.sign_differences, part.sign_differences);
    CHECK(part.mismatches > 0 && part.sign_differences > 0);

    block.max_rel_before = part.max_rel;
    variant->kernels->compare[type](a + 1, b + 1, COUNT, &block);
    CHECK(block.max_rel == 0 || block.max_rel == part.max_rel);
}

static void check_squares(const struct variant *variant, int type) {
    enum { COUNT = 64 };
    uint8_t a[8 * COUNT], b[8 * COUNT];
    fill(kernel_dtypes[type], a, b, COUNT);
    struct mu_compare_block block = {0};
    struct mu_compare_lanes lanes = {{0}, {0}, {0}, {0}};
    variant->kernels->compare[type](a, a, COUNT, &block);
    variant->kernels->squares[type](a, COUNT, &lanes);
    CHECK_BYTES(&lanes, &block.lanes, sizeof(lanes));
    CHECK_INT(block.mismatches, 0);
    CHECK_INT(block.sign_differences, 0);
}

/* Relative errors of tiny numbers: where a product with the limit is not a normal double. */
static void check_denormals(const struct variant *variant) {
    double a[MU_COMPARE_LANES] = {0}, b[MU_COMPARE_LANES] = {0};
    for (int step = 0; step < 60; step++) {
        b[3] = ldexp(1 + step / 64.0, -1060);
        a[3] = b[3] + ldexp(1, -1074);
        struct mu_compare_block block = {0};
        double wanted = (a[3] - b[3]) / b[3];
        block.max_rel_before = nextafter(wanted, 0);
        variant->kernels->compare[MU_COMPARE_F64](a, b, MU_COMPARE_LANES, &block);
        CHECK(same_double(block.max_rel, wanted));
    }
}

static void test_kernels(void) {
    for (int i = 0; i < VARIANTS; i++) {
        if (variants[i].kernels == NULL) {
            continue;
        }
        for (int type = 0; type < MU_COMPARE_TYPES; type++) {
            for (int round = 0; round < 20; round++) {
                check_kernel(&variants[i], type, round % 2);
                check_squares(&variants[i], type);
            }
        }
        check_denormals(&variants[i]);
    }
}

/* A block with NaNs and infinities gives the same whichever kernel turns it down. */
static void test_blocks_that_are_not_finite(void) {
    enum { COUNT = 100 };
    float a[COUNT], b[COUNT];
    for (int i = 0; i < COUNT; i++) {
        a[i] = (float)i / 7;
        b[i] = i % 9 == 0 ? NAN : i % 10 == 0 ? -INFINITY : a[i] * 1.001f;
    }
    a[9] = NAN;
    a[10] = INFINITY;
    a[20] = -INFINITY;
    for (int i = 0; i < VARIANTS; i++) {
        if (variants[i].kernels == NULL) {
            continue;
        }
        struct mu_compare_tolerance tolerance = {.rtol = 0.1, .equal_nan = 1};
        struct mu_compare_pair pair;
        struct mu_compare_lanes lanes = {{0}, {0}, {0}, {0}};
        struct mu_compare_part part;
        mu_compare_part_init(&part);
        mu_compare_pair_init(&pair, MU_DTYPE_FLOAT32, MU_DTYPE_FLOAT32, &tolerance,
                             variants[i].kernels);
        mu_compare_block(&pair, (uint8_t *)a, (uint8_t *)b, COUNT, 1000, &lanes, &part);
        CHECK_INT(part.nan_disagreements, 11);
        CHECK_INT(part.inf_disagreements, 7);
        CHECK_INT(part.mismatches, 18);
        CHECK_INT(part.first_mismatch, 1000);
        CHECK(isfinite(lanes.aa[0]) && isfinite(lanes.dd[1]));
        CHECK(part.bits_differ != 0);
    }
}

/* --- 64-bit integers ---------------------------------------------------------------------- */

static struct mu_tensor vector_of(int dtype, const void *data, const int64_t *count) {
    struct mu_tensor tensor = {.data = data, .shape = count, .ndim = 1, .dtype = (uint8_t)dtype};
    CHECK_INT(mu_tensor_check(&tensor, NULL), MU_OK);
    return tensor;
}

static struct mu_diff compare_one(int dtype_a, const void *a, int dtype_b, const void *b,
                                  double atol, double rtol) {
    const int64_t one = 1;
    struct mu_tensor left = vector_of(dtype_a, a, &one), right = vector_of(dtype_b, b, &one);
    struct mu_compare_options options = {.tolerance = {.atol = atol, .rtol = rtol}};
    struct mu_diff diff;
    CHECK_INT(mu_compare(&left, &right, &options, &diff, NULL), MU_OK);
    return diff;
}

/* The place of the worst and the list are those of the elements, in whichever piece of a block they
 * lie, also where a NaN sends the block to the pieces. */
static void test_worst_in_every_piece(void) {
    enum { COUNT = 2 * MU_COMPARE_BLOCK + MU_COMPARE_PIECE + 3, NAN_AT = MU_COMPARE_BLOCK + 77 };
    static const int64_t places[] = {0,
                                     MU_COMPARE_PIECE - 1,
                                     MU_COMPARE_PIECE,
                                     MU_COMPARE_BLOCK - 1,
                                     MU_COMPARE_BLOCK,
                                     NAN_AT + 1,
                                     2 * MU_COMPARE_BLOCK - 1,
                                     COUNT - 4,
                                     COUNT - 1};
    static float a[COUNT], b[COUNT];
    const int64_t count = COUNT;
    for (int i = 0; i < COUNT; i++) {
        a[i] = b[i] = (float)(i % 13) - 6;
    }
    for (size_t p = 0; p < 2 * sizeof(places) / sizeof(places[0]); p++) {
        struct mu_mismatch list[4];
        int64_t place = places[p / 2], mismatches = 1 + (int64_t)(p % 2);
        struct mu_compare_options options = {
            .tolerance = {.atol = 0.5}, .list = list, .list_max = 4};
        struct mu_diff diff;
        struct mu_tensor left = vector_of(MU_DTYPE_FLOAT32, a, &count);
        struct mu_tensor right = vector_of(MU_DTYPE_FLOAT32, b, &count);
        float before = b[place], at_nan = b[NAN_AT];
        b[place] = 100;
        b[NAN_AT] = p % 2 == 1 ? NAN : at_nan;
        CHECK_INT(mu_compare(&left, &right, &options, &diff, NULL), MU_OK);
        CHECK_INT(diff.max_abs_index, place);
        CHECK_INT(diff.max_rel_index, place);
        CHECK_INT(diff.mismatches, mismatches);
        CHECK_INT(diff.listed, mismatches);
        CHECK_INT(list[p % 2 == 1 && place > NAN_AT].index, place);
        CHECK(diff.max_abs == 100 - (double)a[place]);
        b[place] = before;
        b[NAN_AT] = at_nan;
    }
}

static void test_integers_exactly(void) {
    const int64_t low = INT64_MIN, big = (int64_t)1 << 62, bigger = big + 1, minus = -1;
    const uint64_t high = UINT64_MAX;
    struct mu_diff diff = compare_one(MU_DTYPE_INT64, &low, MU_DTYPE_UINT64, &high, 0, 0);
    CHECK_INT(diff.max_exact[0], INT64_MAX);
    CHECK_INT(diff.max_exact[1], 1);
    CHECK_INT(diff.sign_differences, 1);
    CHECK(diff.integers && diff.max_abs == 0x1.8p64);
    diff = compare_one(MU_DTYPE_INT64, &big, MU_DTYPE_INT64, &bigger, 0, 0);
    CHECK_INT(diff.max_exact[0], 1);
    CHECK_INT(diff.mismatches, 1);
    diff = compare_one(MU_DTYPE_INT64, &big, MU_DTYPE_INT64, &bigger, 1, 0);
    CHECK_INT(diff.mismatches, 0);
    diff = compare_one(MU_DTYPE_INT64, &minus, MU_DTYPE_UINT64, &high, 0, 0);
    CHECK_INT(diff.max_exact[0], 0);
    CHECK_INT(diff.max_exact[1], 1);
    diff = compare_one(MU_DTYPE_INT64, &minus, MU_DTYPE_UINT64, &high, 0x1p64, 0);
    CHECK_INT(diff.mismatches, 0);
    diff = compare_one(MU_DTYPE_INT64, &minus, MU_DTYPE_UINT64, &high, 0x1.fffffffffffffp63, 0);
    CHECK_INT(diff.mismatches, 1);
}

static void test_integers_with_floats(void) {
    const int64_t odd = ((int64_t)1 << 53) + 1;
    const double even = 0x1p53, above = 0x1p53 + 2;
    struct mu_diff diff = compare_one(MU_DTYPE_INT64, &odd, MU_DTYPE_FLOAT64, &even, 0, 0);
    CHECK(diff.max_abs == 1 && diff.mismatches == 1 && !diff.integers);
    diff = compare_one(MU_DTYPE_FLOAT64, &above, MU_DTYPE_INT64, &odd, 0, 0);
    CHECK(diff.max_abs == 1 && diff.mismatches == 1);
    diff = compare_one(MU_DTYPE_FLOAT64, &above, MU_DTYPE_INT64, &odd, 1, 0);
    CHECK_INT(diff.mismatches, 0);
    const uint64_t top = UINT64_MAX;
    const double two64 = 0x1p64;
    diff = compare_one(MU_DTYPE_UINT64, &top, MU_DTYPE_FLOAT64, &two64, 0, 0);
    CHECK(diff.max_abs == 1);
    const int64_t bottom = INT64_MIN;
    const double minus_two63 = -0x1p63;
    diff = compare_one(MU_DTYPE_INT64, &bottom, MU_DTYPE_FLOAT64, &minus_two63, 0, 0);
    CHECK(diff.max_abs == 0 && diff.mismatches == 0);
}

/* --- whole tensors ------------------------------------------------------------------------ */

enum { MANY = 300000 };

/* Mismatches in the last element of one chunk, the first of the next, and far away. */
static void test_list_over_chunks(void) {
    float *a = calloc(MANY, sizeof(*a)), *b = calloc(MANY, sizeof(*b));
    const int64_t count = MANY;
    const int64_t places[] = {5, 6, 131071, 131072, 262143, 299999};
    struct mu_mismatch list[8];
    struct mu_tensor left = vector_of(MU_DTYPE_FLOAT32, a, &count);
    struct mu_tensor right = vector_of(MU_DTYPE_FLOAT32, b, &count);
    for (int i = 0; i < 6; i++) {
        a[places[i]] = (float)(i + 1);
    }
    b[299999] = 1;
    for (int64_t list_max = 0; list_max <= 8; list_max++) {
        struct mu_compare_options options = {.list = list, .list_max = list_max};
        struct mu_diff diff;
        CHECK_INT(mu_compare(&left, &right, &options, &diff, NULL), MU_OK);
        CHECK_INT(diff.mismatches, 6);
        CHECK_INT(diff.listed, list_max < 6 ? list_max : 6);
        for (int64_t i = 0; i < diff.listed; i++) {
            CHECK_INT(list[i].index, places[i]);
            CHECK_BYTES(list[i].a, &a[places[i]], sizeof(float));
            CHECK_BYTES(list[i].b, &b[places[i]], sizeof(float));
        }
        CHECK(diff.max_abs == 5 && diff.max_rel == 5);
        CHECK_INT(diff.max_abs_index, 262143);
        CHECK_INT(diff.max_rel_index, 299999);
        CHECK(!diff.equal_bits);
    }
    free(a);
    free(b);
}

static void test_equal_bits(void) {
    const int64_t count = 1000;
    double a[1000] = {0}, b[1000] = {0};
    struct mu_tensor left = vector_of(MU_DTYPE_FLOAT64, a, &count);
    struct mu_tensor right = vector_of(MU_DTYPE_FLOAT64, b, &count);
    struct mu_compare_options options = {.tolerance = {.equal_nan = 1}};
    struct mu_diff diff;
    for (int i = 0; i < count; i++) {
        a[i] = b[i] = i % 50 == 0 ? NAN : i;
    }
    CHECK_INT(mu_compare(&left, &right, &options, &diff, NULL), MU_OK);
    CHECK(diff.equal_bits && diff.mismatches == 0 && diff.cosine == 1 && isinf(diff.sqnr_db));
    CHECK_INT(diff.max_abs_index, -1);
    options.tolerance.equal_nan = 0;
    CHECK_INT(mu_compare(&left, &right, &options, &diff, NULL), MU_OK);
    CHECK(diff.equal_bits && diff.mismatches == 20);
    a[999] = 0.0;
    b[999] = -0.0;
    CHECK_INT(mu_compare(&left, &right, &options, &diff, NULL), MU_OK);
    CHECK(!diff.equal_bits && diff.mismatches == 20);
    CHECK_INT(diff.sign_differences, 0);
}

static void test_strides(void) {
    enum { ROWS = 300, COLUMNS = 700 };
    int16_t *matrix = malloc(ROWS * COLUMNS * sizeof(*matrix));
    double *transposed = malloc(ROWS * COLUMNS * sizeof(*transposed));
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        matrix[i] = (int16_t)random_bits();
        transposed[i % COLUMNS * ROWS + i / COLUMNS] = matrix[i];
    }
    transposed[5 * ROWS + 7] += 0.5;
    const int64_t shape[] = {ROWS, COLUMNS}, strides[] = {1, ROWS};
    struct mu_tensor a = {.data = matrix, .shape = shape, .ndim = 2, .dtype = MU_DTYPE_INT16};
    struct mu_tensor b = {.data = transposed,
                          .shape = shape,
                          .strides = strides,
                          .ndim = 2,
                          .dtype = MU_DTYPE_FLOAT64};
    CHECK_INT(mu_tensor_check(&a, NULL), MU_OK);
    CHECK_INT(mu_tensor_check(&b, NULL), MU_OK);
    struct mu_compare_options options = {.list = NULL};
    struct mu_diff diff;
    CHECK_INT(mu_compare(&a, &b, &options, &diff, NULL), MU_OK);
    CHECK_INT(diff.mismatches, 1);
    CHECK_INT(diff.max_abs_index, 7 * COLUMNS + 5);
    CHECK(diff.max_abs == 0.5 && !diff.equal_bits);
    free(matrix);
    free(transposed);
}

static void test_nothing_to_compare(void) {
    const int64_t none = 0;
    struct mu_tensor a = vector_of(MU_DTYPE_FLOAT32, NULL, &none);
    struct mu_compare_options options = {.list = NULL};
    struct mu_diff diff;
    CHECK_INT(mu_compare(&a, &a, &options, &diff, NULL), MU_OK);
    CHECK(diff.elements == 0 && diff.mismatches == 0 && diff.equal_bits);
    CHECK(isnan(diff.cosine) && isnan(diff.sqnr_db) && diff.max_abs == 0);
}

/* --- refusals ----------------------------------------------------------------------------- */

static void check_refusal(const struct mu_tensor *a, const struct mu_tensor *b, double atol,
                          double rtol, const char *message) {
    struct mu_compare_options options = {.tolerance = {.atol = atol, .rtol = rtol}};
    struct mu_diff diff;
    struct mu_error err;
    CHECK_INT(mu_compare(a, b, &options, &diff, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, message);
}

static void test_refusals(void) {
    const uint8_t bytes[8] = {0};
    const int64_t two = 2, four = 4;
    struct mu_tensor a = vector_of(MU_DTYPE_UINT8, bytes, &four);
    struct mu_tensor shorter = vector_of(MU_DTYPE_UINT8, bytes, &two);
    struct mu_tensor packed = vector_of(MU_DTYPE_FLOAT4_E2M1FN_X2, bytes, &four);
    struct mu_tensor on_gpu = a;
    on_gpu.device = MU_DEVICE_CUDA;
    check_refusal(&a, &shorter, 0, 0, "the tensors must have the same shape");
    check_refusal(&a, &on_gpu, 0, 0, "the tensors must be on the CPU");
    check_refusal(&a, &a, -1, 0, "atol must be a finite number from 0 on, not -1");
    check_refusal(&a, &a, 0, NAN, "rtol must be a finite number from 0 on, not nan");
    check_refusal(&a, &packed, 0, 0,
                  "float4_e2m1fn_x2, which holds two numbers an element, can only be compared with "
                  "its own type, not uint8 with float4_e2m1fn_x2");
}

static void test_default_tolerances(void) {
    double atol, rtol;
    mu_compare_default_tolerance(MU_DTYPE_FLOAT32, MU_DTYPE_BFLOAT16, &atol, &rtol);
    CHECK(atol == 1e-5 && rtol == 1.6e-2);
    mu_compare_default_tolerance(MU_DTYPE_INT32, MU_DTYPE_BOOL, &atol, &rtol);
    CHECK(atol == 0 && rtol == 0);
    mu_compare_default_tolerance(MU_DTYPE_FLOAT8_E4M3FN, MU_DTYPE_FLOAT8_E4M3FN, &atol, &rtol);
    CHECK(atol == (double)mu_float8_e4m3fn_value(1) && rtol == 0.125);
}

int main(void) {
    find_variants();
    test_kernels();
    test_blocks_that_are_not_finite();
    test_worst_in_every_piece();
    test_integers_exactly();
    test_integers_with_floats();
    test_list_over_chunks();
    test_equal_bits();
    test_strides();
    test_nothing_to_compare();
    test_refusals();
    test_default_tolerances();
    return check_report();
}
