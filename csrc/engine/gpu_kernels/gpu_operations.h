/* The operations on one tensor on a given table of GPUs, the comparison of two tensors, and memory
 * for what they find.
 *
 * What gpu_kernels.h says of calls, streams and threads holds here.
 */
#ifndef MU_GPU_OPERATIONS_H
#define MU_GPU_OPERATIONS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "compare/compare_math.h"
#include "gpu_kernels/gpu_diff.h"
#include "gpu_kernels/gpu_layout.h"
#include "gpu_kernels/gpu_loader.h"
#include "hash/tensor_hash_box.h"
#include "stats/stats_math.h"
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

/* Dimensions are merged where one continues the other. */
void mu_gpu_layout_of(const struct mu_tensor *tensor, struct mu_gpu_layout *layout);

/* `device_out`: room for a result in memory of the tensor's device, aligned to 8 bytes. */
MU_MUST_CHECK int mu_gpu_enqueue_on(struct mu_gpu *gpu, enum mu_gpu_operation operation,
                                    const struct mu_tensor *tensor, void *stream, void *device_out,
                                    struct mu_error *err);

/* What a box adds to the hash of its whole: a struct mu_hash_sums, and where rows have ends the
 * first and the last quad of each row, from its first byte on, for mu_hash_part_of_box.
 * `device_out`: mu_gpu_box_bytes(box). */
MU_MUST_CHECK int mu_gpu_box_on(struct mu_gpu *gpu, const struct mu_hash_box *box, void *stream,
                                void *device_out, struct mu_error *err);

size_t mu_gpu_box_bytes(const struct mu_hash_box *box);

/* Bytes of a struct mu_gpu_diff with a list of `list_max`. */
size_t mu_gpu_diff_bytes(int64_t list_max);

/* Both tensors are of one shape and on one device. `device_out`: mu_gpu_diff_bytes(list_max). */
MU_MUST_CHECK int mu_gpu_compare_on(struct mu_gpu *gpu, const struct mu_tensor *a,
                                    const struct mu_tensor *b,
                                    const struct mu_compare_tolerance *tolerance, int64_t list_max,
                                    void *stream, struct mu_gpu_diff *device_out,
                                    struct mu_error *err);

/* Memory for results, in the order of one stream of one device. */
struct mu_gpu_results {
    struct mu_gpu *gpu; /* borrowed */
    int device_index;
    void *stream;
    void *memory; /* on the device, owned; aligned to 256 bytes */
    size_t bytes;
    bool captured; /* the stream is, so that nothing was taken and nothing can be fetched */
};

/* MU_ERR_STATE while the stream is under capture. */
MU_MUST_CHECK int mu_gpu_results_open(struct mu_gpu_results *results, struct mu_gpu *gpu,
                                      int device_index, void *stream, size_t bytes,
                                      struct mu_error *err);

/* Copies all of it to `host` and waits until the stream is through. */
MU_MUST_CHECK int mu_gpu_results_fetch(const struct mu_gpu_results *results, void *host,
                                       struct mu_error *err);

/* The memory goes when the stream is through. */
void mu_gpu_results_close(struct mu_gpu_results *results);

#endif
