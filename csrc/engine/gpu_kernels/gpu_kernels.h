/* The tensor core on a GPU: hash, NaN and Inf counts, statistics and comparison as CUDA kernels.
 *
 * A call enqueues its kernels on a stream and returns. Nothing waits for the GPU: the result is in
 * device memory once the stream has run the kernels. The results equal those of the functions for
 * the processor (tensor_hash.h, stats.h, compare.h): integers bit for bit, floats within the bound
 * that docs/correctness/gpu-tensors.md states.
 *
 * The tensor and the place of the result are on the same device, which has its primary context, as
 * torch's tensors have; the stream is one of that context. Both must live until the stream has
 * finished the work. Kernels get further memory in stream order (cuMemAllocFromPoolAsync), so a
 * stream may be under capture: then the work becomes nodes of the graph.
 *
 * Kernels are compiled by NVRTC at their first use (a second; see nvrtc.h), kept on disk, and
 * loaded once a device. All functions may be called from any thread, and never with the GIL. In a
 * forked child they fail with MU_ERR_STATE, because CUDA does not work there.
 */
#ifndef MU_GPU_KERNELS_H
#define MU_GPU_KERNELS_H

#include "gpu_kernels/gpu_operations.h"

/* mu_gpu_enqueue_on the GPUs of the process. */
MU_MUST_CHECK int mu_gpu_enqueue(enum mu_gpu_operation operation, const struct mu_tensor *tensor,
                                 void *stream, void *device_out, struct mu_error *err);

/* The GPUs of the process, or NULL without memory. */
struct mu_gpu *mu_gpu_get(void);

/* Sets where NVRTC and the cache on disk are; NULL leaves either as it is. MU_ERR_STATE once a
 * kernel was requested. */
MU_MUST_CHECK int mu_gpu_configure(const char *nvrtc_path, const char *cache_folder,
                                   struct mu_error *err);

#endif
