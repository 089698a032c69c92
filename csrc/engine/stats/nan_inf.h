/* Counts NaN, +Inf and -Inf in a tensor on the CPU, at the speed of a plain read.
 *
 * Types without such values (integers, bool, float4_e2m1fn_x2) are not read at all. Both numbers of
 * a complex element count. Big tensors are split over torch's threads; do not call with the GIL.
 */
#ifndef MU_NAN_INF_H
#define MU_NAN_INF_H

#include "tensor/special_values.h"
#include "tensor/tensor.h"

void mu_nan_inf_count(const struct mu_tensor *tensor, int64_t counts[MU_NAN_INF_COUNTS]);

#endif
