/* The thread that works in the background: it drains when a ring fills, takes anchors, writes the
 * heartbeat, polls for requests, and writes to outputs that may block. It never takes the GIL. */
#ifndef MU_DRAIN_THREAD_H
#define MU_DRAIN_THREAD_H

#include <stdbool.h>
#include <stdint.h>

struct mu_recorder;

/* Wakes the drain thread, and starts it when there is none. Never blocks. */
void mu_drain_thread_call(struct mu_recorder *recorder);

/* Starts the drain thread. */
void mu_drain_thread_start(struct mu_recorder *recorder);

/* Requests the thread to stop, and waits for `wait_ns` at most, once: a write to a dead mount must
 * not keep a process from ending. Returns whether the thread has stopped. If not, it stops when its
 * write returns, and may be started again after that. */
bool mu_drain_thread_stop(struct mu_recorder *recorder, int64_t wait_ns);

#endif
