/* One block of a comparison: by the fast kernels where possible, else element by element.
 *
 * Pure functions of their arguments, safe on any thread.
 */
#ifndef MU_COMPARE_BLOCK_H
#define MU_COMPARE_BLOCK_H

#include "compare/compare_kernels.h"
#include "compare/compare_math.h"

/* What is the same for all blocks of a comparison. */
struct mu_compare_pair {
    struct mu_compare_tolerance tolerance;
    const struct mu_compare_kernels *kernels;
    int kernel; /* enum mu_compare_type for elements as stored; -1: they are decoded first */
    uint8_t dtype_a, dtype_b;
    bool integers; /* both are integers or bools */
    bool wide;     /* at least one is a 64-bit integer */
    bool single;   /* an element is one number on both sides */
};

void mu_compare_pair_init(struct mu_compare_pair *pair, int dtype_a, int dtype_b,
                          const struct mu_compare_tolerance *tolerance,
                          const struct mu_compare_kernels *kernels);

/* How many elements mu_compare_block takes at most. */
size_t mu_compare_block_most(const struct mu_compare_pair *pair);

/* Compares `count` elements; `first` is the index of the first of them. Adds to the lanes and to
 * all of `part` but its sums. An index that a kernel stores in `part` is that of the block or piece
 * which has the element, not of the element. */
void mu_compare_block(const struct mu_compare_pair *pair, const uint8_t *a, const uint8_t *b,
                      size_t count, int64_t first, struct mu_compare_lanes *lanes,
                      struct mu_compare_part *part);

/* The verdict on each of `count` elements, MU_COMPARE_PIECE at most. */
void mu_compare_elements(const struct mu_compare_pair *pair, const uint8_t *a, const uint8_t *b,
                         size_t count, struct mu_compare_verdict *verdicts);

#endif
