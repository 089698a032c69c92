#include "base/thread.h"

#include <signal.h>
#include <time.h>

bool mu_thread_start(pthread_t *thread, size_t stack_bytes, mu_thread_main *body, void *argument) {
    pthread_attr_t attributes;
    pthread_t detached;
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack_bytes);
    if (thread == NULL) {
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        thread = &detached;
    }
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, &attributes, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return rc == 0;
}

void mu_cond_init(pthread_cond_t *wake) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(wake, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool mu_wait_until(pthread_mutex_t *lock, pthread_cond_t *wake, const bool *stop, int64_t then_ns) {
    struct timespec until = {then_ns / 1000000000, then_ns % 1000000000};
    int rc = 0;
    pthread_mutex_lock(lock);
    while (rc == 0 && !*stop) {
        rc = pthread_cond_timedwait(wake, lock, &until);
    }
    bool go_on = !*stop;
    pthread_mutex_unlock(lock);
    return go_on;
}
