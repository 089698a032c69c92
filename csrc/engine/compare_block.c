#include "compare_block.h"

#include <string.h>

#include "decode.h"
#include "tensor.h"

/* Both sides of a block as doubles; `raw` for the 64-bit integers, which may not fit. */
struct decoded {
    const struct mu_compare_pair *pair;
    const uint8_t *raw_a, *raw_b; /* borrowed */
    double a[2 * MU_COMPARE_BLOCK], b[2 * MU_COMPARE_BLOCK];
};

static bool is_wide(int dtype) {
    return dtype == MU_DTYPE_INT64 || dtype == MU_DTYPE_UINT64;
}

static bool is_integer(int dtype) {
    return mu_dtype_info(dtype)->kind <= MU_KIND_INT;
}

static int kernel_of(int dtype) {
    switch (dtype) {
    case MU_DTYPE_FLOAT16:
        return MU_COMPARE_F16;
    case MU_DTYPE_BFLOAT16:
        return MU_COMPARE_BF16;
    case MU_DTYPE_FLOAT32:
        return MU_COMPARE_F32;
    case MU_DTYPE_FLOAT64:
        return MU_COMPARE_F64;
    default:
        return -1;
    }
}

void mu_compare_pair_init(struct mu_compare_pair *pair, int dtype_a, int dtype_b,
                          const struct mu_compare_tolerance *tolerance,
                          const struct mu_compare_kernels *kernels) {
    pair->tolerance = *tolerance;
    pair->kernels = kernels;
    pair->kernel = dtype_a == dtype_b ? kernel_of(dtype_a) : -1;
    pair->dtype_a = (uint8_t)dtype_a;
    pair->dtype_b = (uint8_t)dtype_b;
    pair->integers = is_integer(dtype_a) && is_integer(dtype_b);
    pair->wide = is_wide(dtype_a) || is_wide(dtype_b);
    pair->single = mu_dtype_info(dtype_a)->parts == 1 && mu_dtype_info(dtype_b)->parts == 1;
}

/* --- element by element ------------------------------------------------------------------- */

static struct mu_compare_integer integer_at(int dtype, const uint8_t *raw, const double *decoded,
                                            size_t i) {
    uint64_t bits;
    if (!is_wide(dtype)) {
        return mu_compare_signed((int64_t)decoded[i]);
    }
    memcpy(&bits, raw + 8 * i, sizeof(bits));
    return dtype == MU_DTYPE_INT64 ? mu_compare_signed((int64_t)bits) : mu_compare_unsigned(bits);
}

/* The imaginary part of a number that has none is 0. */
static struct mu_compare_wide number_at(int dtype, const uint8_t *raw, const double *decoded,
                                        size_t i, size_t part) {
    size_t parts = mu_dtype_info(dtype)->parts;
    if (part >= parts) {
        return mu_compare_narrow(0);
    }
    if (is_wide(dtype)) {
        return mu_compare_widen(integer_at(dtype, raw, decoded, i));
    }
    return mu_compare_narrow(decoded[parts * i + part]);
}

static struct mu_compare_verdict verdict_at(const struct decoded *block, size_t i) {
    const struct mu_compare_pair *pair = block->pair;
    const struct mu_compare_tolerance *tolerance = &pair->tolerance;
    if (pair->integers) {
        return mu_compare_integers(tolerance, integer_at(pair->dtype_a, block->raw_a, block->a, i),
                                   integer_at(pair->dtype_b, block->raw_b, block->b, i));
    }
    struct mu_compare_wide a[2], b[2];
    for (size_t part = 0; part < 2; part++) {
        a[part] = number_at(pair->dtype_a, block->raw_a, block->a, i, part);
        b[part] = number_at(pair->dtype_b, block->raw_b, block->b, i, part);
    }
    if (pair->single) {
        return mu_compare_numbers(tolerance, a[0], b[0]);
    }
    if (pair->dtype_a == MU_DTYPE_FLOAT4_E2M1FN_X2) {
        return mu_compare_both(mu_compare_numbers(tolerance, a[0], b[0]),
                               mu_compare_numbers(tolerance, a[1], b[1]));
    }
    return mu_compare_complex(tolerance, a, b);
}

static void decode(struct decoded *block, const struct mu_compare_pair *pair, const uint8_t *a,
                   const uint8_t *b, size_t count) {
    block->pair = pair;
    block->raw_a = a;
    block->raw_b = b;
    mu_decode_doubles(pair->dtype_a, a, count, block->a);
    mu_decode_doubles(pair->dtype_b, b, count, block->b);
}

void mu_compare_elements(const struct mu_compare_pair *pair, const uint8_t *a, const uint8_t *b,
                         size_t count, struct mu_compare_verdict *verdicts) {
    struct decoded block;
    decode(&block, pair, a, b, count);
    for (size_t i = 0; i < count; i++) {
        verdicts[i] = verdict_at(&block, i);
    }
}

static void compare_slowly(const struct decoded *block, size_t count, int64_t first,
                           struct mu_compare_lanes *lanes, struct mu_compare_part *part) {
    for (size_t i = 0; i < count; i++) {
        struct mu_compare_verdict verdict = verdict_at(block, i);
        mu_compare_part_add(part, &verdict, first + (int64_t)i);
        lanes->aa[i % MU_COMPARE_LANES] += verdict.sum_aa;
        lanes->bb[i % MU_COMPARE_LANES] += verdict.sum_bb;
        lanes->ab[i % MU_COMPARE_LANES] += verdict.sum_ab;
        lanes->dd[i % MU_COMPARE_LANES] += verdict.sum_dd;
    }
}

/* --- with the kernels --------------------------------------------------------------------- */

/* One NaN or infinity among the elements makes its lane NaN or infinite for good. */
static bool all_finite(const double *lanes) {
    bool finite = true;
    for (int i = 0; i < MU_COMPARE_LANES; i++) {
        finite = finite && mu_compare_is_finite(lanes[i]);
    }
    return finite;
}

static void add_block(const struct mu_compare_pair *pair, const struct mu_compare_block *block,
                      int64_t first, struct mu_compare_part *part) {
    uint64_t exact[2] = {pair->integers ? (uint64_t)block->max_abs : 0, 0};
    mu_compare_part_raise_abs(part, block->max_abs, exact, first);
    mu_compare_part_raise_rel(part, block->max_rel, first);
    if (block->mismatches > 0 && part->first_mismatch < 0) {
        part->first_mismatch = first;
    }
    part->mismatches += block->mismatches;
    part->sign_differences += block->sign_differences;
}

/* False, with nothing changed, where something is not finite. */
static bool compare_fast(const struct mu_compare_pair *pair, int kernel, const void *a,
                         const void *b, size_t count, int64_t first, struct mu_compare_lanes *lanes,
                         struct mu_compare_part *part) {
    struct mu_compare_block block = {.atol = pair->tolerance.atol,
                                     .rtol = pair->tolerance.rtol,
                                     .max_rel_before = part->max_rel,
                                     .over_atol = part->max_abs > pair->tolerance.atol,
                                     .lanes = *lanes};
    pair->kernels->compare[kernel](a, b, count, &block);
    if (!all_finite(block.lanes.dd)) {
        return false;
    }
    *lanes = block.lanes;
    add_block(pair, &block, first, part);
    return true;
}

/* For elements that are the same on both sides: these find no error, and add their squares. False,
 * with nothing changed, where something is not finite. */
static bool add_same(const struct mu_compare_pair *pair, int kernel, const void *a, size_t numbers,
                     struct mu_compare_lanes *lanes) {
    struct mu_compare_lanes sums = *lanes;
    pair->kernels->squares[kernel](a, numbers, &sums);
    if (!all_finite(sums.aa)) {
        return false;
    }
    *lanes = sums;
    return true;
}

/* Integers up to 2^52, so that differences are exact too. */
static bool all_small(const double *values, size_t count) {
    double most = 0;
    for (size_t i = 0; i < count; i++) {
        double size = fabs(values[i]);
        most = size > most ? size : most;
    }
    return most <= 0x1p52;
}

static bool fits_doubles(const struct mu_compare_pair *pair, const struct decoded *block,
                         size_t count) {
    return pair->single && (!is_wide(pair->dtype_a) || all_small(block->a, count)) &&
           (!is_wide(pair->dtype_b) || all_small(block->b, count));
}

static void pad(double *values, size_t numbers) {
    for (size_t i = numbers; i % MU_COMPARE_LANES != 0; i++) {
        values[i] = 0;
    }
}

static void compare_decoded(const struct mu_compare_pair *pair, const uint8_t *a, const uint8_t *b,
                            size_t count, int64_t first, bool same, struct mu_compare_lanes *lanes,
                            struct mu_compare_part *part) {
    struct decoded block;
    size_t numbers = count * mu_dtype_info(pair->dtype_a)->parts;
    size_t padded = (numbers + MU_COMPARE_LANES - 1) / MU_COMPARE_LANES * MU_COMPARE_LANES;
    decode(&block, pair, a, b, count);
    bool fits = fits_doubles(pair, &block, count);
    if (same || fits) {
        pad(block.a, numbers);
        pad(block.b, numbers);
    }
    if (!(same && add_same(pair, MU_COMPARE_F64, block.a, padded, lanes)) &&
        !(fits &&
          compare_fast(pair, MU_COMPARE_F64, block.a, block.b, padded, first, lanes, part))) {
        compare_slowly(&block, count, first, lanes, part);
    }
}

void mu_compare_block(const struct mu_compare_pair *pair, const uint8_t *a, const uint8_t *b,
                      size_t count, int64_t first, struct mu_compare_lanes *lanes,
                      struct mu_compare_part *part) {
    bool same = false;
    if (pair->dtype_a == pair->dtype_b) {
        same = memcmp(a, b, count * mu_dtype_info(pair->dtype_a)->size) == 0;
        part->bits_differ |= !same;
    }
    if (pair->kernel >= 0 && count % MU_COMPARE_LANES == 0 &&
        (same ? add_same(pair, pair->kernel, a, count, lanes)
              : compare_fast(pair, pair->kernel, a, b, count, first, lanes, part))) {
        return;
    }
    compare_decoded(pair, a, b, count, first, same, lanes, part);
}
