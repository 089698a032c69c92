/* Statistics of a tensor on the CPU, of any type and strides, in one pass over its memory.
 *
 * A block that fits into the cache is summed; where its squares would lose digits, it is read again
 * for its squared differences from the mean. Blocks are merged pairwise (stats_math.h). The mean is
 * within 1e-12 of the mean magnitude, the standard deviation within 1e-10 of itself. The result
 * depends on the numbers and their order alone: not on threads, strides or the instruction set.
 *
 * Sums are computed in double. int64 and uint64 beyond 2^53 are rounded for the sums, but their min
 * and max are exact. Big tensors are split over torch's threads; do not call with the GIL.
 */
#ifndef MU_STATS_H
#define MU_STATS_H

#include "stats/stats_math.h"
#include "tensor/tensor.h"

void mu_stats_of(const struct mu_tensor *tensor, struct mu_stats *out);

/* The part that mu_stats_finish turns into a result. It can be merged with the parts of other
 * tensors. Its indices are those of this tensor. */
void mu_stats_part_of(const struct mu_tensor *tensor, struct mu_stats_part *out);

/* mu_stats_finish, for numbers of this type (enum mu_dtype): the range of uint64 is as it was
 * before its top bit was flipped. */
void mu_stats_finish_as(int dtype, const struct mu_stats_part *part, struct mu_stats *out);

#endif
