#include "compare/compare.h"

#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "compare/compare_block.h"

/* Elements that one thread takes at a time: enough that its start costs nothing. There are never
 * more than CHUNKS_MAX such pieces, so that their results stay small. */
enum { CHUNK_ELEMENTS = 32 * MU_COMPARE_BLOCK, CHUNKS_MAX = 1024 };

struct comparison {
    const struct mu_tensor *a, *b; /* borrowed */
    struct mu_compare_pair pair;
    int64_t chunk;                 /* elements */
    struct mu_compare_part *parts; /* one a chunk */
};

/* A block of doubles, which are the largest numbers that a kernel takes; a piece of the largest
 * elements takes half of it. */
enum { SCRATCH_BYTES = MU_COMPARE_BLOCK * sizeof(double) };
_Static_assert((int)SCRATCH_BYTES >= MU_COMPARE_PIECE * MU_MISMATCH_BYTES, "a piece must fit");

/* Walks over the blocks of both tensors in parallel. */
struct reader {
    struct mu_tensor_walk walk_a, walk_b;
    size_t size_a, size_b; /* bytes an element */
    const uint8_t *a, *b;  /* of the block: borrowed from the tensor or the scratch */
    size_t count;          /* its elements */
    int64_t next;          /* index behind it */
    uint8_t scratch_a[SCRATCH_BYTES];
    uint8_t scratch_b[SCRATCH_BYTES];
};

static void reader_start(struct reader *reader, const struct comparison *comparison, int64_t first,
                         int64_t count) {
    mu_tensor_walk_start(&reader->walk_a, comparison->a, first, count);
    mu_tensor_walk_start(&reader->walk_b, comparison->b, first, count);
    reader->size_a = mu_dtype_info(comparison->a->dtype)->size;
    reader->size_b = mu_dtype_info(comparison->b->dtype)->size;
    reader->count = 0;
    reader->next = first;
}

/* The next `most` elements, or what is left; false at the end. */
static bool reader_next(struct reader *reader, size_t most) {
    size_t bytes_a, bytes_b;
    reader->a =
        mu_tensor_walk_next(&reader->walk_a, reader->scratch_a, most * reader->size_a, &bytes_a);
    reader->b =
        mu_tensor_walk_next(&reader->walk_b, reader->scratch_b, most * reader->size_b, &bytes_b);
    reader->count = bytes_a / reader->size_a;
    reader->next += (int64_t)reader->count;
    return reader->count > 0;
}

static int64_t reader_first(const struct reader *reader) {
    return reader->next - (int64_t)reader->count;
}

/* --- one pass ----------------------------------------------------------------------------- */

static double sum_of(const double *lanes) {
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

static void compare_range(const struct comparison *comparison, int64_t first, int64_t count,
                          struct mu_compare_part *part) {
    struct reader reader;
    struct mu_compare_lanes lanes = {{0}, {0}, {0}, {0}};
    mu_compare_part_init(part);
    reader_start(&reader, comparison, first, count);
    while (reader_next(&reader, mu_compare_block_most(&comparison->pair))) {
        mu_compare_block(&comparison->pair, reader.a, reader.b, reader.count, reader_first(&reader),
                         &lanes, part);
    }
    part->sum_aa = sum_of(lanes.aa);
    part->sum_bb = sum_of(lanes.bb);
    part->sum_ab = sum_of(lanes.ab);
    part->sum_dd = sum_of(lanes.dd);
}

static int64_t chunk_end(const struct comparison *comparison, int64_t chunk) {
    int64_t end = (chunk + 1) * comparison->chunk;
    return end < comparison->a->elements ? end : comparison->a->elements;
}

static void compare_chunks(int64_t begin, int64_t end, void *context) {
    const struct comparison *comparison = context;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        int64_t first = chunk * comparison->chunk;
        compare_range(comparison, first, chunk_end(comparison, chunk) - first,
                      &comparison->parts[chunk]);
    }
}

/* --- what a pass leaves open -------------------------------------------------------------- */

/* Verdicts are computed for this many elements at a time, to keep the stack small. */
enum { VERDICTS_AT_ONCE = 64 };

/* On the elements that the reader holds, from number `i` of them on. */
static void verdicts_from(const struct comparison *comparison, const struct reader *reader,
                          size_t i, struct mu_compare_verdict *verdicts) {
    size_t left = reader->count - i;
    mu_compare_elements(&comparison->pair, reader->a + i * reader->size_a,
                        reader->b + i * reader->size_b,
                        left < VERDICTS_AT_ONCE ? left : VERDICTS_AT_ONCE, verdicts);
}

/* Compares what the reader holds once more, by itself. */
static struct mu_compare_part compare_again(const struct comparison *comparison,
                                            const struct reader *reader) {
    struct mu_compare_part found;
    struct mu_compare_lanes lanes = {{0}, {0}, {0}, {0}};
    mu_compare_part_init(&found);
    mu_compare_block(&comparison->pair, reader->a, reader->b, reader->count, reader_first(reader),
                     &lanes, &found);
    return found;
}

static bool has_max_abs(const struct mu_compare_verdict *verdict, const struct mu_diff *diff) {
    if (diff->integers) {
        return verdict->exact_error[0] == diff->max_exact[0] &&
               verdict->exact_error[1] == diff->max_exact[1];
    }
    return verdict->abs_error == diff->max_abs;
}

static bool has_max_rel(const struct mu_compare_verdict *verdict, const struct mu_diff *diff) {
    return verdict->rel_error == diff->max_rel;
}

typedef bool (*is_greatest)(const struct mu_compare_verdict *verdict, const struct mu_diff *diff);

/* The first of the elements that the reader holds with the greatest error, or their number. */
static size_t locate_in_piece(const struct comparison *comparison, const struct reader *reader,
                              is_greatest is, const struct mu_diff *diff) {
    struct mu_compare_verdict verdicts[VERDICTS_AT_ONCE];
    for (size_t i = 0; i < reader->count; i++) {
        if (i % VERDICTS_AT_ONCE == 0) {
            verdicts_from(comparison, reader, i, verdicts);
        }
        if (is(&verdicts[i % VERDICTS_AT_ONCE], diff)) {
            return i;
        }
    }
    return reader->count;
}

/* The first element, from `from` on, with the greatest error. It is at most a block away. */
static int64_t locate(const struct comparison *comparison, int64_t from, is_greatest is,
                      const struct mu_diff *diff) {
    struct reader reader;
    int64_t left = comparison->a->elements - from;
    reader_start(&reader, comparison, from, left < MU_COMPARE_BLOCK ? left : MU_COMPARE_BLOCK);
    while (reader_next(&reader, MU_COMPARE_PIECE)) {
        struct mu_compare_part found = compare_again(comparison, &reader);
        struct mu_compare_verdict worst = mu_compare_no_verdict();
        worst.abs_error = found.max_abs;
        worst.rel_error = found.max_rel;
        memcpy(worst.exact_error, found.max_exact, sizeof(worst.exact_error));
        if (is(&worst, diff)) {
            size_t i = locate_in_piece(comparison, &reader, is, diff);
            return i < reader.count ? reader_first(&reader) + (int64_t)i : from;
        }
    }
    return from;
}

static void add_to_list(const struct reader *reader, size_t i,
                        const struct mu_compare_options *options, struct mu_diff *diff) {
    struct mu_mismatch *mismatch = &options->list[diff->listed++];
    memset(mismatch, 0, sizeof(*mismatch));
    mismatch->index = reader_first(reader) + (int64_t)i;
    memcpy(mismatch->a, reader->a + i * reader->size_a, reader->size_a);
    memcpy(mismatch->b, reader->b + i * reader->size_b, reader->size_b);
}

static void list_block(const struct comparison *comparison, const struct reader *reader,
                       const struct mu_compare_options *options, struct mu_diff *diff) {
    struct mu_compare_verdict verdicts[VERDICTS_AT_ONCE];
    for (size_t i = 0; i < reader->count && diff->listed < options->list_max; i++) {
        if (i % VERDICTS_AT_ONCE == 0) {
            verdicts_from(comparison, reader, i, verdicts);
        }
        if (!verdicts[i % VERDICTS_AT_ONCE].close) {
            add_to_list(reader, i, options, diff);
        }
    }
}

/* Reads the blocks of a chunk again, from the first mismatch to the last one that is wanted. */
static void list_chunk(const struct comparison *comparison, int64_t chunk,
                       const struct mu_compare_options *options, struct mu_diff *diff) {
    struct reader reader;
    const struct mu_compare_part *part = &comparison->parts[chunk];
    int64_t end = diff->listed + part->mismatches;
    end = end < options->list_max ? end : options->list_max;
    reader_start(&reader, comparison, part->first_mismatch,
                 chunk_end(comparison, chunk) - part->first_mismatch);
    while (diff->listed < end && reader_next(&reader, MU_COMPARE_PIECE)) {
        if (compare_again(comparison, &reader).mismatches > 0) {
            list_block(comparison, &reader, options, diff);
        }
    }
}

static void finish(const struct comparison *comparison, int64_t chunks,
                   const struct mu_compare_options *options, struct mu_diff *diff) {
    struct mu_compare_part whole;
    mu_compare_part_init(&whole);
    for (int64_t i = 0; i < chunks; i++) {
        mu_compare_part_merge(&whole, &comparison->parts[i]);
    }
    mu_diff_of_part(&whole, comparison->a->elements, comparison->a->dtype, comparison->b->dtype,
                    diff);
    if (diff->max_abs_index >= 0) {
        diff->max_abs_index = locate(comparison, diff->max_abs_index, has_max_abs, diff);
    }
    if (diff->max_rel_index >= 0) {
        diff->max_rel_index = locate(comparison, diff->max_rel_index, has_max_rel, diff);
    }
    for (int64_t i = 0; i < chunks && diff->listed < options->list_max; i++) {
        if (comparison->parts[i].mismatches > 0) {
            list_chunk(comparison, i, options, diff);
        }
    }
}

/* --- the public functions ----------------------------------------------------------------- */

static double cosine_of(const struct mu_compare_part *part) {
    double product = part->sum_aa * part->sum_bb;
    double norms = product > 1e-280 && product < 1e300 ? sqrt(product)
                                                       : sqrt(part->sum_aa) * sqrt(part->sum_bb);
    double cosine = part->sum_ab / norms;
    return cosine > 1 ? 1 : cosine < -1 ? -1 : cosine;
}

static bool is_integer(int dtype) {
    return mu_dtype_info(dtype)->kind <= MU_KIND_INT;
}

void mu_diff_of_part(const struct mu_compare_part *part, int64_t elements, int dtype_a, int dtype_b,
                     struct mu_diff *diff) {
    *diff = (struct mu_diff){
        .elements = elements,
        .mismatches = part->mismatches,
        .sign_differences = part->sign_differences,
        .nan_disagreements = part->nan_disagreements,
        .inf_disagreements = part->inf_disagreements,
        .max_abs = part->max_abs,
        .max_exact = {part->max_exact[0], part->max_exact[1]},
        .max_abs_index = part->max_abs_index,
        .max_rel = part->max_rel,
        .max_rel_index = part->max_rel_index,
        .cosine = cosine_of(part),
        .sqnr_db = 10 * log10(part->sum_bb / part->sum_dd),
        .equal_bits = dtype_a == dtype_b && !part->bits_differ,
        .integers = is_integer(dtype_a) && is_integer(dtype_b),
    };
}

/* Epsilon and smallest number of the types of less than 16 bits, whose tolerance is one step. */
void mu_compare_default_tolerance(int dtype_a, int dtype_b, double *atol, double *rtol) {
    static const struct {
        double atol, rtol;
    } of[MU_DTYPE_COUNT] = {
        [MU_DTYPE_FLOAT16] = {1e-5, 1e-3},
        [MU_DTYPE_BFLOAT16] = {1e-5, 1.6e-2},
        [MU_DTYPE_FLOAT32] = {1e-5, 1.3e-6},
        [MU_DTYPE_FLOAT64] = {1e-7, 1e-7},
        [MU_DTYPE_COMPLEX32] = {1e-5, 1e-3},
        [MU_DTYPE_COMPLEX64] = {1e-5, 1.3e-6},
        [MU_DTYPE_COMPLEX128] = {1e-7, 1e-7},
        [MU_DTYPE_FLOAT8_E4M3FN] = {0x1p-9, 0x1p-3},
        [MU_DTYPE_FLOAT8_E4M3FNUZ] = {0x1p-10, 0x1p-3},
        [MU_DTYPE_FLOAT8_E5M2] = {0x1p-16, 0x1p-2},
        [MU_DTYPE_FLOAT8_E5M2FNUZ] = {0x1p-17, 0x1p-2},
        [MU_DTYPE_FLOAT4_E2M1FN_X2] = {0x1p-1, 0x1p-1},
    };
    *atol = fmax(of[dtype_a].atol, of[dtype_b].atol);
    *rtol = fmax(of[dtype_a].rtol, of[dtype_b].rtol);
}

MU_MUST_CHECK static int check_tolerance(const char *name, double value, struct mu_error *err) {
    if (!(value >= 0) || !mu_compare_is_finite(value)) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "%s must be a finite number from 0 on, not %g",
                            name, value);
    }
    return MU_OK;
}

MU_MUST_CHECK static int check_tensors(const struct mu_tensor *a, const struct mu_tensor *b,
                                       struct mu_error *err) {
    if (!mu_tensor_same_shape(a, b)) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "the tensors must have the same shape");
    }
    if (a->device != MU_DEVICE_CPU || b->device != MU_DEVICE_CPU) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "the tensors must be on the CPU");
    }
    if (a->dtype != b->dtype &&
        (a->dtype == MU_DTYPE_FLOAT4_E2M1FN_X2 || b->dtype == MU_DTYPE_FLOAT4_E2M1FN_X2)) {
        return mu_error_set(err, MU_ERR_ARGUMENT,
                            "float4_e2m1fn_x2, which holds two numbers an element, can only be "
                            "compared with its own type, not %s with %s",
                            mu_dtype_info(a->dtype)->name, mu_dtype_info(b->dtype)->name);
    }
    return MU_OK;
}

static int64_t chunk_elements(int64_t elements) {
    int64_t blocks = elements / CHUNKS_MAX / MU_COMPARE_BLOCK + 1;
    return blocks * MU_COMPARE_BLOCK > CHUNK_ELEMENTS ? blocks * MU_COMPARE_BLOCK : CHUNK_ELEMENTS;
}

int mu_compare(const struct mu_tensor *a, const struct mu_tensor *b,
               const struct mu_compare_options *options, struct mu_diff *diff,
               struct mu_error *err) {
    int code = check_tolerance("atol", options->tolerance.atol, err);
    code = code != MU_OK ? code : check_tolerance("rtol", options->tolerance.rtol, err);
    code = code != MU_OK ? code : check_tensors(a, b, err);
    if (code != MU_OK) {
        return code;
    }
    struct comparison comparison = {.a = a, .b = b, .chunk = chunk_elements(a->elements)};
    mu_compare_pair_init(&comparison.pair, a->dtype, b->dtype, &options->tolerance,
                         mu_compare_best());
    int64_t chunks = (a->elements + comparison.chunk - 1) / comparison.chunk;
    comparison.parts = calloc(chunks > 0 ? (size_t)chunks : 1, sizeof(*comparison.parts));
    if (comparison.parts == NULL) {
        return mu_error_no_memory(err, "the results of a comparison");
    }
    mu_parallel_for(chunks, 1, compare_chunks, &comparison);
    finish(&comparison, chunks, options, diff);
    free(comparison.parts);
    return MU_OK;
}
