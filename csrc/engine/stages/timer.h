/* A timer has a tag, which its user chooses, and the figures of its stages over all threads. */
#ifndef MU_TIMER_H
#define MU_TIMER_H

#include <stdint.h>

#include "base/error.h"
#include "stages/state.h"
#include "timing/aggregate.h"

/* Registers the timer. When MU_TIMERS_MAX live already, it finds no place, which is counted:
 * nothing is recorded on it. */
MU_MUST_CHECK int mu_timer_init(struct mu_timer *timer, struct mu_recorder *recorder,
                                const char *tag, struct mu_error *err);

/* Releases the timer's thread buffers. Nobody may record on the timer meanwhile. */
void mu_timer_release(struct mu_timer *timer);

/* Adds up the aggregates of all threads for a path; `into` was initialised by the caller. */
void mu_timer_aggregate(struct mu_timer *timer, uint16_t path, struct mu_aggregate *into);

/* The same for GPU times. */
void mu_timer_gpu_aggregate(struct mu_timer *timer, uint16_t path, struct mu_aggregate *into);

struct mu_totals {
    uint64_t count, sum;         /* of CPU times, in ns */
    uint64_t gpu_count, gpu_sum; /* of GPU times */
};

/* Both without histograms, for callers that poll. */
void mu_timer_totals(struct mu_timer *timer, uint16_t path, struct mu_totals *into);

/* Adds the GPU time of one span to the figures of the timer and path in its label. Does nothing
 * when that timer has ended. A mu_gpu_add; its owner is the recorder. */
void mu_timer_add_gpu_time(void *owner, uint32_t label, int64_t duration_ns);

#endif
