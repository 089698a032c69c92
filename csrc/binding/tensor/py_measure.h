/* Measures one tensor, or each tensor of a list. The path from the argument to the results is the
 * same for every measurement.
 *
 * All tensors on the CPU are read in one call. When there is much to do, it runs on torch's threads
 * and without the GIL. Tensors on a GPU are read there; where GPU kernels cannot be used, a copy on
 * the CPU is read.
 */
#ifndef MU_PY_MEASURE_H
#define MU_PY_MEASURE_H

#include "tensor/py_gpu_kernels.h"

enum { MU_PY_VALUE_BYTES = 256 };

struct mu_py_measure {
    size_t value_bytes; /* size of the value of a tensor, MU_PY_VALUE_BYTES at most */
    const struct mu_py_gpu_work *gpu;
    void (*measure)(const struct mu_tensor *tensor, void *value); /* without the GIL */
    PyObject *(*result)(struct mu_state *state, const struct mu_tensor *tensor, const void *value);
};

/* The result of the tensor, or a list of them for a list or tuple; NULL with an exception. */
PyObject *mu_py_measure(PyObject *module, const struct mu_py_measure *measure, PyObject *tensors);

#endif
