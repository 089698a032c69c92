/* What the operators compute. A result is a few numbers of eight bytes on the device of the tensor.
 * Thread-safe; call without the GIL. */
#ifndef MU_TORCH_OPS_QUANTITIES_H
#define MU_TORCH_OPS_QUANTITIES_H

#include "gpu_kernels/gpu_kernels.h"
#include "tensor/tensor.h"

struct mu_quantity {
    void (*on_cpu)(const struct mu_tensor *tensor, void *out);
    enum mu_gpu_operation on_gpu;
    int64_t count; /* of the numbers */
    int dtype;     /* theirs, an enum mu_dtype */
};

extern const struct mu_quantity mu_content_hash; /* lo, hi */
extern const struct mu_quantity mu_content_sums; /* struct mu_hash_sums of the whole */
extern const struct mu_quantity mu_statistics;   /* struct mu_stats, 15 fields as doubles, and 0 */
extern const struct mu_quantity mu_nan_inf_counts; /* NaN, +Inf, -Inf */

#endif
