/* Starts and stops the profiler that is attached to this process: nsys with
 * --capture-range=cudaProfilerApi, ncu with --profile-from-start off.
 *
 * Both act on a CUDA context: the calling thread's, or, where it has none yet, the primary one of a
 * device, which is torch's. CUDA is not initialised here. Any thread may call.
 */
#ifndef MU_CUDA_PROFILER_H
#define MU_CUDA_PROFILER_H

#include <stdbool.h>

#include "base/error.h"
#include "cuda/cuda_driver.h"

enum { MU_CUDA_NO_DEVICE = -1 };

/* `ordinal`: the device for threads without a context, MU_CUDA_NO_DEVICE for none.
 * `wait`: for all work of the context first, so that what is captured ends and begins there.
 * `*reached` is false, and the result MU_OK, without a driver or a context: nothing was done.
 * MU_ERR_STATE names the call of the driver that failed. */
MU_MUST_CHECK int mu_cuda_profiler(const struct mu_cuda_driver *driver, bool start, bool wait,
                                   int ordinal, bool *reached, struct mu_error *err);

#endif
