/* The thread that works between steps: it drains when a ring fills, takes anchors, beats the heart,
 * polls for requests and writes for outputs that may block. It never takes the GIL. */
#ifndef MU_DRAIN_THREAD_H
#define MU_DRAIN_THREAD_H

#include <stdbool.h>

struct mu_recorder;

/* Calls the drain thread, which is started when there is none. Never blocks. */
void mu_drain_thread_call(struct mu_recorder *recorder);

/* Starts the thread that drains, beats the heart and takes anchors between steps. */
void mu_drain_thread_start(struct mu_recorder *recorder);

/* Asks the thread to stop and waits for it for five seconds at most, once: a write to a dead mount
 * must not keep a process from ending. Returns whether it has stopped. One that has not stops when
 * its write returns, and may be started again then. */
bool mu_drain_thread_stop(struct mu_recorder *recorder);

#endif
