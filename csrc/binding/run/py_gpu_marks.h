/* Moments on the GPU: each is when the stream that was current came to where the mark was set.
 *
 * A mark is a span of no length in the recorder's pool, so it is placed on the host's clock as the
 * spans of stages are, by the drain. All functions need the GIL.
 */
#ifndef MU_PY_GPU_MARKS_H
#define MU_PY_GPU_MARKS_H

#include <Python.h>
#include <stdint.h>

#include "base/error.h"
#include "cuda/cuda_timing.h"

struct mu_py_gpu_marks {
    struct mu_cuda_pool *pool; /* borrowed, whose spans these are; NULL: no GPU times */
    uint32_t *spans;           /* owned: of each mark; 0: not set */
    Py_ssize_t count;
};

/* -1 with an exception. */
MU_MUST_CHECK int mu_py_gpu_marks_init(struct mu_py_gpu_marks *marks, Py_ssize_t count);

/* `live` is the pool that the recorder has now: with another one the spans are gone. */
void mu_py_gpu_marks_free(struct mu_py_gpu_marks *marks, struct mu_cuda_pool *live);

/* Forgets what was set. From here on marks are set in `live`, or in none. */
void mu_py_gpu_marks_begin(struct mu_py_gpu_marks *marks, struct mu_cuda_pool *live);

/* Sets a mark, or sets it anew. Without a context or a stream there is none. */
void mu_py_gpu_marks_set(struct mu_py_gpu_marks *marks, Py_ssize_t at);

/* None while the GPU has not come to all of them, or nobody has looked. Else, once, (times,
 * error_us): a list of us after `origin_ns`, None for what has no time; [] where none has. NULL
 * with an exception. */
PyObject *mu_py_gpu_marks_read(struct mu_py_gpu_marks *marks, struct mu_cuda_pool *live,
                               int64_t origin_ns);

#endif
