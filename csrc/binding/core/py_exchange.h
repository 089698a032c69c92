/* What torch offers to C code about its tensors. It is found once torch is imported; nothing here
 * imports torch.
 *
 * It needs an attached thread. All but `table` is written once, before it.
 */
#ifndef MU_PY_EXCHANGE_H
#define MU_PY_EXCHANGE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "core/dlpack_exchange.h"
#include "core/free_threading.h"
#include "core/torch_storage.h"

struct mu_py_exchange {
    /* torch's, for good; NULL before it is found */
    _Atomic(const struct mu_dlpack_exchange *) table;
    struct mu_py_lock lock;    /* of who finds it */
    PyTypeObject *tensor_type; /* owned: torch.Tensor; NULL without those below */
    PyObject *is_neg;          /* owned: torch.Tensor.is_neg, a lazy negation */
    PyObject *is_conj;         /* owned: torch.Tensor.is_conj */
    PyObject *impl;            /* owned: torch.Tensor._cdata, the TensorImpl's place */
    PyObject *is_overridden; /* owned: torch._C._has_torch_function_unary, whether Python code runs
                                in place of the three */
    struct mu_torch_storage storage;
};

/* True when torch is imported and has the table (2.10 and newer). No exception is left behind. */
bool mu_py_exchange_find(struct mu_py_exchange *exchange);

int mu_py_exchange_traverse(struct mu_py_exchange *exchange, visitproc visit, void *arg);
void mu_py_exchange_clear(struct mu_py_exchange *exchange);

#endif
