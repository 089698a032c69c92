#include "core/py_exchange.h"

static const struct mu_dlpack_exchange *table_of(PyObject *capsule) {
    const struct mu_dlpack_header *header = PyCapsule_GetPointer(capsule, MU_DLPACK_CAPSULE);
    while (header != NULL && header->major > MU_DLPACK_MAJOR) {
        header = header->older;
    }
    return header != NULL && header->major == MU_DLPACK_MAJOR ? (const void *)header : NULL;
}

static void find_type(struct mu_py_exchange *exchange, PyObject *torch, PyObject *tensor) {
    PyObject *c_module = PyObject_GetAttrString(torch, "_C");
    exchange->is_neg = PyObject_GetAttrString(tensor, "is_neg");
    exchange->is_conj = PyObject_GetAttrString(tensor, "is_conj");
    exchange->impl = PyObject_GetAttrString(tensor, "_cdata");
    exchange->is_overridden =
        c_module == NULL ? NULL : PyObject_GetAttrString(c_module, "_has_torch_function_unary");
    Py_XDECREF(c_module);
    if (exchange->is_neg != NULL && exchange->is_conj != NULL && exchange->impl != NULL &&
        Py_TYPE(exchange->impl)->tp_descr_get != NULL && exchange->is_overridden != NULL &&
        PyType_Check(tensor) && mu_torch_storage_find(&exchange->storage)) {
        exchange->tensor_type = (PyTypeObject *)Py_NewRef(tensor);
    }
}

bool mu_py_exchange_find(struct mu_py_exchange *exchange) {
    if (exchange->table != NULL) {
        return true;
    }
    PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch"); /* borrowed */
    PyObject *tensor = torch == NULL ? NULL : PyObject_GetAttrString(torch, "Tensor");
    PyObject *capsule = tensor == NULL ? NULL : PyObject_GetAttrString(tensor, MU_DLPACK_ATTRIBUTE);
    const struct mu_dlpack_exchange *table = capsule == NULL ? NULL : table_of(capsule);
    exchange->table = table;
    if (table != NULL && table->dltensor_from_py_object_no_sync != NULL) {
        find_type(exchange, torch, tensor); /* others are asked for capsules */
    }
    Py_XDECREF(capsule);
    Py_XDECREF(tensor);
    PyErr_Clear();
    return exchange->table != NULL;
}

int mu_py_exchange_traverse(struct mu_py_exchange *exchange, visitproc visit, void *arg) {
    Py_VISIT(exchange->tensor_type);
    Py_VISIT(exchange->is_neg);
    Py_VISIT(exchange->is_conj);
    Py_VISIT(exchange->impl);
    Py_VISIT(exchange->is_overridden);
    return 0;
}

void mu_py_exchange_clear(struct mu_py_exchange *exchange) {
    exchange->table = NULL;
    Py_CLEAR(exchange->tensor_type);
    Py_CLEAR(exchange->is_neg);
    Py_CLEAR(exchange->is_conj);
    Py_CLEAR(exchange->impl);
    Py_CLEAR(exchange->is_overridden);
}
