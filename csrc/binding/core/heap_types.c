#include "core/heap_types.h"

int mu_py_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **kept) {
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL || PyModule_AddType(module, type) < 0) {
        Py_XDECREF(type);
        return -1;
    }
    if (kept == NULL) {
        Py_DECREF(type);
    } else {
        *kept = type;
    }
    return 0;
}

int mu_py_own_descriptors(PyTypeObject *type, PyMethodDef *methods) {
    for (PyMethodDef *method = methods; method->ml_name != NULL; method++) {
        PyObject *name = PyUnicode_InternFromString(method->ml_name);
        if (name == NULL) {
            return -1;
        }
        int own = PyDict_Contains(type->tp_dict, name);
        PyObject *descriptor = own == 0 ? PyDescr_NewMethod(type, method) : NULL;
        int rc = own == 0 ? -1 : own > 0 ? 0 : own;
        if (descriptor != NULL) {
            rc = PyObject_SetAttr((PyObject *)type, name, descriptor);
            Py_DECREF(descriptor);
        }
        Py_DECREF(name);
        if (rc < 0) {
            return -1;
        }
    }
    return 0;
}

int mu_py_traverse_type(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    return 0;
}
