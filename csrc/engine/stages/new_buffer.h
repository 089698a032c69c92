/* The calling thread's buffer of a timer, which is made at first use. */
#ifndef MU_NEW_BUFFER_H
#define MU_NEW_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

#include "stages/state.h"
#include "stages/thread_buffers.h"

/* Makes the calling thread's buffer of the timer. A forked child first opens its own files. NULL
 * when there is no room for a buffer; that is counted. */
struct mu_thread_buffer *mu_timer_new_thread_buffer(struct mu_timer *timer);

/* Called after mu_timer_new_thread_buffer returned NULL. If the journal's file system was full, and
 * no drain runs, moves the journal to memory and returns true: the caller should try again. Nobody
 * may record meanwhile. Waits for nobody. */
bool mu_recorder_give_up_journal(struct mu_recorder *recorder);

/* The calling thread's buffer of the timer; NULL where it has none yet. */
static inline struct mu_thread_buffer *mu_timer_known_buffer(const struct mu_timer *timer) {
    struct mu_thread *thread = mu_this_thread;
    bool is_here = thread != NULL && thread->recorder == timer->recorder;
    return __builtin_expect(is_here, 1) ? thread->buffers[timer->index] : NULL;
}

/* The same, made where it has none. */
static inline struct mu_thread_buffer *mu_timer_thread_buffer(struct mu_timer *timer) {
    struct mu_thread_buffer *buffer = mu_timer_known_buffer(timer);
    return __builtin_expect(buffer != NULL, 1) ? buffer : mu_timer_new_thread_buffer(timer);
}

#endif
