/* What a function finds of one tensor, or of each of a list: the way from the argument to the
 * results is the same whatever it is.
 *
 * Tensors on the CPU are looked at in one go, on torch's threads and without the GIL where there is
 * much to do; those on GPUs are looked at there, or a copy of them where that cannot be.
 */
#ifndef MU_PY_MEASURE_H
#define MU_PY_MEASURE_H

#include "tensor/py_gpu_kernels.h"

enum { MU_PY_VALUE_BYTES = 256 };

struct mu_py_measure {
    size_t value_bytes; /* of what is found of a tensor, MU_PY_VALUE_BYTES at most */
    const struct mu_py_gpu_work *gpu;
    void (*measure)(const struct mu_tensor *tensor, void *value); /* without the GIL */
    PyObject *(*result)(struct mu_state *state, const struct mu_tensor *tensor, const void *value);
};

/* The result of the tensor, or a list of them for a list or tuple; NULL with an exception. */
PyObject *mu_py_measure(PyObject *module, const struct mu_py_measure *measure, PyObject *tensors);

#endif
