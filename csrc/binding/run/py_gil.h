/* Where a thread waits that wants the GIL. */
#ifndef MU_PY_GIL_H
#define MU_PY_GIL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "host/thread_wait.h"

/* The addresses of the GIL of the calling thread's interpreter. A thread is made to wait for it,
 * and what the kernel says of that one is compared: false where it is not this, where Python's
 * layout is not known, and for other interpreters than the main one. Needs the GIL; takes a
 * millisecond, and a tenth of a second at most. */
bool mu_py_gil_find(struct mu_wait_lock *out);

#endif
