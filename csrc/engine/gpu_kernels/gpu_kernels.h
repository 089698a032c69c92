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

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "compare/compare_math.h"
#include "gpu_kernels/gpu_diff.h"
#include "gpu_kernels/gpu_loader.h"
#include "tensor/tensor.h"

enum {
    MU_GPU_HASH_WORDS = 2,    /* uint64_t: lo, hi of the content digest */
    MU_GPU_SUMS_WORDS = 8,    /* uint64_t: struct mu_hash_sums of the whole tensor */
    MU_GPU_NAN_INF_WORDS = 3, /* int64_t: NaN, +Inf, -Inf */
    MU_GPU_STATS_WORDS = 16,  /* double: the fields of struct mu_stats up to first_inf, and 0 */
};

/* The operations on one tensor. */
enum mu_gpu_operation {
    MU_GPU_OP_HASH,       /* MU_GPU_HASH_WORDS numbers */
    MU_GPU_OP_SUMS,       /* MU_GPU_SUMS_WORDS numbers */
    MU_GPU_OP_NAN_INF,    /* MU_GPU_NAN_INF_WORDS numbers */
    MU_GPU_OP_STATS,      /* MU_GPU_STATS_WORDS numbers */
    MU_GPU_OP_STATS_PART, /* struct mu_stats_part, which mu_stats_finish takes */
};

/* Bytes of a result. */
size_t mu_gpu_result_bytes(enum mu_gpu_operation operation);

/* `device_out`: room for a result in memory of the tensor's device, aligned to 8 bytes. */
MU_MUST_CHECK int mu_gpu_enqueue(enum mu_gpu_operation operation, const struct mu_tensor *tensor,
                                 void *stream, void *device_out, struct mu_error *err);

/* Bytes of a struct mu_gpu_diff with a list of `list_max`. */
size_t mu_gpu_diff_bytes(int64_t list_max);

/* The GPUs of the process, or NULL without memory. */
struct mu_gpu *mu_gpu_get(void);

/* Sets where NVRTC and the cache on disk are; NULL leaves either as it is. MU_ERR_STATE once a
 * kernel was requested. */
MU_MUST_CHECK int mu_gpu_configure(const char *nvrtc_path, const char *cache_folder,
                                   struct mu_error *err);

#endif
