/* The Timer type, for the other types of the binding. */
#ifndef MU_PY_TIMER_H
#define MU_PY_TIMER_H

#include "stages/timer_state.h"

/* Begin and end a stage on the calling thread: 0, or -1 with an exception. `appearance` may be
 * NULL. */
int mu_py_timer_start(struct mu_py_timer *self, const struct mu_py_name *name,
                      const struct mu_py_appearance *appearance);
int mu_py_timer_stop(struct mu_py_timer *self, const struct mu_py_name *name);

/* The same for a stage that only this handle ends: 0, or -1 with an exception. */
int mu_py_timer_enter(struct mu_py_timer *self, struct mu_py_stage *handle);
int mu_py_timer_leave(struct mu_py_timer *self, struct mu_py_stage *handle);

/* The step of the timer's records from here on: 0, or -1 with an exception. */
int mu_py_timer_set_step(struct mu_py_timer *self, int64_t step);

#endif
