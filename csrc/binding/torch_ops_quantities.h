/* What the operators compute, in the form that their results have: some numbers of eight bytes, on
 * the device of the tensor. Thread-safe; to be called without the GIL. */
#ifndef MU_TORCH_OPS_QUANTITIES_H
#define MU_TORCH_OPS_QUANTITIES_H

#include "error.h"
#include "tensor.h"

struct mu_quantity {
    void (*on_cpu)(const struct mu_tensor *tensor, void *out);
    /* Enqueues the work; `out` is in memory of the device. */
    int (*on_gpu)(const struct mu_tensor *tensor, void *stream, void *out, struct mu_error *err);
    int64_t count; /* of the numbers */
    int dtype;     /* theirs, an enum mu_dtype */
};

extern const struct mu_quantity mu_content_hash; /* lo, hi */
extern const struct mu_quantity mu_statistics;   /* struct mu_stats, 15 fields as doubles, and 0 */
extern const struct mu_quantity mu_nan_inf_counts; /* NaN, +Inf, -Inf */

#endif
