#include "compare/compare_block.h"

#include <string.h>

#include "tensor/decode.h"
#include "tensor/tensor.h"

/* Both sides of a block as doubles; where the pair is not `single`, as two for each element. */
struct decoded {
    const struct mu_compare_pair *pair; /* borrowed */
    const uint8_t *raw_a, *raw_b;       /* borrowed: 64-bit integers may not fit a double */
    double a[2 * MU_COMPARE_PIECE], b[2 * MU_COMPARE_PIECE];
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

static struct mu_compare_wide number_at(int dtype, const uint8_t *raw, const double *decoded,
                                        size_t i) {
    return is_wide(dtype) ? mu_compare_widen(integer_at(dtype, raw, decoded, i))
                          : mu_compare_narrow(decoded[i]);
}

static struct mu_compare_verdict verdict_on_numbers(const struct decoded *block, size_t i) {
    const struct mu_compare_pair *pair = block->pair;
    return mu_compare_numbers(&pair->tolerance, number_at(pair->dtype_a, block->raw_a, block->a, i),
                              number_at(pair->dtype_b, block->raw_b, block->b, i));
}

static struct mu_compare_verdict verdict_on_integers(const struct decoded *block, size_t i) {
    const struct mu_compare_pair *pair = block->pair;
    return mu_compare_integers(&pair->tolerance,
                               integer_at(pair->dtype_a, block->raw_a, block->a, i),
                               integer_at(pair->dtype_b, block->raw_b, block->b, i));
}

static void pair_at(int dtype, const uint8_t *raw, const double *decoded, size_t i,
                    struct mu_compare_wide *out) {
    out[0] = is_wide(dtype) ? mu_compare_widen(integer_at(dtype, raw, decoded, i))
                            : mu_compare_narrow(decoded[2 * i]);
    out[1] = mu_compare_narrow(decoded[2 * i + 1]);
}

static struct mu_compare_verdict verdict_on_pairs(const struct decoded *block, size_t i) {
    const struct mu_compare_pair *pair = block->pair;
    const struct mu_compare_tolerance *tolerance = &pair->tolerance;
    struct mu_compare_wide a[2], b[2];
    pair_at(pair->dtype_a, block->raw_a, block->a, i, a);
    pair_at(pair->dtype_b, block->raw_b, block->b, i, b);
    if (pair->dtype_a == MU_DTYPE_FLOAT4_E2M1FN_X2) {
        return mu_compare_both(mu_compare_numbers(tolerance, a[0], b[0]),
                               mu_compare_numbers(tolerance, a[1], b[1]));
    }
    return mu_compare_complex(tolerance, a, b);
}

static struct mu_compare_verdict verdict_at(const struct decoded *block, size_t i) {
    return block->pair->integers ? verdict_on_integers(block, i)
           : block->pair->single ? verdict_on_numbers(block, i)
                                 : verdict_on_pairs(block, i);
}

/* Real numbers as complex ones, within the same memory. */
static void append_zeros(double *values, size_t count) {
    for (size_t i = count; i-- > 0;) {
        values[2 * i] = values[i];
        values[2 * i + 1] = 0;
    }
}

static void decode_side(bool single, int dtype, const uint8_t *raw, size_t count, double *out) {
    mu_decode_doubles(dtype, raw, count, out);
    if (!single && mu_dtype_info(dtype)->parts == 1) {
        append_zeros(out, count);
    }
}

static void decode(struct decoded *block, const struct mu_compare_pair *pair, const uint8_t *a,
                   const uint8_t *b, size_t count) {
    block->pair = pair;
    block->raw_a = a;
    block->raw_b = b;
    decode_side(pair->single, pair->dtype_a, a, count, block->a);
    decode_side(pair->single, pair->dtype_b, b, count, block->b);
}

void mu_compare_elements(const struct mu_compare_pair *pair, const uint8_t *a, const uint8_t *b,
                         size_t count, struct mu_compare_verdict *verdicts) {
    struct decoded block;
    decode(&block, pair, a, b, count);
    for (size_t i = 0; i < count; i++) {
        verdicts[i] = verdict_at(&block, i);
    }
}

static void add_element(const struct decoded *block, size_t i, int64_t first,
                        struct mu_compare_lanes *lanes, struct mu_compare_part *part) {
    struct mu_compare_verdict verdict = verdict_at(block, i);
    mu_compare_part_add(part, &verdict, first + (int64_t)i);
    lanes->aa[i % MU_COMPARE_LANES] += verdict.sum_aa;
    lanes->bb[i % MU_COMPARE_LANES] += verdict.sum_bb;
    lanes->ab[i % MU_COMPARE_LANES] += verdict.sum_ab;
    lanes->dd[i % MU_COMPARE_LANES] += verdict.sum_dd;
}

/* --- with the kernels --------------------------------------------------------------------- */

/* One NaN or infinity among the elements makes its lane's sum NaN or infinite from then on. */
static bool all_finite(const double *lanes) {
    bool finite = true;
    for (int i = 0; i < MU_COMPARE_LANES; i++) {
        finite = finite && mu_compare_is_finite(lanes[i]);
    }
    return finite;
}

static void run_kernel(const struct mu_compare_pair *pair, int kernel, const void *a, const void *b,
                       size_t count, struct mu_compare_block *block,
                       const struct mu_compare_lanes *lanes, const struct mu_compare_part *part) {
    block->atol = pair->tolerance.atol;
    block->rtol = pair->tolerance.rtol;
    block->max_rel_before = part->max_rel;
    block->over_atol = part->max_abs > pair->tolerance.atol;
    block->lanes = *lanes;
    pair->kernels->compare[kernel](a, b, count, block);
}

static void add_block(const struct mu_compare_pair *pair, const struct mu_compare_block *block,
                      int64_t first, struct mu_compare_lanes *lanes, struct mu_compare_part *part) {
    uint64_t exact[2] = {pair->integers ? (uint64_t)block->max_abs : 0, 0};
    mu_compare_part_raise_abs(part, block->max_abs, exact, first);
    mu_compare_part_raise_rel(part, block->max_rel, first);
    if (block->mismatches > 0 && part->first_mismatch < 0) {
        part->first_mismatch = first;
    }
    part->mismatches += block->mismatches;
    part->sign_differences += block->sign_differences;
    *lanes = block->lanes;
}

/* Returns false, and changes nothing, when an element is not finite. */
static bool compare_finite(const struct mu_compare_pair *pair, int kernel, const void *a,
                           const void *b, size_t count, int64_t first,
                           struct mu_compare_lanes *lanes, struct mu_compare_part *part) {
    struct mu_compare_block block;
    run_kernel(pair, kernel, a, b, count, &block, lanes, part);
    if (!all_finite(block.lanes.dd)) {
        return false;
    }
    add_block(pair, &block, first, lanes, part);
    return true;
}

/* For elements that are equal on both sides: they have no error, and their squares are added.
 * Returns false, and changes nothing, when one is not finite. */
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

/* True for a pair that a kernel can process. Both are finite and not so far apart that a product
 * overflows. 64-bit integers are at most 2^52, so that their difference is exact. */
static bool is_plain(const struct mu_compare_pair *pair, double a, double b) {
    return fabs(a - b) < 0x1p500 && (!pair->wide || (fabs(a) <= 0x1p52 && fabs(b) <= 0x1p52));
}

static int64_t at_most(int64_t index, int64_t limit) {
    return index < limit ? index : limit;
}

/* Processes the elements that a kernel cannot, and puts zeros in their place, which add nothing. An
 * error found here gets the index of the block's first element, as every error of a block does: the
 * kernel may find an equal error at a lower index. */
static void set_aside(struct decoded *block, size_t count, int64_t first,
                      struct mu_compare_lanes *lanes, struct mu_compare_part *part) {
    int64_t mismatch_before = part->first_mismatch;
    for (size_t i = 0; i < count; i++) {
        if (is_plain(block->pair, block->a[i], block->b[i])) {
            continue;
        }
        bool same_infinity = block->a[i] == block->b[i] && mu_compare_is_inf(block->a[i]);
        if (!same_infinity) {
            add_element(block, i, first, lanes, part);
        }
        block->a[i] = block->b[i] = 0;
    }
    part->max_abs_index = at_most(part->max_abs_index, first);
    part->max_rel_index = at_most(part->max_rel_index, first);
    if (mismatch_before < 0 && part->first_mismatch >= 0) {
        part->first_mismatch = first;
    }
}

static void pad(double *values, size_t numbers) {
    for (size_t i = numbers; i % MU_COMPARE_LANES != 0; i++) {
        values[i] = 0;
    }
}

static size_t padded(size_t numbers) {
    return (numbers + MU_COMPARE_LANES - 1) / MU_COMPARE_LANES * MU_COMPARE_LANES;
}

static void compare_singles(struct decoded *decoded, size_t count, int64_t first,
                            struct mu_compare_lanes *lanes, struct mu_compare_part *part) {
    const struct mu_compare_pair *pair = decoded->pair;
    struct mu_compare_block block;
    if (!pair->wide && compare_finite(pair, MU_COMPARE_F64, decoded->a, decoded->b, padded(count),
                                      first, lanes, part)) {
        return;
    }
    set_aside(decoded, count, first, lanes, part);
    run_kernel(pair, MU_COMPARE_F64, decoded->a, decoded->b, padded(count), &block, lanes, part);
    add_block(pair, &block, first, lanes, part);
}

static void compare_decoded(const struct mu_compare_pair *pair, const uint8_t *a, const uint8_t *b,
                            size_t count, int64_t first, bool same, struct mu_compare_lanes *lanes,
                            struct mu_compare_part *part) {
    struct decoded decoded;
    size_t numbers = pair->single ? count : 2 * count;
    decode(&decoded, pair, a, b, count);
    pad(decoded.a, numbers);
    pad(decoded.b, numbers);
    if (same && add_same(pair, MU_COMPARE_F64, decoded.a, padded(numbers), lanes)) {
        return;
    }
    if (pair->single) {
        compare_singles(&decoded, count, first, lanes, part);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        add_element(&decoded, i, first, lanes, part);
    }
}

/* With the kernel for elements as stored. Returns false, and changes nothing, where there is none
 * or an element is not finite. `count` is a multiple of MU_COMPARE_LANES. */
static bool compare_direct(const struct mu_compare_pair *pair, const uint8_t *a, const uint8_t *b,
                           size_t count, int64_t first, bool same, struct mu_compare_lanes *lanes,
                           struct mu_compare_part *part) {
    if (pair->kernel < 0) {
        return false;
    }
    return same ? add_same(pair, pair->kernel, a, count, lanes)
                : compare_finite(pair, pair->kernel, a, b, count, first, lanes, part);
}

static void compare_piece(const struct mu_compare_pair *pair, const uint8_t *a, const uint8_t *b,
                          size_t count, int64_t first, bool same, struct mu_compare_lanes *lanes,
                          struct mu_compare_part *part) {
    if (count % MU_COMPARE_LANES != 0 ||
        !compare_direct(pair, a, b, count, first, same, lanes, part)) {
        compare_decoded(pair, a, b, count, first, same, lanes, part);
    }
}

size_t mu_compare_block_most(const struct mu_compare_pair *pair) {
    return pair->kernel >= 0 ? MU_COMPARE_BLOCK : MU_COMPARE_PIECE;
}

void mu_compare_block(const struct mu_compare_pair *pair, const uint8_t *a, const uint8_t *b,
                      size_t count, int64_t first, struct mu_compare_lanes *lanes,
                      struct mu_compare_part *part) {
    size_t size_a = mu_dtype_info(pair->dtype_a)->size, size_b = mu_dtype_info(pair->dtype_b)->size;
    size_t whole = count - count % MU_COMPARE_LANES;
    bool same = false;
    if (pair->dtype_a == pair->dtype_b) {
        same = memcmp(a, b, count * size_a) == 0;
        part->bits_differ |= !same;
    }
    bool direct = whole > 0 && compare_direct(pair, a, b, whole, first, same, lanes, part);
    for (size_t done = direct ? whole : 0; done < count; done += MU_COMPARE_PIECE) {
        size_t left = count - done;
        compare_piece(pair, a + done * size_a, b + done * size_b,
                      left < MU_COMPARE_PIECE ? left : MU_COMPARE_PIECE, first + (int64_t)done,
                      same, lanes, part);
    }
}
