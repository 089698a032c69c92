/* What torch does in a call of the tensor hash, alone and called from C: the DLPack view of a
 * tensor, and its method is_neg. A shared library for ctypes.PyDLL, which holds the GIL; each
 * function goes over the list of tensors so many times, and returns -1 with an exception. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core/dlpack_exchange.h"

int view_each(PyObject *capsule, PyObject *tensors, int times) {
    const struct mu_dlpack_exchange *table = PyCapsule_GetPointer(capsule, MU_DLPACK_CAPSULE);
    struct mu_dlpack_tensor view;
    for (int i = 0; table != NULL && i < times; i++) {
        for (Py_ssize_t place = 0; place < PyList_GET_SIZE(tensors); place++) {
            PyObject *tensor = PyList_GET_ITEM(tensors, place);
            if (table->dltensor_from_py_object_no_sync(tensor, &view) != 0) {
                return -1;
            }
        }
    }
    return table == NULL ? -1 : 0;
}

/* `method` is a C method of torch.Tensor without arguments. */
int ask_each(PyObject *method, PyObject *tensors, int times) {
    PyCFunction function = ((PyMethodDescrObject *)method)->d_method->ml_meth;
    for (int i = 0; i < times; i++) {
        for (Py_ssize_t place = 0; place < PyList_GET_SIZE(tensors); place++) {
            PyObject *answer = function(PyList_GET_ITEM(tensors, place), NULL);
            if (answer == NULL) {
                return -1;
            }
            Py_DECREF(answer);
        }
    }
    return 0;
}
