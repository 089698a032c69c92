/* The drain's part of GPU timing: finds the spans that are complete, and their times. */
#include <math.h>

#include "cuda/cuda_pool.h"

/* A stream works in order: once one of its spans is pending, later ones need not be queried. */
struct blocked {
    bool some;
    CUstream stream;
    int64_t end_done_ns;
};

/* Turns times that cannot be computed with into an error. A refusal because of a capture is only
 * temporary. */
static CUresult elapsed(const struct mu_cuda_pool *pool, float *milliseconds, CUevent from,
                        CUevent to) {
    CUresult code = pool->driver->event_elapsed_ms(milliseconds, from, to);
    if (code == CUDA_SUCCESS && !isfinite(*milliseconds)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return mu_cuda_is_capture_error(code) ? CUDA_ERROR_NOT_READY : code;
}

/* --- anchors --- */

static int first_pending(struct mu_cuda_pool *pool, struct mu_cuda_context *context) {
    pthread_mutex_lock(&pool->lock);
    int index = context->pending_count > 0 ? context->pending[0] : MU_CUDA_NO_ANCHOR;
    pthread_mutex_unlock(&pool->lock);
    return index;
}

/* The first pending anchor becomes the axis's, and the one before it is free again. */
static void anchor_move(struct mu_cuda_pool *pool, struct mu_cuda_context *context, int index) {
    pthread_mutex_lock(&pool->lock);
    context->pending_count--;
    for (int i = 0; i < context->pending_count; i++) {
        context->pending[i] = context->pending[i + 1];
    }
    if (context->anchor != MU_CUDA_NO_ANCHOR) {
        context->anchors[context->anchor].used = false;
    }
    pthread_mutex_unlock(&pool->lock);
    context->anchor = index;
}

/* True when the anchor at `index` was complete and is now the axis's. */
static bool anchor_take(struct mu_cuda_pool *pool, struct mu_cuda_context *context, int index) {
    const struct mu_cuda_anchor *anchor = &context->anchors[index];
    bool first = context->anchor == MU_CUDA_NO_ANCHOR;
    float elapsed_ms = 0.0f;
    CUresult code =
        first ? pool->driver->event_query(anchor->event)
              : elapsed(pool, &elapsed_ms, context->anchors[context->anchor].event, anchor->event);
    if (code == CUDA_ERROR_NOT_READY || mu_cuda_is_capture_error(code)) {
        return false;
    }
    if (code != CUDA_SUCCESS) {
        mu_cuda_context_fail(pool, context, first ? "cuEventQuery" : "cuEventElapsedTime", code);
        return false;
    }
    struct mu_cuda_seen seen = {anchor->called_ns, pool->now_ns()};
    if (first) {
        mu_cuda_axis_start(&context->axis, seen);
    } else {
        mu_cuda_axis_advance(&context->axis, elapsed_ms, seen);
    }
    anchor_move(pool, context, index);
    return true;
}

static void collect_anchors(struct mu_cuda_pool *pool, struct mu_cuda_context *context) {
    int index = first_pending(pool, context);
    while (index != MU_CUDA_NO_ANCHOR && anchor_take(pool, context, index)) {
        index = first_pending(pool, context);
    }
}

/* --- spans --- */

static struct mu_cuda_waited waited_of(struct mu_cuda_pool *pool, struct mu_cuda_context *context) {
    pthread_mutex_lock(&pool->lock);
    struct mu_cuda_waited waited = context->waited;
    pthread_mutex_unlock(&pool->lock);
    return waited;
}

/* A wait for this span, or for a later one of its stream, may have seen it complete before us. */
static int64_t complete_at(const struct mu_cuda_slot *slot, const struct mu_cuda_waited *waited,
                           int64_t now) {
    bool covered = waited->complete_ns != 0 && waited->stream == slot->stream &&
                   (slot->end_done_ns <= waited->end_called_ns ||
                    slot->end_called_ns == waited->end_called_ns);
    return covered ? waited->complete_ns : now;
}

static struct mu_cuda_seen begin_seen(const struct mu_cuda_slot *slot) {
    struct mu_cuda_seen seen = {slot->begin_called_ns, slot->complete_ns - slot->times.duration_ns};
    seen.complete_ns += mu_cuda_drift_ns(slot->times.duration_ns) + 2 * MU_CUDA_EVENT_RESOLUTION_NS;
    return seen;
}

/* Reads the elapsed times of one span. False: the driver failed, and the context is dead. */
static bool slot_measure(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                         struct mu_cuda_slot *slot, const struct mu_cuda_waited *waited,
                         struct blocked *blocked) {
    float duration_ms = 0.0f;
    float begin_ms = 0.0f;
    CUresult code = elapsed(pool, &duration_ms, slot->begin, slot->end);
    int64_t now = pool->now_ns();
    if (code == CUDA_SUCCESS) {
        code = elapsed(pool, &begin_ms, context->anchors[context->anchor].event, slot->begin);
    }
    if (code == CUDA_ERROR_NOT_READY) {
        *blocked = (struct blocked){true, slot->stream, slot->end_done_ns};
        return true;
    }
    if (code != CUDA_SUCCESS) {
        mu_cuda_context_fail(pool, context, "cuEventElapsedTime", code);
        return false;
    }
    slot->begin_ms = begin_ms;
    slot->times.duration_ns = duration_ms > 0.0f ? mu_cuda_ms_to_ns(duration_ms) : 0;
    slot->complete_ns = complete_at(slot, waited, now);
    slot->measured = true;
    mu_cuda_axis_tighten(&context->axis, begin_ms, begin_seen(slot));
    return true;
}

static bool is_closed(const struct mu_cuda_slot *slot, const struct mu_cuda_context *context) {
    return atomic_load_explicit(&slot->state, memory_order_acquire) == MU_CUDA_SLOT_CLOSED &&
           slot->context == context->index;
}

static void measure_spans(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                          int32_t slot_count) {
    struct mu_cuda_waited waited = waited_of(pool, context);
    struct blocked blocked = {0};
    for (int32_t i = 0; i < slot_count; i++) {
        struct mu_cuda_slot *slot = &pool->slots[i];
        if (!is_closed(slot, context) || (blocked.some && slot->stream == blocked.stream &&
                                          slot->end_called_ns >= blocked.end_done_ns)) {
            continue;
        }
        if (!slot_measure(pool, context, slot, &waited, &blocked)) {
            return;
        }
    }
}

/* By now every span has narrowed the axis, so the first span profits from the last. */
static void place_spans(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                        int32_t slot_count) {
    for (int32_t i = 0; i < slot_count; i++) {
        struct mu_cuda_slot *slot = &pool->slots[i];
        if (!is_closed(slot, context) || !slot->measured) {
            continue;
        }
        struct mu_cuda_instant start =
            mu_cuda_axis_place(&context->axis, slot->begin_ms, begin_seen(slot));
        slot->times.start_ns = start.ns;
        slot->times.error_ns = start.error_ns;
        slot->times.device_ns = context->axis.anchor_ns + mu_cuda_ms_to_ns(slot->begin_ms);
        int closed = MU_CUDA_SLOT_CLOSED; /* or cancelled meanwhile, and swept below */
        atomic_compare_exchange_strong(&slot->state, &closed, MU_CUDA_SLOT_READY);
    }
}

/* Frees cancelled spans, and gives up spans that wait for a destroyed context. */
static void sweep(struct mu_cuda_pool *pool, int32_t slot_count) {
    for (int32_t i = 0; i < slot_count; i++) {
        struct mu_cuda_slot *slot = &pool->slots[i];
        int state = atomic_load_explicit(&slot->state, memory_order_acquire);
        if (state == MU_CUDA_SLOT_CANCELLED) {
            mu_cuda_slot_free(pool, slot);
        } else if (state == MU_CUDA_SLOT_CLOSED &&
                   mu_cuda_context_dead(&pool->contexts[slot->context])) {
            atomic_compare_exchange_strong(&slot->state, &state, MU_CUDA_SLOT_FAILED);
        }
    }
}

static void collect_context(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                            int32_t slot_count) {
    struct mu_cuda_visit visit;
    if (mu_cuda_context_dead(context) || !mu_cuda_context_enter(pool, context, &visit)) {
        return;
    }
    uint64_t resets = context->axis.resets;
    collect_anchors(pool, context);
    if (context->anchor != MU_CUDA_NO_ANCHOR && !mu_cuda_context_dead(context)) {
        measure_spans(pool, context, slot_count);
        place_spans(pool, context, slot_count);
    }
    mu_cuda_context_leave(pool, &visit);
    pthread_mutex_lock(&pool->lock);
    pool->stats.axis_resets += context->axis.resets - resets;
    pthread_mutex_unlock(&pool->lock);
}

void mu_cuda_collect(struct mu_cuda_pool *pool) {
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    int32_t slot_count = pool->slot_count;
    pthread_mutex_unlock(&pool->lock);
    int32_t context_count = atomic_load_explicit(&pool->context_count, memory_order_acquire);
    for (int32_t i = 0; i < context_count; i++) {
        collect_context(pool, &pool->contexts[i], slot_count);
    }
    sweep(pool, slot_count);
}
