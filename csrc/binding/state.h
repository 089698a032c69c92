/* What the module owns, and the table of its subsystems.
 *
 * One struct for each module object; nothing here is static. A subsystem that holds Python objects
 * for the life of the module adds its fields to the struct, and traverse and clear functions to
 * the lists in module.c. All of it is used under the GIL.
 */
#ifndef MU_STATE_H
#define MU_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

struct mu_state {
    PyObject *format_error; /* owned: the exception type my_utils._core.FormatError */
};

extern PyModuleDef mu_module;

static inline struct mu_state *mu_state_of(PyObject *module) {
    return (struct mu_state *)PyModule_GetState(module);
}

/* The state of the module that made the type of `object`, or one of its bases; borrowed. NULL with
 * TypeError set when no type of this module is among them. */
struct mu_state *mu_state_of_object(PyObject *object);

/* Each adds the types and functions of one subsystem to the module: 0, or -1 with an exception. */
int mu_py_errors_exec(PyObject *module);

#endif
