/* The internals of a pool of spans, for cuda_timing.c and cuda_collect.c only. */
#ifndef MU_CUDA_POOL_H
#define MU_CUDA_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "cuda/cuda_axis.h"
#include "cuda/cuda_times.h"

enum {
    MU_CUDA_NO_SLOT = -1,
    MU_CUDA_NO_ANCHOR = -1,
    MU_CUDA_ANCHORS = 4, /* one in use, and steps that the GPU may be behind */
};

/* The thread that times sets FREE to OPEN to CLOSED. The collector sets CLOSED to READY or FAILED.
 * The thread sets any state but FREE and OPEN to CANCELLED. Whoever frees the slot sets it back to
 * FREE. */
enum mu_cuda_slot_state {
    MU_CUDA_SLOT_FREE = 0,
    MU_CUDA_SLOT_OPEN,
    MU_CUDA_SLOT_CLOSED,
    MU_CUDA_SLOT_READY,
    MU_CUDA_SLOT_FAILED,
    MU_CUDA_SLOT_CANCELLED,
};

struct mu_cuda_slot {
    _Atomic int state;
    int32_t next_free; /* guarded by the pool's lock */
    int32_t context;   /* whose events the slot holds; < 0: it has none yet */
    CUevent begin;     /* owned, with `end`; in that context */
    CUevent end;
    CUstream stream;
    _Atomic uint64_t serial; /* differs from one use of the slot to the next */
    int64_t begin_called_ns;
    int64_t end_called_ns; /* just before and just after the end was recorded */
    int64_t end_done_ns;
    /* The collector's: */
    bool measured;
    float begin_ms; /* after the context's anchor */
    int64_t complete_ns;
    struct mu_cuda_times times;
};

struct mu_cuda_anchor {
    CUevent event; /* owned; NULL until first used */
    int64_t called_ns;
    bool used;
};

/* The result of a wait: at `complete_ns` this stream had finished all work from before
 * `end_called_ns`.
 */
struct mu_cuda_waited {
    CUstream stream;
    int64_t end_called_ns;
    int64_t complete_ns; /* 0: nothing yet */
};

/* The end of the span that closed last. */
struct mu_cuda_last_event {
    struct mu_cuda_slot *slot; /* NULL: there is none, or it is known to be complete */
    uint64_t serial;           /* of that use of the slot */
    CUevent event;             /* the slot's */
    struct mu_cuda_waited waited;
    int64_t recorded_ns; /* just after the event was recorded */
};

/* One CUDA context. */
struct mu_cuda_context {
    _Atomic bool dead;
    CUcontext handle;
    unsigned long long handle_id; /* 0 where the driver has none */
    int32_t device;
    int32_t index;
    /* Guarded by the pool's lock: */
    int32_t first_free;
    bool anchor_due;
    bool anchor_busy; /* a thread is recording one */
    int64_t anchor_called_ns;
    struct mu_cuda_anchor anchors[MU_CUDA_ANCHORS];
    int pending[MU_CUDA_ANCHORS]; /* recorded anchors in order, not yet complete */
    int pending_count;
    struct mu_cuda_last_event last;
    struct mu_cuda_waited waited;
    /* The collector's: */
    int anchor; /* the axis's, or MU_CUDA_NO_ANCHOR */
    struct mu_cuda_axis axis;
};

struct mu_cuda_pool {
    const struct mu_cuda_driver *driver;
    mu_cuda_current_stream current_stream;
    void *stream_owner;
    int64_t (*now_ns)(void);
    int32_t capacity;
    struct mu_cuda_slot *slots; /* owned */
    pthread_mutex_t lock;       /* never held during a call of the driver */
    int32_t slot_count;         /* slots that were ever used; guarded by lock, as all below */
    int32_t first_unbound;      /* free slots without events */
    _Atomic int32_t context_count;
    struct mu_cuda_context contexts[MU_CUDA_CONTEXTS_MAX];
    uint64_t steps;
    struct mu_cuda_stats stats;
};

/* Makes the context current on the calling thread, and allows the calls that a graph capture in
 * another thread would forbid. False when the context is destroyed. */
struct mu_cuda_visit {
    bool pushed;
    CUstreamCaptureMode mode; /* what the thread had */
};
bool mu_cuda_context_enter(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                           struct mu_cuda_visit *visit);
void mu_cuda_context_leave(struct mu_cuda_pool *pool, const struct mu_cuda_visit *visit);

/* Ends GPU timing in the context. `call` is static text. */
void mu_cuda_context_fail(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                          const char *call, CUresult code);

/* The slot goes to the free list of its context, or loses its events if that is dead. */
void mu_cuda_slot_free(struct mu_cuda_pool *pool, struct mu_cuda_slot *slot);

static inline bool mu_cuda_context_dead(const struct mu_cuda_context *context) {
    return atomic_load_explicit(&context->dead, memory_order_acquire);
}

/* The driver refuses because a stream is being captured. The capture is not ours. */
static inline bool mu_cuda_is_capture_error(CUresult code) {
    return code >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
           code <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

#endif
