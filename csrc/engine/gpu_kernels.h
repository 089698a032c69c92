/* The tensor core on a GPU: hash, NaN and Inf counts, statistics and comparison as CUDA kernels.
 *
 * A call enqueues its kernels on a stream and returns: nothing waits for the GPU, and the result
 * stands in device memory as soon as the stream has come that far. The results are those of the
 * functions for the processor (tensor_hash.h, stats.h, compare.h): integers bit for bit, floating
 * ones within the bound that docs/gpu-tensors.md states.
 *
 * The tensor and the place of the result are on the same device, which has its primary context, as
 * torch's tensors have; the stream is one of that context. Both must live until the stream is
 * through with the work. What kernels need beside that comes from the stream's own order
 * (cuMemAllocAsync), so a stream may be under capture: then the work becomes nodes of the graph.
 *
 * Kernels are compiled by NVRTC at their first use (seconds; see nvrtc.h), kept on disk, and loaded
 * once a device. All functions may be called from any thread, with the GIL or better without it.
 * In a forked child they fail with MU_ERR_STATE: CUDA does not live there.
 */
#ifndef MU_GPU_KERNELS_H
#define MU_GPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"
#include "tensor.h"

enum {
    MU_GPU_HASH_WORDS = 2,    /* uint64_t: lo, hi of the content digest */
    MU_GPU_NAN_INF_WORDS = 3, /* int64_t: NaN, +Inf, -Inf */
    MU_GPU_STATS_WORDS = 16,  /* double: the fields of struct mu_stats, in order */
};

/* `device_out`: MU_GPU_HASH_WORDS numbers in memory of the tensor's device, aligned to 8 bytes. */
int mu_gpu_hash_enqueue(const struct mu_tensor *tensor, void *stream, uint64_t *device_out,
                        struct mu_error *err);

/* `device_out`: MU_GPU_NAN_INF_WORDS numbers. */
int mu_gpu_nan_inf_enqueue(const struct mu_tensor *tensor, void *stream, int64_t *device_out,
                           struct mu_error *err);

/* `device_out`: MU_GPU_STATS_WORDS numbers. */
int mu_gpu_stats_enqueue(const struct mu_tensor *tensor, void *stream, double *device_out,
                         struct mu_error *err);

#endif
