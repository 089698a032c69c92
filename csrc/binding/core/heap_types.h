/* Makes the heap types of the module, and lets their methods be found fast. The functions need the
 * GIL. They return 0, or -1 with an exception. */
#ifndef MU_HEAP_TYPES_H
#define MU_HEAP_TYPES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Makes the type of `spec` and adds it to the module under its name. When `kept` is not NULL it
 * gets a new reference, which the caller owns. */
int mu_py_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **kept);

/* Gives a class its own method descriptors for every method of the table that it does not define
 * itself. CPython specialises a call only when the type of `self` is exactly the type of the
 * descriptor, so a subclass that merely inherits pays for it. */
int mu_py_own_descriptors(PyTypeObject *type, PyMethodDef *methods);

/* tp_traverse of objects that lead nowhere but to their type. One that the module itself owns needs
 * it: the type leads to the module, and the collector frees such a circle only if it sees it whole.
 */
int mu_py_traverse_type(PyObject *object, visitproc visit, void *arg);

#endif
