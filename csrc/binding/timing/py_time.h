/* Recorders of durations by name, and the list of those that are enabled. This is the C base of
 * my_utils.timing.
 *
 * Enabled recorders are in a context variable, so that each thread and each asyncio task has its
 * own stack. The GIL guards the durations, and where there is none a critical section of their
 * recorder.
 */
#ifndef MU_PY_TIME_H
#define MU_PY_TIME_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/clock.h"
#include "core/state.h"
#include "timing/samples.h"

/* The place of a name's durations in one recorder. All zero: no place. */
struct mu_py_series {
    uint64_t recorder;          /* its number, never used twice in a process; 0: no recorder */
    struct mu_samples *samples; /* borrowed from the recorder */
};

/* The recorders that are enabled in the calling thread or task: a new reference to a tuple, NULL
 * without an exception when there are none. */
PyObject *mu_py_enabled_recorders(struct mu_state *state);

/* Adds a duration to each recorder of a tuple. `name` is an exact str. `cache` holds the place of
 * this name; it may be NULL. Leaves a pending exception alone and sets none. */
void mu_py_record(PyObject *recorders, PyObject *name, uint64_t ns, struct mu_py_series *cache);

/* A new reference to an exact str with the text of `value`; NULL with TypeError. */
PyObject *mu_py_exact_name(PyObject *value, const char *argument);

/* A new block that times into a tuple of recorders; NULL: into those enabled when it is entered.
 * `name` is an exact str. */
PyObject *mu_py_timed_block(struct mu_state *state, PyObject *name, PyObject *recorders);

/* The durations as plain values, and the packed histogram of some; NULL with an exception. */
PyObject *mu_py_samples_state(const struct mu_samples *samples);
PyObject *mu_py_packed_histogram(const struct mu_aggregate *aggregate, size_t used);

/* Adds durations from what `mu_py_samples_state` gave, which may come from elsewhere: 0, or -1 with
 * TypeError or ValueError and nothing added. */
int mu_py_samples_restore(struct mu_samples *into, PyObject *state);

/* Says to all timed functions whether any recorder is enabled. */
void mu_py_timing_switch_set(struct mu_state *state, int on);

static inline uint64_t mu_py_now_ns(void) {
    return (uint64_t)mu_clock_ns(CLOCK_MONOTONIC);
}

#endif
