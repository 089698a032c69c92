/* GPU times of stages: a bounded pool of pairs of CUDA events, and the host's axis for them.
 *
 * A span is a pair of events on one stream. The thread that times a stage begins and ends it; the
 * drain collects what has completed and reads it. Only mu_cuda_wait waits for the device; its
 * caller asks for that. After a pause of the host, begin asks whether the last event is complete. A
 * span is not begun when no CUDA context is current on the thread, while the stream is being
 * captured into a graph, when the pool is empty, and after an error in that context. Its id is then
 * 0, which every function accepts and ignores. An error ends GPU timing for its context alone. It
 * is kept for one warning, and never raised.
 *
 * Threads: begin, end, cancel, step and wait from any thread; collect, poll, release and free from
 * one at a time (the holder of the drain's lock). Begin calls `current_stream` without holding a
 * lock. Times are nanoseconds of the clock `now_ns`.
 */
#ifndef MU_CUDA_TIMING_H
#define MU_CUDA_TIMING_H

#include <stdint.h>

#include "base/error.h"
#include "cuda/cuda_times.h"

enum {
    MU_CUDA_SPANS_DEFAULT = 4096,
    MU_CUDA_SPANS_MAX = 65536,
};

struct mu_cuda_pool;

struct mu_cuda_pool_options {
    const struct mu_cuda_driver *driver; /* borrowed for the life of the pool */
    mu_cuda_current_stream current_stream;
    void *stream_owner;      /* its first argument */
    uint32_t capacity;       /* spans, 1 to MU_CUDA_SPANS_MAX; 0: the default */
    int64_t (*now_ns)(void); /* NULL: CLOCK_MONOTONIC */
};

enum mu_cuda_span_state {
    MU_CUDA_SPAN_NONE,    /* no such span */
    MU_CUDA_SPAN_PENDING, /* open, or not complete on the GPU at the last collect */
    MU_CUDA_SPAN_READY,
    MU_CUDA_SPAN_FAILED,
};

MU_MUST_CHECK int mu_cuda_pool_create(struct mu_cuda_pool **out,
                                      const struct mu_cuda_pool_options *options,
                                      struct mu_error *err);

/* Destroys the events of contexts that still live. No span may be begun or ended any more. */
void mu_cuda_pool_free(struct mu_cuda_pool *pool);

/* Ids are 1 to the capacity; 0 is not a span. */
uint32_t mu_cuda_span_begin(struct mu_cuda_pool *pool);
void mu_cuda_span_end(struct mu_cuda_pool *pool, uint32_t id);

/* Sets a number of the caller's own, which is returned with the times of the open span. */
void mu_cuda_span_label(struct mu_cuda_pool *pool, uint32_t id, uint32_t label);

/* Cancels a span whose times are not needed, ended or not. Call it on the thread that began the
 * span. */
void mu_cuda_span_cancel(struct mu_cuda_pool *pool, uint32_t id);

/* The next span of each context begins with a new anchor. Without steps one comes every second. */
void mu_cuda_pool_step(struct mu_cuda_pool *pool);
uint64_t mu_cuda_pool_steps(struct mu_cuda_pool *pool);

/* What begin asks after a pause, for a caller that begins no span. Cheap without a pause. */
void mu_cuda_look(struct mu_cuda_pool *pool);

/* Blocks until the span that was ended last, in each context, is complete on the GPU. */
void mu_cuda_wait(struct mu_cuda_pool *pool);

/* Checks once which spans are complete. Does not wait. */
void mu_cuda_collect(struct mu_cuda_pool *pool);

/* What the last collect found. `times` is filled when READY. */
enum mu_cuda_span_state mu_cuda_span_poll(const struct mu_cuda_pool *pool, uint32_t id,
                                          struct mu_cuda_times *times);

/* Returns an ended span to the pool, complete or not. */
void mu_cuda_span_release(struct mu_cuda_pool *pool, uint32_t id);

void mu_cuda_pool_stats(struct mu_cuda_pool *pool, struct mu_cuda_stats *stats);

#endif
