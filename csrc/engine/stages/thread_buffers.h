/* Threads and their buffers. They are made at first use, and released when the thread or the timer
 * ends.
 *
 * Threads reach their buffers through one thread-local pointer to a page that is wiped in a forked
 * child, so that a child never writes where its parent does.
 */
#ifndef MU_THREAD_BUFFERS_H
#define MU_THREAD_BUFFERS_H

#include <stdint.h>

#include "stages/state.h"
#include "stages/thread_buffer.h"

/* What a thread has; one page, wiped in a forked child. */
struct mu_thread {
    struct mu_recorder *recorder; /* shared (mu_recorder.users); NULL after a fork */
    struct mu_thread *next;       /* in the recorder's list */
    uint32_t tid;
    /* By the timer's index; NULL at that of timers without a place. */
    struct mu_thread_buffer *buffers[MU_TIMERS_MAX + 1];
};

extern _Thread_local struct mu_thread *mu_this_thread
#if defined(__x86_64__)
    __attribute__((tls_model("initial-exec")))
#endif
    ;

/* Destructor of recorder->thread_key. The recorder's owner may be destroying it meanwhile. */
void mu_thread_ends(void *page);

/* Takes the calling thread's state of this recorder from it. The recorder has ended. */
void mu_thread_forget(struct mu_recorder *recorder);

/* One of recorder->users goes; the memory goes with the last one. */
void mu_recorder_leave(struct mu_recorder *recorder);

/* Releases a thread buffer. Its figures stay with its timer, and its chunk is free once it is
 * drained. The caller holds recorder->registry_lock. */
void mu_thread_buffer_retire_locked(struct mu_recorder *recorder, struct mu_thread_buffer *buffer);

/* Makes the calling thread's buffer of the timer; NULL when there is no room for one. The caller
 * holds recorder->registry_lock. */
struct mu_thread_buffer *mu_thread_buffer_new_locked(struct mu_timer *timer);

/* Counts a stage or an event that is not recorded, for want of a thread buffer. The rows say so,
 * and after a kill the journal does. */
void mu_recorder_count_unplaced(struct mu_recorder *recorder);

/* Names the calling thread's track. */
void mu_recorder_set_thread_name(struct mu_recorder *recorder, struct mu_thread_buffer *buffer,
                                 const char *name);

#endif
