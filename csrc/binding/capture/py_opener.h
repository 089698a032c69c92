/* The call that opened a window, for its calls (py_calls.h) and its event (py_hook_event.h). */
#ifndef MU_PY_OPENER_H
#define MU_PY_OPENER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

struct mu_py_call;
struct mu_py_run;

/* The call that opened a window. Its end can be reported in a context that knows it, or with the
 * event of its beginning. */
struct mu_py_opener {
    struct mu_py_call *call; /* borrowed from its contexts; NULL for none */
    struct mu_py_run *run;   /* owned: shared with the calls of this window; NULL for none */
    PyObject *event;         /* borrowed; NULL for none */
    _Atomic bool call_gone;  /* all contexts that knew it are gone */
    _Atomic bool event_gone;
};

#endif
