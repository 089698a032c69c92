/* What a timer and its handles hold, for the files that use both. */
#ifndef MU_PY_TIMER_STATE_H
#define MU_PY_TIMER_STATE_H

#include "core/text.h"
#include "stages/py_gpu_events.h"
#include "stages/recorder_state.h"

struct mu_py_handles;

/* A handle. */
struct mu_py_stage {
    PyObject_HEAD struct mu_py_timer *timer; /* owned */
    PyObject *text;                          /* owned: the name, a str */
    struct mu_py_name name;                  /* borrowed from text */
    mu_py_count entered;                     /* times, without those that it was left */
    bool has_appearance;
    struct mu_py_appearance appearance; /* its domain is borrowed from `domain` */
    PyObject *domain;                   /* owned; may be NULL */
};

struct mu_py_timer {
    PyObject_HEAD struct mu_timer timer; /* timer.recorder is NULL before __init__ */
    struct mu_state *state;              /* borrowed from the module, which the type keeps alive */
    _Atomic(struct mu_py_handles *) handles; /* owned: a list of all; see py_handles.h */
    bool strict;
    struct mu_py_gpu_events gpu_events;
    _Atomic uint64_t unmatched_stops;
    _Atomic uint64_t closed_stages;
};

/* A new Stage of the timer. `name` is a str. `appearance` NULL means the default one. `domain` is
 * the object that `appearance` borrows its domain from; it may be NULL. */
PyObject *mu_py_stage_new(struct mu_py_timer *timer, PyObject *name,
                          const struct mu_py_appearance *appearance, PyObject *domain);

#endif
