/* The recorder of the process, as the binding holds it in the module's state. */
#ifndef MU_RECORDER_STATE_H
#define MU_RECORDER_STATE_H

#include "recorder.h"
#include "state.h"

/* The recorder, made at first use; borrowed. NULL with an exception set. */
struct mu_recorder *mu_py_recorder(struct mu_state *state);

/* Makes the calling thread's lane and gives it the thread's Python name. NULL, without an
 * exception, when there is no room for a lane. */
struct mu_lane *mu_py_new_lane(struct mu_timer *timer);

/* The calling thread's lane of the timer, NULL when there is no room for one. */
static inline struct mu_lane *mu_py_lane(struct mu_timer *timer) {
    struct mu_thread *thread = mu_this_thread;
    if (__builtin_expect(thread != NULL && thread->recorder == timer->recorder, 1)) {
        struct mu_lane *lane = thread->lanes[timer->index];
        if (__builtin_expect(lane != NULL, 1)) {
            return lane;
        }
    }
    return mu_py_new_lane(timer);
}

/* Warns of what went wrong in the engine since the last call, each kind once. */
void mu_py_report_troubles(struct mu_state *state);

#endif
