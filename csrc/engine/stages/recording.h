/* Keeps threads from recording while the journal's mapping moves, where no GIL does so.
 *
 * A thread says in its buffer that it records, and looks whether somebody moves the journal. Who
 * moves it says so, and waits until nobody records. One of the two must see the other, so each
 * needs a barrier between its store and its load. Recording is hot and moving is rare: the mover's
 * membarrier(2) is a barrier for all threads of the process, and costs the others nothing. Where
 * the kernel or a sandbox does not know it, each thread has a barrier of its own.
 */
#ifndef MU_RECORDING_H
#define MU_RECORDING_H

#include <stdatomic.h>
#include <stdbool.h>

#include "stages/state.h"
#include "stages/thread_buffer.h"

/* Bits of mu_recorder.moving. */
enum mu_moving {
    MU_MOVING = 1,         /* the journal, by the holder of move_lock */
    MU_BARRIER_BY_ALL = 2, /* each thread has a barrier of its own */
};

/* From here on threads record between mu_recording_begin and mu_recording_end only. Called before
 * the first thread buffer is made, and in a forked child. */
void mu_recording_guard(struct mu_recorder *recorder);

/* Waits until no thread records; none begins until mu_recording_resume. Takes registry_lock, which
 * mu_recording_resume releases. One caller at a time, which holds drain_lock. */
void mu_recording_pause(struct mu_recorder *recorder);
void mu_recording_resume(struct mu_recorder *recorder);

/* The same, with the GIL where recorder->gil has it to give. It comes before registry_lock, which
 * threads that have the GIL wait for. owner: the recorder, untyped for struct mu_alone. */
void mu_recording_begin_alone(void *owner);
void mu_recording_end_alone(void *owner);

/* For readers of the own journal: it stays where it is in between, and no drain commits. Threads
 * record on. Nothing of Python runs there. */
void mu_recording_hold(struct mu_recorder *recorder);
void mu_recording_let_go(struct mu_recorder *recorder);

/* The rest of mu_recording_begin where mu_recorder.moving is not 0: waits while somebody moves the
 * journal. */
void mu_recording_look(struct mu_thread_buffer *buffer);

/* The calling thread, which owns the buffer, records until mu_recording_end. It waits for nothing
 * but registry_lock in between, and does not begin again. */
static inline void mu_recording_begin(struct mu_thread_buffer *buffer) {
    atomic_store_explicit(&buffer->recording, true, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* the mover makes it a barrier */
    if (__builtin_expect(atomic_load_explicit(&buffer->recorder->moving, memory_order_acquire) != 0,
                         0)) {
        mu_recording_look(buffer);
    }
}

static inline void mu_recording_end(struct mu_thread_buffer *buffer) {
    atomic_store_explicit(&buffer->recording, false, memory_order_release);
}

#endif
