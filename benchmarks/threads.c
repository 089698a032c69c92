/* What a start and a stop cost a thread while others record too: `threads COUNT PAIRS` prints the
 * thread CPU time of a pair in ns (median over the threads) and the records that were lost.
 * Without Python, so that no GIL keeps the threads apart. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "stages/drain_calls.h"
#include "stages/names.h"
#include "stages/new_buffer.h"
#include "stages/open_profile.h"
#include "stages/recorder.h"
#include "stages/thread_buffer.h"
#include "stages/timer.h"

enum { THREADS_MAX = 64, PAIRS_A_DRAIN = 500 };

struct worker {
    struct mu_timer *timer;
    pthread_t thread;
    long pairs;
    double ns_a_pair;
};

static int64_t thread_ns(void) {
    return mu_clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* The drains are not part of the figure: only the pairs between them are timed. */
static void *work(void *argument) {
    struct worker *worker = argument;
    uint64_t hash = mu_name_hash("forward", 7);
    int64_t spent = 0;
    for (long done = 0; done < worker->pairs; done += PAIRS_A_DRAIN) {
        int64_t began = thread_ns();
        for (int i = 0; i < PAIRS_A_DRAIN; i++) {
            mu_thread_buffer_start(mu_timer_thread_buffer(worker->timer), "forward", 7, hash);
            mu_thread_buffer_stop(mu_timer_thread_buffer(worker->timer), "forward", 7, hash);
        }
        spent += thread_ns() - began;
        mu_recorder_drain(worker->timer->recorder, 10000000000);
    }
    worker->ns_a_pair = (double)spent / (double)worker->pairs;
    return NULL;
}

static int ascending(const void *a, const void *b) {
    const struct worker *left = a, *right = b;
    return (left->ns_a_pair > right->ns_a_pair) - (left->ns_a_pair < right->ns_a_pair);
}

static int run(struct mu_recorder *recorder, int count, long pairs) {
    struct mu_timer timer;
    struct worker workers[THREADS_MAX];
    if (mu_timer_init(&timer, recorder, "", NULL) != MU_OK) {
        return 1;
    }
    for (int i = 0; i < count; i++) {
        workers[i] = (struct worker){.timer = &timer, .pairs = pairs};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            return 1;
        }
    }
    for (int i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    qsort(workers, (size_t)count, sizeof(workers[0]), ascending);
    printf("%.2f %llu\n", workers[count / 2].ns_a_pair,
           (unsigned long long)atomic_load(&recorder->troubles.dropped_records));
    mu_timer_release(&timer);
    return 0;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 1;
    long pairs = argc > 2 ? atol(argv[2]) : 1000000;
    struct mu_output_config config = {.kind = MU_OUTPUT_NULL};
    struct mu_open_report report;
    struct mu_recorder *recorder;
    if (count < 1 || count > THREADS_MAX || mu_recorder_create(&recorder, NULL) != MU_OK) {
        return 2;
    }
    int rc = mu_recorder_open(recorder, &config, &report, NULL);
    rc = rc == MU_OK ? run(recorder, count, pairs) : 1;
    mu_recorder_destroy(recorder);
    return rc;
}
