/* Measures tensors on GPUs. The work is enqueued for all tensors of a call, and the results are
 * fetched with one wait for each stream.
 *
 * The functions need the GIL, and release it while kernels are compiled, launched and waited for.
 * The work goes to torch's current stream of each tensor's device. Where GPU kernels cannot be used
 * (no NVRTC, say) there is one warning, and callers copy their tensors to the CPU.
 */
#ifndef MU_PY_GPU_KERNELS_H
#define MU_PY_GPU_KERNELS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "compare/compare.h"
#include "gpu_kernels/gpu_kernels.h"
#include "hash/tensor_hash_part.h"
#include "tensor/py_tensor.h"

/* One kind of measurement. */
struct mu_py_gpu_work {
    enum mu_gpu_operation operation;
    /* Converts the device's result to the processor's; NULL where both are the same. */
    void (*finish)(const struct mu_tensor *tensor, const void *fetched, void *out);
};

extern const struct mu_py_gpu_work mu_py_gpu_hash;    /* struct mu_digest */
extern const struct mu_py_gpu_work mu_py_gpu_nan_inf; /* int64_t[3] */
extern const struct mu_py_gpu_work mu_py_gpu_stats;   /* struct mu_stats */

/* Stores the result of each tensor on a GPU at its place in `out`: result number i is i * `stride`
 * bytes behind the first. Returns 1 when done, 0 when the caller must copy the tensors to the CPU,
 * -1 with an exception. */
int mu_py_gpu_results(struct mu_state *state, const struct mu_py_gpu_work *work,
                      const struct mu_py_tensor *items, Py_ssize_t count, void *out, size_t stride);

/* The part of a whole that a box on a GPU is; the caller frees it after a 1. */
int mu_py_gpu_part(struct mu_state *state, const struct mu_hash_box *box,
                   struct mu_hash_part *part);

/* The same for two tensors of one shape; 0 also where they are not on one GPU. */
int mu_py_gpu_compare(struct mu_state *state, const struct mu_tensor *a, const struct mu_tensor *b,
                      const struct mu_compare_options *options, struct mu_diff *diff);

#endif
