/* The layout of the Python that this module was built for. One file for each way in which versions
 * tell it. */
#ifndef MU_PY_LAYOUT_H
#define MU_PY_LAYOUT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "process_stacks/python_layout.h"

/* NULL, or why stacks of this Python cannot be read: a text that lives forever. */
const char *mu_py_layout(struct mu_python_layout *layout);

/* What public headers say, the same in all versions. */
void mu_py_layout_public(struct mu_python_layout *layout);

#endif
