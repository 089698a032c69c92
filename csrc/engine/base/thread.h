/* Threads of the engine that work now and then, and how they wait. */
#ifndef MU_THREAD_H
#define MU_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef void *mu_thread_main(void *argument);

/* Starts a thread that takes no signals but those of its own faults: a fault while its signal is
 * blocked would end the process. thread: gets its name, to be joined; NULL for a detached one.
 * False where the system gives no thread. */
MU_MUST_CHECK bool mu_thread_start(pthread_t *thread, size_t stack_bytes, mu_thread_main *body,
                                   void *argument);

/* A condition whose timed waits use CLOCK_MONOTONIC. */
void mu_cond_init(pthread_cond_t *wake);

/* Waits until a moment of CLOCK_MONOTONIC. False as soon as `stop` is set, which `lock` guards and
 * of which `wake` is signalled. */
bool mu_wait_until(pthread_mutex_t *lock, pthread_cond_t *wake, const bool *stop, int64_t then_ns);

#endif
