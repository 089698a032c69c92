/* Opening, moving and closing what a recorder writes to; adopting the journals of the dead.
 *
 * Functions are thread-safe unless they say "nobody may record meanwhile"; the binding sees to
 * that by keeping the GIL.
 */
#ifndef MU_OPEN_PROFILE_H
#define MU_OPEN_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "stages/state.h"
#include "stages/thread_buffers.h"

/* Where rows go from now on; see output.h. What is recorded and not yet written moves along.
 * Nobody may record meanwhile. On failure the recorder goes on as before. */
MU_MUST_CHECK int mu_recorder_open(struct mu_recorder *recorder,
                                   const struct mu_output_config *config,
                                   struct mu_open_report *report, struct mu_error *err);

/* Writes everything out and goes back to memory. Nobody may record meanwhile. */
MU_MUST_CHECK int mu_recorder_close(struct mu_recorder *recorder, struct mu_error *err);

/* After mu_timer_new_thread_buffer returned NULL: when that was for want of room in the journal's
 * file system, moves the journal to memory, and true says that another attempt is worth while.
 * Nobody may record meanwhile. */
bool mu_recorder_give_up_journal(struct mu_recorder *recorder);

/* Turns complete records into rows and writes them. `wait_ns` bounds the wait for a drain that is
 * under way; when it is over, or when the output may block, the drain thread is called instead. */
void mu_recorder_drain(struct mu_recorder *recorder, int64_t wait_ns);

/* The rows that wait in memory, as text that the caller frees; nothing while there are files.
 * MU_ERR_STATE when the output in use does not answer within `wait_ns`. */
MU_MUST_CHECK int mu_recorder_copy_memory(struct mu_recorder *recorder, int64_t wait_ns,
                                          char **text, size_t *length, struct mu_error *err);

/* Drains, then shifts all later timestamps. */
void mu_recorder_set_time_offset(struct mu_recorder *recorder, int64_t offset_ns);

/* Makes the calling thread's buffer of the timer, in a forked child after files of its own. NULL
 * when there is no room for one (counted). */
struct mu_thread_buffer *mu_timer_new_thread_buffer(struct mu_timer *timer);

/* The calling thread's buffer of the timer. */
static inline struct mu_thread_buffer *mu_timer_thread_buffer(struct mu_timer *timer) {
    struct mu_thread *thread = mu_this_thread;
    if (__builtin_expect(thread != NULL && thread->recorder == timer->recorder, 1)) {
        struct mu_thread_buffer *buffer = thread->buffers[timer->index];
        if (__builtin_expect(buffer != NULL, 1)) {
            return buffer;
        }
    }
    return mu_timer_new_thread_buffer(timer);
}

#endif
