/* Opens, moves and closes the files that a recorder writes, and adopts the journals of dead
 * processes.
 *
 * Functions are thread-safe unless they say "nobody may record meanwhile". The binding ensures that
 * by keeping the GIL; or, where files are opened and closed, by `gil`, which takes the GIL for the
 * moments that need it and not over any file operation.
 */
#ifndef MU_OPEN_PROFILE_H
#define MU_OPEN_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "stages/state.h"
#include "stages/thread_buffers.h"

/* Sets the destination of rows from now on; see output.h. Records that are not written yet go
 * there, too. On failure the recorder goes on as before. `gil` is NULL where nobody may record
 * meanwhile. */
MU_MUST_CHECK int mu_recorder_open_with(struct mu_recorder *recorder,
                                        const struct mu_output_config *config,
                                        const struct mu_alone *gil, struct mu_open_report *report,
                                        struct mu_error *err);

/* The same; nobody may record meanwhile. */
MU_MUST_CHECK int mu_recorder_open(struct mu_recorder *recorder,
                                   const struct mu_output_config *config,
                                   struct mu_open_report *report, struct mu_error *err);

/* Writes everything, and keeps later records in memory. Waits four seconds at most for an output
 * that does not answer. `gil` as above. */
MU_MUST_CHECK int mu_recorder_close_with(struct mu_recorder *recorder, const struct mu_alone *gil,
                                         struct mu_error *err);

/* The same; nobody may record meanwhile. */
MU_MUST_CHECK int mu_recorder_close(struct mu_recorder *recorder, struct mu_error *err);

/* Called after mu_timer_new_thread_buffer returned NULL. If the journal's file system was full,
 * moves the journal to memory and returns true: the caller should try again. Nobody may record
 * meanwhile. */
bool mu_recorder_give_up_journal(struct mu_recorder *recorder);

/* Turns complete records into rows and writes them. `wait_ns` bounds the wait for a drain that is
 * running. When that time is over, or when the output may block, the drain thread is woken
 * instead. */
void mu_recorder_drain(struct mu_recorder *recorder, int64_t wait_ns);

/* Copies the rows that wait in memory as text, which the caller frees. The text is empty while
 * there are files. MU_ERR_STATE when the output stays busy for `wait_ns`. */
MU_MUST_CHECK int mu_recorder_copy_memory(struct mu_recorder *recorder, int64_t wait_ns,
                                          char **text, size_t *length, struct mu_error *err);

/* Drains, then shifts all later timestamps. Returns false, and shifts nothing, when the output does
 * not answer for seconds. */
bool mu_recorder_set_time_offset(struct mu_recorder *recorder, int64_t offset_ns);

/* Makes the calling thread's buffer of the timer. A forked child first opens its own files. NULL
 * when there is no room for a buffer; that is counted. */
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
