/* The BucketTimes type: when the gradients of each bucket of DDP were ready in a backward.
 *
 * While it is installed each parameter has a tensor hook, which runs before its gradient is
 * accumulated. A hook in `_backward_hooks` can be taken away without a trace; torch keeps those
 * that run after the accumulation for as long as the parameter lives.
 */
#ifndef MU_PY_BUCKET_TIMES_H
#define MU_PY_BUCKET_TIMES_H

#include "core/state.h"
#include "cuda/cuda_timing.h"

struct mu_py_bucket_times;

/* A backward begins: sets the hooks, and forgets the times of the backward before. What cannot be
 * hooked is skipped. gpu: the recorder's pool, for the times at which the GPU comes to the same
 * places, or NULL. No exception may be set, and none is set afterwards. */
void mu_py_bucket_times_install(struct mu_py_bucket_times *self, struct mu_cuda_pool *gpu);

/* It has ended: takes the hooks away. Idempotent; an exception that is set stays set. */
void mu_py_bucket_times_remove(struct mu_py_bucket_times *self);

#endif
