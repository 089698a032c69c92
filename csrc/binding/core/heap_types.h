/* Heap types of the module: how they are made, and how their methods are found fast. Used under
 * the GIL. Functions return 0, or -1 with an exception. */
#ifndef MU_HEAP_TYPES_H
#define MU_HEAP_TYPES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Makes the type of `spec` and adds it to the module under its name. `kept`, where it is not NULL,
 * gets a reference of its own, which the caller owns. */
int mu_py_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **kept);

/* Gives a class method descriptors of its own for every method of the table that it does not
 * define itself. CPython specialises a call only when the type of `self` is exactly the type of
 * the descriptor, so a subclass that merely inherits pays for it. */
int mu_py_own_descriptors(PyTypeObject *type, PyMethodDef *methods);

#endif
