/* Compares two tensors of one shape in one pass over both.
 *
 * Any two element types, any strides. compare_math.h defines what is close, and which elements the
 * figures are computed from. The result does not depend on strides, threads or the instruction set;
 * memory beside the two tensors is a few hundred KiB at most. Safe on any thread, best without the
 * GIL.
 */
#ifndef MU_COMPARE_H
#define MU_COMPARE_H

#include <stdbool.h>

#include "compare/compare_math.h"
#include "tensor/tensor.h"

enum { MU_MISMATCH_BYTES = 16 };

/* One element pair that is not close, as its raw bytes. */
struct mu_mismatch {
    int64_t index; /* row-major */
    uint8_t a[MU_MISMATCH_BYTES], b[MU_MISMATCH_BYTES];
};

struct mu_compare_options {
    struct mu_compare_tolerance tolerance;
    struct mu_mismatch *list; /* borrowed: room for `list_max`; NULL when that is 0 */
    int64_t list_max;
};

struct mu_diff {
    int64_t elements;
    int64_t mismatches;        /* elements that are not close */
    int64_t listed;            /* the first of them, in options.list: index ascending */
    int64_t sign_differences;  /* one below zero, the other above */
    int64_t nan_disagreements; /* NaN in exactly one */
    int64_t inf_disagreements; /* one infinite, the other not the same infinity */
    double max_abs;            /* the greatest |a - b|; 0 where nothing finite differs */
    uint64_t max_exact[2];     /* the same where `integers`: the low half first */
    int64_t max_abs_index;     /* row-major, the first of equals; -1 where max_abs is 0 */
    double max_rel;            /* the greatest |a - b| / |b| of b != 0; 0 where there is none */
    int64_t max_rel_index;     /* the same */
    double cosine;             /* sum ab / sqrt(sum aa * sum bb); NaN where that is 0 / 0 */
    double sqnr_db;            /* 10 log10(sum bb / sum dd), d = a - b; inf: no difference */
    bool equal_bits;           /* one type, and bit for bit the same */
    bool integers;             /* both are integers or bools */
};

/* The tolerance of torch.testing.assert_close for a type. It has none for 8-bit and 4-bit floats;
 * for them it is a step of the type: rtol is the type's epsilon, atol its smallest number. For two
 * types it is the looser one. */
void mu_compare_default_tolerance(int dtype_a, int dtype_b, double *atol, double *rtol);

/* MU_ERR_ARGUMENT when the shapes differ, a tensor is not on the CPU, or a tolerance is negative or
 * not finite; MU_ERR_NO_MEMORY. */
MU_MUST_CHECK int mu_compare(const struct mu_tensor *a, const struct mu_tensor *b,
                             const struct mu_compare_options *options, struct mu_diff *diff,
                             struct mu_error *err);

/* Computes the counts and figures of a part that covers `elements` pairs of these types. Fills all
 * of `diff` but `listed`, which is set to 0. */
void mu_diff_of_part(const struct mu_compare_part *part, int64_t elements, int dtype_a, int dtype_b,
                     struct mu_diff *diff);

#endif
