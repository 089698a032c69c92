/* Trimmed means over the steps of a run, and how much they vary: a bootstrap that draws blocks of
 * steps, as steps that follow each other depend on each other.
 *
 * Politis & Romano, A circular block-resampling procedure for stationary data (1992): blocks of
 * one length begin at any step, and go on at the first step after the last one. The last block is
 * cut, so that as many steps are drawn as there are.
 */
#ifndef MU_BLOCK_BOOTSTRAP_H
#define MU_BLOCK_BOOTSTRAP_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

/* Up to so many steps every draw is trimmed anew. Beyond, the mean of a draw comes from what each
 * step adds to the trimmed mean (its influence), which takes a time that does not grow with the
 * steps but with the blocks; the two differ by less than a hundredth of the interval there. */
enum { MU_BOOTSTRAP_EXACT_MAX = 4096 };

/* Steps with some figures each. The first figure says which steps are left out: so many of the
 * lowest and of the highest. The means of all figures are taken over the same steps, so that parts
 * of the first figure add up to it. */
struct mu_step_rows {
    const double *values; /* borrowed: the figures of one step after those of the other; finite */
    size_t steps;         /* below 2^32 */
    size_t figures;       /* at least 1 */
    size_t trimmed;       /* at each end: 2 * trimmed < steps */
};

/* Stores the trimmed mean of each figure. */
MU_MUST_CHECK int mu_trimmed_means(const struct mu_step_rows *rows, double *means,
                                   struct mu_error *err);

struct mu_draws {
    size_t block; /* steps in a block, 1 to all */
    size_t count;
    uint64_t seed; /* the same seed gives the same draws */
};

/* Stores the trimmed means of each draw, one draw after the other. Needs no lock. */
MU_MUST_CHECK int mu_block_bootstrap(const struct mu_step_rows *rows, const struct mu_draws *draws,
                                     double *means, struct mu_error *err);

#endif
