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

static const struct mu_dlpack_exchange *find(struct mu_py_exchange *found) {
    PyObject *name = PyUnicode_FromString("torch");
    PyObject *torch = name == NULL ? NULL : mu_py_dict_value(PyImport_GetModuleDict(), name);
    PyObject *tensor = torch == NULL ? NULL : PyObject_GetAttrString(torch, "Tensor");
    PyObject *capsule = tensor == NULL ? NULL : PyObject_GetAttrString(tensor, MU_DLPACK_ATTRIBUTE);
    const struct mu_dlpack_exchange *table = capsule == NULL ? NULL : table_of(capsule);
    if (table != NULL && table->dltensor_from_py_object_no_sync != NULL) {
        find_type(found, torch, tensor); /* others are asked for capsules */
    }
    Py_XDECREF(capsule);
    Py_XDECREF(tensor);
    Py_XDECREF(torch);
    Py_XDECREF(name);
    PyErr_Clear();
    return table;
}

/* Takes what was found. False where another thread was first. */
static bool keep_locked(struct mu_py_exchange *exchange, const struct mu_py_exchange *found,
                        const struct mu_dlpack_exchange *table) {
    if (exchange->table != NULL) {
        return false;
    }
    exchange->tensor_type = found->tensor_type;
    exchange->is_neg = found->is_neg;
    exchange->is_conj = found->is_conj;
    exchange->impl = found->impl;
    exchange->is_overridden = found->is_overridden;
    exchange->storage = found->storage;
    exchange->table = table;
    return true;
}

bool mu_py_exchange_find(struct mu_py_exchange *exchange) {
    if (exchange->table != NULL) {
        return true;
    }
    struct mu_py_exchange found = {.table = NULL};
    const struct mu_dlpack_exchange *table = find(&found);
    mu_py_lock_take(&exchange->lock);
    bool kept = table != NULL && keep_locked(exchange, &found, table);
    mu_py_lock_release(&exchange->lock);
    if (!kept) {
        mu_py_exchange_clear(&found);
    }
    return table != NULL;
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
