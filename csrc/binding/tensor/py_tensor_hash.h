/* What the files about the tensor hash share. All of it needs the GIL. */
#ifndef MU_PY_TENSOR_HASH_H
#define MU_PY_TENSOR_HASH_H

#include "core/state.h"
#include "hash/tensor_hash.h"

/* A new TensorDigest. */
PyObject *mu_py_digest(struct mu_state *state, const struct mu_digest *content, int dtype, int ndim,
                       const int64_t *shape);

/* An enum mu_dtype from its name, the argument `dtype`; -1 with an exception. */
int mu_py_dtype(PyObject *value);

/* A sequence of sizes, the argument of that name, into `out`, which has room for
 * MU_TENSOR_DIMS_MAX. Returns their number; -1 with an exception. */
int mu_py_sizes(PyObject *value, const char *name, int64_t *out);

#endif
