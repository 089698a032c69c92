/* The recorder of the process, which the module's state holds. */
#ifndef MU_RECORDER_STATE_H
#define MU_RECORDER_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core/state.h"
#include "stages/drain_calls.h"
#include "stages/fork.h"
#include "stages/new_buffer.h"
#include "stages/open_profile.h"
#include "stages/recorder.h"
#include "stages/recording.h"
#include "stages/timer.h"

/* The recorder, started at first use; borrowed. NULL with an exception set. Without memory it is
 * there and records nothing. */
struct mu_recorder *mu_py_recorder(struct mu_state *state);

/* Where the recorder found no memory to begin with, it begins now if there is some. */
static inline void mu_py_recorder_try_again(struct mu_state *state, struct mu_recorder *recorder) {
    if (__builtin_expect(recorder->broken, 0)) {
        mu_py_lock_take(&state->lock);
        mu_recorder_try_again(recorder);
        mu_py_lock_release(&state->lock);
    }
}

/* Around each call that records, with nothing of Python in between: where no GIL does so, they keep
 * the journal where it is. */
static inline void mu_py_recording_begin(struct mu_thread_buffer *buffer) {
    if (MU_FREE_THREADED) {
        mu_recording_begin(buffer);
    }
}

static inline void mu_py_recording_end(struct mu_thread_buffer *buffer) {
    if (MU_FREE_THREADED) {
        mu_recording_end(buffer);
    }
}

/* mu_timer_init, after a collection of garbage where that may make a place free. */
MU_MUST_CHECK int mu_py_place_timer(struct mu_timer *timer, struct mu_recorder *recorder,
                                    const char *tag, struct mu_error *err);

/* Makes the calling thread's buffer and gives it the thread's Python name. NULL, without an
 * exception, when there is no room for a thread buffer. */
struct mu_thread_buffer *mu_py_new_thread_buffer(struct mu_timer *timer);

/* The calling thread's buffer of the timer, NULL when there is no room for one. */
static inline struct mu_thread_buffer *mu_py_thread_buffer(struct mu_timer *timer) {
    struct mu_thread_buffer *buffer = mu_timer_known_buffer(timer);
    return __builtin_expect(buffer != NULL, 1) ? buffer : mu_py_new_thread_buffer(timer);
}

/* With a step hook the recorder serves requests of other processes, without one it does not.
 * Nothing where there is no recorder yet. */
void mu_py_listen(struct mu_state *state);

/* Warns of what went wrong in the engine since the last call, each kind once. */
void mu_py_report_troubles(struct mu_state *state);

#endif
