#include "stages/drain_thread.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/thread.h"
#include "journal/page_guard.h"
#include "stages/drain.h"
#include "stages/heartbeat.h"
#include "stages/state.h"

enum { STACK_BYTES = 1024 * 1024 }; /* the CUDA driver is called on it */

static const int64_t beat_ns = 500000000;
static const int64_t heartbeat_file_ns = 2000000000;
static const int64_t poll_ns = 450000000; /* polls at every beat_ns, and not at every call */

/* Waits for a call or for beat_ns. Returns false when the thread must end. */
static bool wait_for_work(struct mu_recorder *recorder, bool *called) {
    struct timespec until = mu_clock_after(CLOCK_MONOTONIC, beat_ns);
    pthread_mutex_lock(&recorder->thread_lock);
    int rc = 0;
    while (rc == 0 && !recorder->thread_stop && !atomic_load(&recorder->thread_called)) {
        rc = pthread_cond_timedwait(&recorder->thread_wake, &recorder->thread_lock, &until);
    }
    *called = atomic_exchange(&recorder->thread_called, false);
    bool go_on = !recorder->thread_stop;
    pthread_mutex_unlock(&recorder->thread_lock);
    return go_on;
}

static void beat(struct mu_recorder *recorder, int64_t *next_file_ns) {
    struct mu_journal_header *header = mu_journal_header(&recorder->journal);
    int64_t now = mu_clock_ns(CLOCK_MONOTONIC);
    atomic_store_explicit(&header->heartbeat_real_ns, mu_clock_ns(CLOCK_REALTIME),
                          memory_order_relaxed);
    if (recorder->output.kind == MU_OUTPUT_FILE && now >= *next_file_ns) {
        *next_file_ns = now + heartbeat_file_ns;
        mu_heartbeat_write(recorder, false);
        if (!mu_output_is_in_place(&recorder->output)) {
            atomic_store(&recorder->troubles.missing_csv, 1);
        }
    }
}

/* Called without the drain's lock, so that nobody waits for a directory that hangs. */
static void poll_requests(struct mu_recorder *recorder, int64_t *next_poll_ns) {
    int64_t now = mu_clock_ns(CLOCK_MONOTONIC);
    if (now >= *next_poll_ns) {
        *next_poll_ns = now + poll_ns;
        mu_control_poll(&recorder->control);
    }
}

static void *thread_main(void *argument) {
    struct mu_recorder *recorder = argument;
    int64_t next_file_ns = 0, next_poll_ns = 0;
    bool called;
    while (wait_for_work(recorder, &called)) {
        mu_page_guard_put_first(); /* before a lock that a thread in a foreign handler may hold */
        pthread_mutex_lock(&recorder->drain_lock);
        if (called) {
            mu_drain_run_lock_held(recorder);
        } else {
            mu_drain_follow_clock_lock_held(recorder);
        }
        beat(recorder, &next_file_ns);
        pthread_mutex_unlock(&recorder->drain_lock);
        poll_requests(recorder, &next_poll_ns);
    }
    if (called) {
        /* A close waits for this thread with a time limit, so work that may block is done here and
         * not by the caller. */
        pthread_mutex_lock(&recorder->drain_lock);
        mu_drain_run_lock_held(recorder);
        pthread_mutex_unlock(&recorder->drain_lock);
    }
    pthread_mutex_lock(&recorder->thread_lock);
    recorder->thread_runs = recorder->thread_stop = false;
    atomic_store(&recorder->thread_called, false); /* a call that came late starts another thread */
    pthread_cond_broadcast(&recorder->thread_wake);
    pthread_mutex_unlock(&recorder->thread_lock);
    return NULL;
}

static void start_lock_held(struct mu_recorder *recorder) {
    if (recorder->thread_runs || recorder->thread_stop) {
        return;
    }
    recorder->thread_runs = mu_thread_start(NULL, STACK_BYTES, thread_main, recorder);
    if (!recorder->thread_runs) {
        atomic_store(&recorder->thread_called, false); /* the next call tries again */
    }
}

void mu_drain_thread_start(struct mu_recorder *recorder) {
    pthread_mutex_lock(&recorder->thread_lock);
    start_lock_held(recorder);
    pthread_mutex_unlock(&recorder->thread_lock);
}

void mu_drain_thread_call(struct mu_recorder *recorder) {
    if (recorder->broken || atomic_exchange(&recorder->thread_called, true)) {
        return;
    }
    pthread_mutex_lock(&recorder->thread_lock);
    start_lock_held(recorder);
    pthread_cond_broadcast(&recorder->thread_wake);
    pthread_mutex_unlock(&recorder->thread_lock);
}

/* Asks the thread that runs now, which a late call may have started. Returns whether one runs. */
static bool ask_to_end_lock_held(struct mu_recorder *recorder) {
    recorder->thread_stop = recorder->thread_runs;
    pthread_cond_broadcast(&recorder->thread_wake);
    return recorder->thread_runs;
}

bool mu_drain_thread_stop(struct mu_recorder *recorder, int64_t wait_ns) {
    pthread_mutex_lock(&recorder->thread_lock);
    if (recorder->thread_stop) {
        wait_ns = 0; /* requested before */
    }
    while (ask_to_end_lock_held(recorder) && wait_ns > 0) {
        struct timespec until = mu_clock_after(CLOCK_MONOTONIC, MU_WAIT_ONCE_NS);
        if (pthread_cond_timedwait(&recorder->thread_wake, &recorder->thread_lock, &until) != 0) {
            wait_ns -= MU_WAIT_ONCE_NS;
        }
    }
    bool stopped = !recorder->thread_runs;
    pthread_mutex_unlock(&recorder->thread_lock);
    return stopped;
}
