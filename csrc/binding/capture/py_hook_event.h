/* The type HookEvent: a profiled function begins or ends. */
#ifndef MU_PY_HOOK_EVENT_H
#define MU_PY_HOOK_EVENT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "capture/capture.h"
#include "core/state.h"

/* Whether `object` is a HookEvent, or of a subclass. */
static inline bool mu_py_is_hook_event(const struct mu_state *state, PyObject *object) {
    return PyObject_TypeCheck(object, state->hook_event_type);
}

/* The name alone, borrowed from the event. Returns 0, or -1 with TypeError. */
int mu_py_hook_name(PyObject *event, struct mu_capture_text *name);

/* All fields, and the calling thread. The texts are borrowed from the event. 0, or -1 with
 * TypeError. */
int mu_py_hook_read(struct mu_state *state, PyObject *event, struct mu_capture_event *out);

#endif
