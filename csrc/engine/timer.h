/* A timer: what its user names with a tag, and the figures of its stages over all threads. */
#ifndef MU_TIMER_H
#define MU_TIMER_H

#include <stdatomic.h>
#include <stdint.h>

#include "aggregate.h"
#include "error.h"
#include "lanes.h"

enum { MU_TAG_BYTES_MAX = 64 };

struct mu_timer {
    struct mu_recorder *recorder; /* borrowed */
    uint32_t index;               /* in mu_thread.lanes */
    uint32_t generation;          /* tells it from timers that had the index before */
    _Atomic int64_t step;
    char tag[MU_TAG_BYTES_MAX];
    /* Owned, by path; NULL before the first. */
    struct mu_aggregate **retired; /* of threads that ended */
    struct mu_aggregate **gpu;     /* GPU times */
};

/* Registers the timer; MU_ERR_LIMIT when MU_TIMERS_MAX live at once. */
MU_MUST_CHECK int mu_timer_init(struct mu_timer *timer, struct mu_recorder *recorder,
                                const char *tag, struct mu_error *err);

/* Lets go of the timer's lanes. Nobody may record on the timer meanwhile. */
void mu_timer_release(struct mu_timer *timer);

/* The calling thread's lane of the timer. */
static inline struct mu_lane *mu_timer_lane(struct mu_timer *timer) {
    struct mu_thread *thread = mu_this_thread;
    if (__builtin_expect(thread != NULL && thread->recorder == timer->recorder, 1)) {
        struct mu_lane *lane = thread->lanes[timer->index];
        if (__builtin_expect(lane != NULL, 1)) {
            return lane;
        }
    }
    return mu_timer_new_lane(timer);
}

/* Adds up the aggregates of all threads for a path; `into` was initialised by the caller. */
void mu_timer_aggregate(struct mu_timer *timer, uint16_t path, struct mu_aggregate *into);

/* The same for GPU times. */
void mu_timer_gpu_aggregate(struct mu_timer *timer, uint16_t path, struct mu_aggregate *into);

struct mu_totals {
    uint64_t count, sum;         /* of CPU times, in ns */
    uint64_t gpu_count, gpu_sum; /* of GPU times */
};

/* Both in short, for those who look often: without histograms. */
void mu_timer_totals(struct mu_timer *timer, uint16_t path, struct mu_totals *into);

/* What a GPU span carries home: timer and path in one number. */
static inline uint32_t mu_timer_gpu_label(const struct mu_timer *timer, uint16_t path) {
    return timer->generation << 21 | timer->index << 12 | path;
}

/* For lanes.c and recorder.c; the caller holds recorder->registry_lock. */
void mu_timer_keep_aggregates(struct mu_lane *lane);
void mu_timer_free_aggregates(struct mu_timer *timer);

#endif
