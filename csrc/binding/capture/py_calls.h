/* The calls that have begun and not ended, by context: which of them ends at an event?
 *
 * Calls of one function overlap, in threads, coroutines and generators, and a framework may make
 * one event for the beginning of a call and another one for its end. So a call is found in its
 * context (PEP 567), which a task or thread may have inherited. A context holds its innermost call,
 * and each call holds the one outside it. A call that nobody ends is freed with its contexts.
 *
 * Only calls of the function that opened a window are kept, and only while the window is open. All
 * functions need the GIL, or where there is none a critical section of the object that has windows.
 * The links between an opener, its event and its calls cross such objects and threads:
 * mu_state.windows_lock guards them.
 */
#ifndef MU_PY_CALLS_H
#define MU_PY_CALLS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "capture/capture.h"
#include "capture/py_opener.h"
#include "core/state.h"

/* What begins or ends, as the object sees it that has windows. */
struct mu_py_call_end {
    struct mu_state *state; /* borrowed, as the next two */
    PyObject *event;        /* a HookEvent */
    const struct mu_capture_event *read;
    struct mu_py_opener *opener; /* of its open window */
};

/* A call begins in this context; it is the opener, or another one. 0, or -1 with MemoryError. */
int mu_py_call_opens(const struct mu_py_call_end *begin);
int mu_py_call_begin(const struct mu_py_call_end *begin);

/* The number of the call of this context that ends here: the innermost that began with the same
 * event, else the innermost that the event fits. 0 for none. */
uint64_t mu_py_call_ending(const struct mu_py_call_end *end);

/* Whether that call is one of this context. */
bool mu_py_call_is_here(const struct mu_py_call_end *here, uint64_t number);

/* The call has ended. */
void mu_py_call_end(const struct mu_py_call_end *end, uint64_t number);

/* The window is closed: its calls are not needed any more. */
void mu_py_opener_leave(struct mu_state *state, struct mu_py_opener *opener);

#endif
