/* The type HookEvent: a profiled function begins or ends. */
#ifndef MU_PY_HOOK_EVENT_H
#define MU_PY_HOOK_EVENT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "capture/capture.h"
#include "capture/py_opener.h"
#include "core/state.h"

/* Whether `object` is a HookEvent, or of a subclass. */
static inline bool mu_py_is_hook_event(const struct mu_state *state, PyObject *object) {
    return PyObject_TypeCheck(object, state->hook_event_type);
}

/* The name alone, borrowed from the event. Returns 0, or -1 with TypeError. */
int mu_py_hook_name(PyObject *event, struct mu_capture_text *name);

/* All fields but the call. The texts are borrowed from the event. An invalid number in `meta` is
 * left out, with one warning. 0, or -1 with TypeError. */
int mu_py_hook_read(struct mu_state *state, PyObject *event, struct mu_capture_event *out);

/* Borrowed; None or NULL for no role. */
PyObject *mu_py_hook_role(PyObject *event);

/* Borrowed; NULL when the user deleted it. */
PyObject *mu_py_hook_name_object(PyObject *event);

/* Notifies `opener` when the event is gone, unless it already notifies another one. The caller
 * holds `lock`, mu_state.windows_lock. */
void mu_py_hook_watch_locked(PyObject *event, struct mu_py_opener *opener, struct mu_py_lock *lock);
void mu_py_hook_leave_locked(struct mu_py_opener *opener);

/* A number of the event's own, given at the first call; mu_py_hook_entered gives none: 0. */
uint64_t mu_py_hook_number(struct mu_state *state, PyObject *event);
uint64_t mu_py_hook_entered(PyObject *event);

#endif
