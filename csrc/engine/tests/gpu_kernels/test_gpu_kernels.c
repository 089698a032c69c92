/* The source of the GPU kernels, run on the processor, against the functions for the processor. */
#include "tests/gpu_kernels/gpu_fixture.h"

#include <math.h>

#include "compare/compare.h"
#include "hash/tensor_hash.h"
#include "hash/tensor_hash_part.h"
#include "stats/nan_inf.h"
#include "stats/stats.h"

enum { BYTES = 1 << 18 };

static uint8_t *memory; /* aligned to 256 bytes, as an allocator of a GPU does it */

static void fill_random(void *memory, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        ((uint8_t *)memory)[i] = (uint8_t)(random_bits() >> 40);
    }
}

/* What every operation is tried with: views of the memory. */
struct view {
    int ndim;
    int64_t shape[6];
    int64_t strides[6];
    int64_t offset; /* elements */
};

static const struct view views[] = {
    {1, {0}, {1}, 0},
    {0, {0}, {0}, 3},
    {1, {1}, {1}, 0},
    {1, {5}, {1}, 0},
    {1, {16}, {1}, 0},
    {1, {4095}, {1}, 0},
    {1, {4096}, {1}, 0},
    {1, {4097}, {1}, 1},
    {1, {9000}, {1}, 0},
    {1, {9001}, {1}, 3},
    {1, {3000}, {3}, 2},
    {1, {3000}, {0}, 7},
    {2, {37, 61}, {1, 37}, 0},
    {2, {61, 37}, {64, 1}, 5},
    {3, {7, 11, 13}, {13, 91, 1}, 1},
    {3, {17, 1, 19}, {0, 5, 2}, 4},
    {2, {50, 0}, {1, 1}, 0},
    {4, {5, 6, 7, 8}, {1, 5, 30, 210}, 0},
    {5, {2, 3, 4, 5, 6}, {360, 1, 3, 12, 60}, 9},
    {2, {30, 40}, {-40, -1}, 1300},
    {6, {2, 3, 2, 3, 2, 3}, {1, 2, 6, 12, 36, 72}, 0},
};

enum { VIEWS = sizeof(views) / sizeof(views[0]) };

static struct mu_tensor view_of(int dtype, const struct view *view) {
    size_t size = mu_dtype_info(dtype)->size;
    return tensor_of(dtype, memory + (size_t)view->offset * size, view->ndim, view->shape,
                     view->strides);
}

static int enqueue(enum mu_gpu_operation operation, const struct mu_tensor *tensor, void *out) {
    return mu_gpu_enqueue_on(fixture_gpu, operation, tensor, NULL, out, NULL);
}

/* --- hash --------------------------------------------------------------------------------- */

static void check_hash(const struct mu_tensor *tensor) {
    struct mu_tensor moved = on_gpu(tensor);
    struct mu_digest want;
    uint64_t got[MU_GPU_HASH_WORDS] = {1, 2};
    mu_tensor_hash(tensor, &want);
    CHECK_INT(enqueue(MU_GPU_OP_HASH, &moved, got), MU_OK);
    CHECK_INT(got[0], want.lo);
    CHECK_INT(got[1], want.hi);
    struct mu_hash_part part;
    struct mu_hash_sums sums = {{1}, {2}};
    CHECK_INT(mu_hash_part_of(&part, tensor, tensor->shape, NULL, NULL), MU_OK);
    CHECK_INT(enqueue(MU_GPU_OP_SUMS, &moved, &sums), MU_OK);
    CHECK(memcmp(&sums, &part.sums, sizeof(sums)) == 0);
    mu_hash_part_free(&part);
}

static void test_hash_of_all_views(void) {
    static const int dtypes[] = {MU_DTYPE_UINT8, MU_DTYPE_BFLOAT16, MU_DTYPE_FLOAT32,
                                 MU_DTYPE_COMPLEX64, MU_DTYPE_COMPLEX128};
    fill_random(memory, BYTES);
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        for (int view = 0; view < VIEWS; view++) {
            struct mu_tensor tensor = view_of(dtypes[i], &views[view]);
            check_hash(&tensor);
        }
    }
}

static void test_hash_of_all_lengths(void) {
    for (int64_t bytes = 0; bytes < 80; bytes++) {
        struct mu_tensor tensor = tensor_of(MU_DTYPE_UINT8, memory, 1, &bytes, NULL);
        check_hash(&tensor);
    }
    for (int64_t bytes = 2 * 4096 - 18; bytes < 2 * 4096 + 18; bytes++) {
        struct mu_tensor tensor = tensor_of(MU_DTYPE_UINT8, memory, 1, &bytes, NULL);
        check_hash(&tensor);
    }
}

/* What a box adds, by the kernels and by the processor. */
static void check_box(const struct mu_tensor *tensor, const int64_t *shape, const int64_t *at) {
    struct mu_tensor moved = on_gpu(tensor);
    struct mu_hash_box box;
    struct mu_hash_part want, got;
    CHECK_INT(mu_hash_part_of(&want, tensor, shape, at, NULL), MU_OK);
    CHECK_INT(mu_hash_box_of(&box, &moved, shape, at, NULL), MU_OK);
    struct mu_hash_sums *found = malloc(mu_gpu_box_bytes(&box));
    if (CHECK(found != NULL)) {
        CHECK_INT(mu_gpu_box_on(fixture_gpu, &box, NULL, found, NULL), MU_OK);
        CHECK_INT(mu_hash_part_of_box(&got, &box, found, (const uint8_t *)(found + 1), NULL),
                  MU_OK);
        CHECK(memcmp(&want.sums, &got.sums, sizeof(want.sums)) == 0);
        CHECK_INT(got.bytes, want.bytes);
        CHECK_INT(got.cut_count, want.cut_count);
        for (size_t i = 0; i < got.cut_count && i < want.cut_count; i++) {
            CHECK(got.cuts[i].quad == want.cuts[i].quad && got.cuts[i].has == want.cuts[i].has &&
                  memcmp(got.cuts[i].bytes, want.cuts[i].bytes, sizeof(want.cuts[i].bytes)) == 0);
        }
        mu_hash_part_free(&got);
    }
    mu_hash_part_free(&want);
    free(found);
}

/* Boxes of up to three dimensions at random places of random wholes, row-major and transposed. */
static void test_hash_of_boxes(void) {
    static const int dtypes[] = {MU_DTYPE_UINT8, MU_DTYPE_BFLOAT16, MU_DTYPE_FLOAT32,
                                 MU_DTYPE_COMPLEX128};
    static const int64_t most[] = {1, 9000, 130, 20};
    uint64_t kept = random_state; /* the values of later tests are chosen */
    fill_random(memory, BYTES);
    for (int i = 0; i < 120; i++) {
        int ndim = 1 + i % 3, dtype = dtypes[i % 4];
        int64_t whole[3], shape[3], at[3], strides[3], step = 1;
        for (int dim = 0; dim < ndim; dim++) {
            whole[dim] = 1 + (int64_t)(random_bits() % (uint64_t)most[ndim]);
            at[dim] = (int64_t)(random_bits() % (uint64_t)whole[dim]);
            at[dim] = random_bits() % 3 == 0 ? 0 : at[dim];
            shape[dim] = (int64_t)(random_bits() % (uint64_t)(whole[dim] - at[dim] + 1));
            shape[dim] = random_bits() % 3 == 0 ? whole[dim] - at[dim] : shape[dim];
            strides[dim] = step; /* the first dimension is the innermost in memory */
            step *= shape[dim];
        }
        struct mu_tensor tensor = tensor_of(dtype, memory, ndim, shape, i % 2 ? strides : NULL);
        check_box(&tensor, whole, at);
    }
    random_state = kept;
}

/* Rows of whole blocks, at the beginning of a block and not. */
static void test_hash_of_runs(void) {
    static const int64_t whole = BYTES, counts[] = {4096, 8192, 3 * 4096 + 16, 3 * 4096 + 5};
    static const int64_t places[] = {0, 16, 4096, 4096 + 32, 4096 + 3, 8192};
    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < 6; j++) {
            struct mu_tensor tensor = tensor_of(MU_DTYPE_UINT8, memory, 1, &counts[i], NULL);
            check_box(&tensor, &whole, &places[j]);
        }
    }
}

/* More blocks than run at once: every warp takes several. */
static void test_hash_of_many_blocks(void) {
    const int64_t bytes = BYTES - 5;
    struct mu_tensor tensor = tensor_of(MU_DTYPE_UINT8, memory, 1, &bytes, NULL);
    struct mu_digest once;
    check_hash(&tensor);
    mu_tensor_hash(&tensor, &once);
    memory[BYTES / 2] ^= 1;
    check_hash(&tensor);
}

/* --- NaN and Inf -------------------------------------------------------------------------- */

static void check_nan_inf(const struct mu_tensor *tensor) {
    struct mu_tensor moved = on_gpu(tensor);
    int64_t want[MU_GPU_NAN_INF_WORDS];
    int64_t got[MU_GPU_NAN_INF_WORDS] = {7, 8, 9};
    mu_nan_inf_count(tensor, want);
    CHECK_INT(enqueue(MU_GPU_OP_NAN_INF, &moved, got), MU_OK);
    for (int i = 0; i < MU_GPU_NAN_INF_WORDS; i++) {
        CHECK_INT(got[i], want[i]);
    }
}

/* All of them, where there are no more than 65536. */
static void test_nan_inf_of_all_values(void) {
    for (size_t i = 0; i < 65536; i++) {
        ((uint16_t *)memory)[i] = (uint16_t)i;
    }
    const int64_t shape = 65536;
    for (int dtype = 0; dtype < MU_DTYPE_COUNT; dtype++) {
        struct mu_tensor tensor = tensor_of(dtype, memory, 1, &shape, NULL);
        if (tensor.elements * mu_dtype_info(dtype)->size <= BYTES) {
            check_nan_inf(&tensor);
        }
    }
}

/* Half of the exponents are all ones, so that each kind is there. */
static void fill_special(int dtype, size_t bytes) {
    static const uint64_t specials[] = {0x7FF0000000000000u, 0xFFF0000000000000u,
                                        0x7FF8000000000001u, 0xFFFFFFFFFFFFFFFFu,
                                        0x7FF0000000000001u};
    fill_random(memory, bytes);
    const struct mu_dtype_info *part = mu_dtype_info(mu_dtype_info(dtype)->part);
    for (size_t i = 0; part->size > 2 && i + 8 <= bytes; i += 8) {
        uint64_t chosen = specials[random_bits() % 5];
        if (random_bits() % 8 == 0 && part->size == 8) {
            memcpy(memory + i, &chosen, 8);
        } else if (random_bits() % 8 == 0 && part->size == 4) {
            uint32_t half =
                (uint32_t)(chosen >> 32) << 3 | (uint32_t)(chosen >> 63) << 31 | 0x7F800000u;
            memcpy(memory + i, &half, 4);
        }
    }
}

static void test_nan_inf_of_all_views(void) {
    for (int dtype = 0; dtype < MU_DTYPE_COUNT; dtype++) {
        fill_special(dtype, BYTES);
        for (int view = 0; view < VIEWS; view++) {
            struct mu_tensor tensor = view_of(dtype, &views[view]);
            check_nan_inf(&tensor);
        }
    }
}

/* --- statistics --------------------------------------------------------------------------- */

static int is_near(double got, double want, double bound) {
    return (isnan(got) && isnan(want)) || got == want || fabs(got - want) <= bound;
}

#define CHECK_NEAR(got, want, bound)                                                               \
    do {                                                                                           \
        if (!CHECK(is_near(got, want, bound))) {                                                   \
            fprintf(stderr, "    %.17g, not %.17g\n", (double)(got), (double)(want));              \
        }                                                                                          \
    } while (0)

static void check_stats_equal(const struct mu_stats *got, const struct mu_stats *want) {
    double magnitude = want->finite > 0 ? want->l1 / (double)want->finite : 0;
    CHECK_INT(got->count, want->count);
    CHECK_INT(got->finite, want->finite);
    CHECK_INT(got->zeros, want->zeros);
    CHECK_INT(got->nans, want->nans);
    CHECK_INT(got->pos_infs, want->pos_infs);
    CHECK_INT(got->neg_infs, want->neg_infs);
    CHECK_INT(got->first_nan, want->first_nan);
    CHECK_INT(got->first_inf, want->first_inf);
    CHECK_INT(got->int_min, want->int_min);
    CHECK_INT(got->int_max, want->int_max);
    CHECK_NEAR(got->min, want->min, 0);
    CHECK_NEAR(got->max, want->max, 0);
    CHECK_NEAR(got->abs_max, want->abs_max, 0);
    CHECK_NEAR(got->mean, want->mean, 1e-13 * magnitude);
    CHECK_NEAR(got->std, want->std, 1e-12 * want->std);
    CHECK_NEAR(got->l1, want->l1, 1e-13 * want->l1);
    CHECK_NEAR(got->l2, want->l2, 1e-13 * want->l2);
}

static void check_words(const double *words, const struct mu_stats *stats) {
    const double want[MU_GPU_STATS_WORDS] = {
        (double)stats->count,
        (double)stats->finite,
        stats->min,
        stats->max,
        stats->mean,
        stats->std,
        stats->l1,
        stats->l2,
        stats->abs_max,
        (double)stats->zeros,
        (double)stats->nans,
        (double)stats->pos_infs,
        (double)stats->neg_infs,
        (double)stats->first_nan,
        (double)stats->first_inf,
        0,
    };
    CHECK_BYTES(words, want, sizeof(want));
}

static void check_stats(const struct mu_tensor *tensor) {
    struct mu_tensor moved = on_gpu(tensor);
    struct mu_stats want, got;
    struct mu_stats_part part;
    double words[MU_GPU_STATS_WORDS];
    mu_stats_of(tensor, &want);
    CHECK_INT(enqueue(MU_GPU_OP_STATS, &moved, words), MU_OK);
    CHECK_INT(enqueue(MU_GPU_OP_STATS_PART, &moved, &part), MU_OK);
    mu_stats_finish_as(tensor->dtype, &part, &got);
    check_stats_equal(&got, &want);
    check_words(words, &got);
}

static void test_stats_of_all_views(void) {
    for (int dtype = 0; dtype < MU_DTYPE_COUNT; dtype++) {
        fill_special(dtype, BYTES);
        for (int view = 0; view < VIEWS; view++) {
            struct mu_tensor tensor = view_of(dtype, &views[view]);
            check_stats(&tensor);
        }
    }
}

/* Several blocks, and groups that are closed on the way. */
static void test_stats_of_many_numbers(void) {
    float *numbers = (float *)memory;
    const int64_t shape = BYTES / 4 - 3;
    struct mu_tensor tensor = tensor_of(MU_DTYPE_FLOAT32, memory, 1, &shape, NULL);
    for (int64_t i = 0; i < shape; i++) {
        numbers[i] = (float)(1e4 + 1e-2 * random_number());
    }
    check_stats(&tensor);
    numbers[shape / 2] = 1e30f;
    numbers[shape / 3] = (float)NAN;
    numbers[shape / 3 + 1] = -(float)INFINITY;
    check_stats(&tensor);
    const int64_t bytes = BYTES;
    struct mu_tensor small = tensor_of(MU_DTYPE_FLOAT8_E4M3FN, memory, 1, &bytes, NULL);
    check_stats(&small);
}

/* Numbers whose squares leave the range of a double, beside those that do not. */
static void test_stats_of_extremes(void) {
    double *numbers = (double *)memory;
    const int64_t shape = 5000;
    struct mu_tensor tensor = tensor_of(MU_DTYPE_FLOAT64, memory, 1, &shape, NULL);
    static const double scales[][2] = {{1e300, 1e300}, {1e-300, 1e-300}, {1e-310, 1e-310},
                                       {1, 1e-200},    {1e200, 1},       {0, 0}};
    for (size_t kind = 0; kind < sizeof(scales) / sizeof(scales[0]); kind++) {
        for (int64_t i = 0; i < shape; i++) {
            numbers[i] = random_number() * scales[kind][i % 2];
        }
        check_stats(&tensor);
    }
}

/* Strides do not show in the result, not in its last bit. */
static void test_stats_do_not_depend_on_strides(void) {
    float *numbers = (float *)memory;
    const int64_t shape[] = {83, 97};
    const int64_t strides[] = {1, 83};
    float *copy = (float *)(memory + BYTES / 2);
    for (int i = 0; i < 83 * 97; i++) {
        numbers[i] = (float)random_number();
        copy[i % 83 * 97 + i / 83] = numbers[i];
    }
    struct mu_tensor strided = on_gpu(&(struct mu_tensor){0});
    struct mu_tensor dense = strided;
    strided = tensor_of(MU_DTYPE_FLOAT32, numbers, 2, shape, strides);
    dense = tensor_of(MU_DTYPE_FLOAT32, copy, 2, shape, NULL);
    strided.device = dense.device = MU_DEVICE_CUDA;
    double words[2][MU_GPU_STATS_WORDS];
    CHECK_INT(enqueue(MU_GPU_OP_STATS, &strided, words[0]), MU_OK);
    CHECK_INT(enqueue(MU_GPU_OP_STATS, &dense, words[1]), MU_OK);
    CHECK_BYTES(words[0], words[1], sizeof(words[0]));
}

/* --- comparison --------------------------------------------------------------------------- */

enum { LIST_MAX = 12 };

static const struct mu_compare_tolerance tolerances[] = {
    {0, 0, 0}, {1e-3, 1e-5, 1}, {0.5, 0.25, 0}, {1e30, 1, 1}};

static void check_diff(const struct mu_diff *got, const struct mu_diff *want) {
    CHECK_INT(got->elements, want->elements);
    CHECK_INT(got->mismatches, want->mismatches);
    CHECK_INT(got->sign_differences, want->sign_differences);
    CHECK_INT(got->nan_disagreements, want->nan_disagreements);
    CHECK_INT(got->inf_disagreements, want->inf_disagreements);
    CHECK_NEAR(got->max_abs, want->max_abs, 0);
    CHECK_BYTES(got->max_exact, want->max_exact, sizeof(got->max_exact));
    CHECK_INT(got->max_abs_index, want->max_abs_index);
    CHECK_NEAR(got->max_rel, want->max_rel, 0);
    CHECK_INT(got->max_rel_index, want->max_rel_index);
    CHECK_NEAR(got->cosine, want->cosine, 1e-13);
    CHECK_NEAR(got->sqnr_db, want->sqnr_db, 1e-11);
    CHECK_INT(got->equal_bits, want->equal_bits);
    CHECK_INT(got->integers, want->integers);
}

static void check_list(const struct mu_mismatch *got, const struct mu_mismatch *want,
                       int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        CHECK_INT(got[i].index, want[i].index);
        CHECK_BYTES(got[i].a, want[i].a, MU_MISMATCH_BYTES);
        CHECK_BYTES(got[i].b, want[i].b, MU_MISMATCH_BYTES);
    }
}

static void check_compare(const struct mu_tensor *a, const struct mu_tensor *b,
                          const struct mu_compare_tolerance *tolerance) {
    struct mu_mismatch wanted[LIST_MAX];
    struct mu_compare_options options = {
        .tolerance = *tolerance, .list = wanted, .list_max = LIST_MAX};
    struct mu_diff want, got;
    struct mu_tensor moved[] = {on_gpu(a), on_gpu(b)};
    struct mu_gpu_diff *found = malloc(mu_gpu_diff_bytes(LIST_MAX));
    if (!CHECK(found != NULL)) {
        return;
    }
    CHECK_INT(mu_compare(a, b, &options, &want, NULL), MU_OK);
    CHECK_INT(mu_gpu_compare_on(fixture_gpu, &moved[0], &moved[1], tolerance, LIST_MAX, NULL, found,
                                NULL),
              MU_OK);
    mu_diff_of_part(&found->part, a->elements, a->dtype, b->dtype, &got);
    check_diff(&got, &want);
    if (CHECK_INT(found->listed, want.listed)) {
        check_list((const struct mu_mismatch *)mu_gpu_diff_list(found), wanted, want.listed);
    }
    free(found);
}

/* Every pair of types, on random bits of which some are alike. */
static void test_compare_all_pairs(void) {
    const int64_t shape[] = {23, 31};
    const int64_t strides[] = {1, 23};
    uint8_t *other = memory + BYTES / 2;
    for (int a = 0; a < MU_DTYPE_COUNT; a++) {
        for (int b = 0; b < MU_DTYPE_COUNT; b++) {
            int packed = (a == MU_DTYPE_FLOAT4_E2M1FN_X2) + (b == MU_DTYPE_FLOAT4_E2M1FN_X2);
            if (packed == 1) {
                continue;
            }
            fill_special(a, BYTES / 2);
            memcpy(other, memory, 16384);
            for (int i = 0; i < 400; i++) {
                other[random_bits() % 16384] ^= (uint8_t)(1 << random_bits() % 8);
            }
            struct mu_tensor left = tensor_of(a, memory, 2, shape, a % 3 == 0 ? strides : NULL);
            struct mu_tensor right = tensor_of(b, other, 2, shape, a % 3 == 0 ? strides : NULL);
            check_compare(&left, &right, &tolerances[(a + b) % 4]);
        }
    }
}

static void test_compare_all_views(void) {
    static const int dtypes[] = {MU_DTYPE_INT8, MU_DTYPE_FLOAT16, MU_DTYPE_FLOAT32,
                                 MU_DTYPE_COMPLEX128};
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        fill_special(dtypes[i], BYTES);
        for (int view = 0; view < VIEWS; view++) {
            struct mu_tensor left = view_of(dtypes[i], &views[view]);
            struct mu_tensor right = left;
            right.data = (const uint8_t *)left.data + 32 * mu_dtype_info(dtypes[i])->size;
            check_compare(&left, &right, &tolerances[view % 4]);
            check_compare(&left, &left, &tolerances[view % 4]);
        }
    }
}

/* Mismatches in a few of many chunks, also more of them than the list has room for. */
static void test_compare_lists_the_first(void) {
    static const int64_t places[][4] = {{0, 1, 2, 3},
                                        {4095, 4096, 20000, 30000},
                                        {32767, 32767, 32767, 32767},
                                        {8192, 12287, 12288, 32766}};
    const int64_t shape = BYTES / 8;
    float *left = (float *)memory;
    float *right = left + shape;
    struct mu_tensor a = tensor_of(MU_DTYPE_FLOAT32, left, 1, &shape, NULL);
    struct mu_tensor b = tensor_of(MU_DTYPE_FLOAT32, right, 1, &shape, NULL);
    for (size_t kind = 0; kind < 4; kind++) {
        for (int64_t i = 0; i < shape; i++) {
            left[i] = right[i] = (float)random_number();
        }
        for (int i = 0; i < 4; i++) {
            right[places[kind][i]] += 1;
        }
        check_compare(&a, &b, &tolerances[0]);
    }
    for (int64_t i = 300; i < shape; i += 700) {
        right[i] = (float)i;
    }
    check_compare(&a, &b, &tolerances[1]);
}

static void test_compare_refuses(void) {
    const int64_t shape = 6, other = 7;
    struct mu_tensor a = tensor_of(MU_DTYPE_FLOAT32, memory, 1, &shape, NULL);
    struct mu_tensor b = tensor_of(MU_DTYPE_FLOAT32, memory, 1, &other, NULL);
    struct mu_tensor moved[] = {on_gpu(&a), on_gpu(&b)};
    struct mu_gpu_diff found;
    CHECK_INT(
        mu_gpu_compare_on(fixture_gpu, &moved[0], &moved[1], &tolerances[0], 0, NULL, &found, NULL),
        MU_ERR_ARGUMENT);
    CHECK_INT(mu_gpu_compare_on(fixture_gpu, &moved[0], &a, &tolerances[0], 0, NULL, &found, NULL),
              MU_ERR_ARGUMENT);
    CHECK_INT(mu_gpu_compare_on(fixture_gpu, &a, &a, &tolerances[0], 0, NULL, &found, NULL),
              MU_ERR_ARGUMENT);
}

int main(void) {
    memory = aligned_alloc(256, BYTES);
    if (memory == NULL) {
        return 1;
    }
    fake_fakeCudaMakeCurrent(0);
    fixture_open("");
    test_hash_of_all_views();
    test_hash_of_all_lengths();
    test_hash_of_boxes();
    test_hash_of_runs();
    test_hash_of_many_blocks();
    test_nan_inf_of_all_values();
    test_nan_inf_of_all_views();
    test_stats_of_all_views();
    test_stats_of_many_numbers();
    test_stats_of_extremes();
    test_stats_do_not_depend_on_strides();
    test_compare_all_pairs();
    test_compare_all_views();
    test_compare_lists_the_first();
    test_compare_refuses();
    fixture_close();
    free(memory);
    return check_report();
}
