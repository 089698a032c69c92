#include "cuda/cuda_timing.h"

#include <stdlib.h>

#include "base/clock.h"
#include "cuda/cuda_pool.h"

static const int64_t ANCHOR_INTERVAL_NS = 1000000000;
static const int64_t PAUSE_NS = 20000; /* of the host between two spans, worth a look */

int mu_cuda_pool_create(struct mu_cuda_pool **out, const struct mu_cuda_pool_options *options,
                        struct mu_error *err) {
    *out = NULL;
    uint32_t capacity = options->capacity == 0 ? MU_CUDA_SPANS_DEFAULT : options->capacity;
    if (capacity > MU_CUDA_SPANS_MAX) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "the pool of CUDA spans holds 1 to %d, not %u",
                            MU_CUDA_SPANS_MAX, capacity);
    }
    struct mu_cuda_pool *pool = calloc(1, sizeof(*pool));
    struct mu_cuda_slot *slots = calloc(capacity, sizeof(*slots));
    if (pool == NULL || slots == NULL || pthread_mutex_init(&pool->lock, NULL) != 0) {
        free(pool);
        free(slots);
        return mu_error_no_memory(err, "the pool of CUDA events");
    }
    pool->driver = options->driver;
    pool->current_stream = options->current_stream;
    pool->stream_owner = options->stream_owner;
    pool->now_ns = options->now_ns == NULL ? mu_clock_monotonic_ns : options->now_ns;
    pool->capacity = (int32_t)capacity;
    pool->slots = slots;
    pool->first_unbound = MU_CUDA_NO_SLOT;
    *out = pool;
    return MU_OK;
}

static struct mu_cuda_slot *slot_of(const struct mu_cuda_pool *pool, uint32_t id) {
    if (pool == NULL || id == 0 || id > (uint32_t)pool->capacity) {
        return NULL;
    }
    return &pool->slots[id - 1];
}

static void count(struct mu_cuda_pool *pool, uint64_t *counter) {
    pthread_mutex_lock(&pool->lock);
    ++*counter;
    pthread_mutex_unlock(&pool->lock);
}

/* --- contexts --- */

void mu_cuda_context_fail(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                          const char *call, CUresult code) {
    pthread_mutex_lock(&pool->lock);
    if (!mu_cuda_context_dead(context)) {
        atomic_store_explicit(&context->dead, true, memory_order_release);
        if (code != CUDA_ERROR_DEINITIALIZED) { /* the process ends: nothing went wrong */
            pool->stats.errors++;
            if (pool->stats.first_error == 0) {
                pool->stats.first_error = (int)code;
                pool->stats.first_call = call;
            }
        }
    }
    pthread_mutex_unlock(&pool->lock);
}

/* After a device reset another context may have the same address: its id shows that. */
static bool context_is_there(struct mu_cuda_pool *pool, struct mu_cuda_context *context) {
    unsigned long long id = 0;
    CUresult code = pool->driver->ctx_get_id(context->handle, &id);
    if (code == CUDA_ERROR_NOT_SUPPORTED) {
        return true;
    }
    if (code == CUDA_SUCCESS && id == context->handle_id) {
        return true;
    }
    mu_cuda_context_fail(pool, context, "cuCtxGetId",
                         code == CUDA_SUCCESS ? CUDA_ERROR_INVALID_CONTEXT : code);
    return false;
}

bool mu_cuda_context_enter(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                           struct mu_cuda_visit *visit) {
    const struct mu_cuda_driver *driver = pool->driver;
    if (!context_is_there(pool, context)) {
        return false;
    }
    CUresult code = driver->ctx_push(context->handle);
    if (code != CUDA_SUCCESS) {
        mu_cuda_context_fail(pool, context, "cuCtxPushCurrent", code);
        return false;
    }
    visit->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    code = driver->thread_exchange_capture_mode(&visit->mode);
    if (code != CUDA_SUCCESS) {
        CUcontext popped;
        driver->ctx_pop(&popped);
        mu_cuda_context_fail(pool, context, "cuThreadExchangeStreamCaptureMode", code);
        return false;
    }
    return true;
}

void mu_cuda_context_leave(struct mu_cuda_pool *pool, const struct mu_cuda_visit *visit) {
    CUstreamCaptureMode mode = visit->mode;
    CUcontext popped;
    pool->driver->thread_exchange_capture_mode(&mode);
    pool->driver->ctx_pop(&popped);
}

/* The next context may take slots that are free in destroyed contexts. */
static void reclaim_dead_lock_held(struct mu_cuda_pool *pool) {
    int32_t context_count = atomic_load(&pool->context_count);
    for (int32_t i = 0; i < context_count; i++) {
        struct mu_cuda_context *context = &pool->contexts[i];
        while (mu_cuda_context_dead(context) && context->first_free != MU_CUDA_NO_SLOT) {
            struct mu_cuda_slot *slot = &pool->slots[context->first_free];
            context->first_free = slot->next_free;
            slot->begin = NULL; /* gone with their context */
            slot->end = NULL;
            slot->next_free = pool->first_unbound;
            pool->first_unbound = (int32_t)(slot - pool->slots);
        }
    }
}

static struct mu_cuda_context *context_add_lock_held(struct mu_cuda_pool *pool, CUcontext handle,
                                                     unsigned long long id, int32_t device) {
    int32_t index = atomic_load(&pool->context_count);
    if (index == MU_CUDA_CONTEXTS_MAX) {
        return NULL;
    }
    reclaim_dead_lock_held(pool);
    struct mu_cuda_context *context = &pool->contexts[index];
    context->handle = handle;
    context->handle_id = id;
    context->device = device;
    context->index = index;
    context->first_free = MU_CUDA_NO_SLOT;
    context->anchor = MU_CUDA_NO_ANCHOR;
    context->anchor_due = true;
    atomic_store_explicit(&pool->context_count, index + 1, memory_order_release);
    return context;
}

/* The calling thread's context, NULL when it has none or a dead one. */
static struct mu_cuda_context *current_context(struct mu_cuda_pool *pool) {
    const struct mu_cuda_driver *driver = pool->driver;
    CUcontext handle = NULL;
    CUdevice device;
    unsigned long long id = 0;
    if (driver->ctx_get_current(&handle) != CUDA_SUCCESS || handle == NULL ||
        driver->ctx_get_device(&device) != CUDA_SUCCESS) {
        return NULL;
    }
    CUresult code = driver->ctx_get_id(handle, &id);
    if (code != CUDA_SUCCESS && code != CUDA_ERROR_NOT_SUPPORTED) {
        return NULL;
    }
    pthread_mutex_lock(&pool->lock);
    struct mu_cuda_context *context = NULL;
    int32_t context_count = atomic_load(&pool->context_count);
    for (int32_t i = 0; i < context_count; i++) {
        if (pool->contexts[i].handle == handle && pool->contexts[i].handle_id == id) {
            context = &pool->contexts[i];
        }
    }
    if (context == NULL) {
        context = context_add_lock_held(pool, handle, id, (int32_t)device);
    }
    pthread_mutex_unlock(&pool->lock);
    return context == NULL || mu_cuda_context_dead(context) ? NULL : context;
}

/* --- slots --- */

static struct mu_cuda_slot *slot_take(struct mu_cuda_pool *pool, struct mu_cuda_context *context) {
    pthread_mutex_lock(&pool->lock);
    int32_t index = MU_CUDA_NO_SLOT;
    if (context->first_free != MU_CUDA_NO_SLOT) {
        index = context->first_free;
        context->first_free = pool->slots[index].next_free;
    } else if (pool->first_unbound != MU_CUDA_NO_SLOT) {
        index = pool->first_unbound;
        pool->first_unbound = pool->slots[index].next_free;
    } else if (pool->slot_count < pool->capacity) {
        index = pool->slot_count++;
    } else {
        pool->stats.exhausted++;
    }
    if (index != MU_CUDA_NO_SLOT) {
        pool->slots[index].context = context->index;
        atomic_fetch_add(&pool->slots[index].serial, 1);
    }
    pthread_mutex_unlock(&pool->lock);
    return index == MU_CUDA_NO_SLOT ? NULL : &pool->slots[index];
}

void mu_cuda_slot_free(struct mu_cuda_pool *pool, struct mu_cuda_slot *slot) {
    struct mu_cuda_context *context = &pool->contexts[slot->context];
    int32_t *list = &context->first_free;
    if (mu_cuda_context_dead(context)) {
        slot->begin = NULL; /* gone with their context */
        slot->end = NULL;
        list = &pool->first_unbound;
    }
    slot->measured = false;
    atomic_store_explicit(&slot->state, MU_CUDA_SLOT_FREE, memory_order_release);
    pthread_mutex_lock(&pool->lock);
    slot->next_free = *list;
    *list = (int32_t)(slot - pool->slots);
    pthread_mutex_unlock(&pool->lock);
}

/* A capture in another thread forbids creating an event, among other calls. */
MU_MUST_CHECK static bool event_make(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                                     CUevent *event) {
    if (*event != NULL) {
        return true;
    }
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult code = pool->driver->thread_exchange_capture_mode(&mode);
    if (code != CUDA_SUCCESS) {
        mu_cuda_context_fail(pool, context, "cuThreadExchangeStreamCaptureMode", code);
        return false;
    }
    CUevent made = NULL;
    code = pool->driver->event_create(&made, CU_EVENT_DEFAULT);
    pool->driver->thread_exchange_capture_mode(&mode);
    if (code != CUDA_SUCCESS) {
        mu_cuda_context_fail(pool, context, "cuEventCreate", code);
        return false;
    }
    *event = made;
    return true;
}

MU_MUST_CHECK static bool event_record(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                                       CUevent event, CUstream stream) {
    CUresult code = pool->driver->event_record(event, stream);
    if (code == CUDA_SUCCESS) {
        return true;
    }
    if (mu_cuda_is_capture_error(code)) {
        count(pool, &pool->stats.captured);
    } else {
        mu_cuda_context_fail(pool, context, "cuEventRecord", code);
    }
    return false;
}

static bool is_capturing(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                         CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult code = pool->driver->stream_is_capturing(stream, &status);
    if (code == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE) {
        return false;
    }
    if (code == CUDA_SUCCESS || mu_cuda_is_capture_error(code)) {
        count(pool, &pool->stats.captured);
    } else {
        mu_cuda_context_fail(pool, context, "cuStreamIsCapturing", code);
    }
    return true;
}

/* --- anchors --- */

static int anchor_claim(struct mu_cuda_pool *pool, struct mu_cuda_context *context, int64_t now) {
    int claimed = MU_CUDA_NO_ANCHOR;
    pthread_mutex_lock(&pool->lock);
    bool due = context->anchor_due || now - context->anchor_called_ns > ANCHOR_INTERVAL_NS;
    if (due && !context->anchor_busy) {
        for (int i = 0; i < MU_CUDA_ANCHORS && claimed == MU_CUDA_NO_ANCHOR; i++) {
            if (!context->anchors[i].used) {
                context->anchors[i].used = true;
                context->anchor_busy = true;
                claimed = i;
            }
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return claimed;
}

/* Hands the anchor to the collector, or gives its place back. */
static void anchor_finish(struct mu_cuda_pool *pool, struct mu_cuda_context *context, int index,
                          bool recorded) {
    pthread_mutex_lock(&pool->lock);
    context->anchor_busy = false;
    if (recorded) {
        context->anchor_due = false;
        context->anchor_called_ns = context->anchors[index].called_ns;
        context->pending[context->pending_count++] = index;
    } else {
        context->anchors[index].used = false;
    }
    pthread_mutex_unlock(&pool->lock);
}

/* When no place is left, the GPU is some steps behind. The next anchor is good enough. */
static bool anchor_record_if_due(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                                 CUstream stream) {
    int index = anchor_claim(pool, context, pool->now_ns());
    if (index == MU_CUDA_NO_ANCHOR) {
        return true;
    }
    struct mu_cuda_anchor *anchor = &context->anchors[index];
    bool recorded = event_make(pool, context, &anchor->event);
    if (recorded) {
        anchor->called_ns = pool->now_ns();
        recorded = event_record(pool, context, anchor->event, stream);
    }
    anchor_finish(pool, context, index, recorded);
    return recorded;
}

void mu_cuda_pool_step(struct mu_cuda_pool *pool) {
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    int32_t context_count = atomic_load(&pool->context_count);
    for (int32_t i = 0; i < context_count; i++) {
        pool->contexts[i].anchor_due = true;
    }
    pool->steps++;
    pthread_mutex_unlock(&pool->lock);
}

uint64_t mu_cuda_pool_steps(struct mu_cuda_pool *pool) {
    if (pool == NULL) {
        return 0;
    }
    pthread_mutex_lock(&pool->lock);
    uint64_t steps = pool->steps;
    pthread_mutex_unlock(&pool->lock);
    return steps;
}

/* --- the last event --- */

static struct mu_cuda_last_event last_event_of(struct mu_cuda_pool *pool,
                                               const struct mu_cuda_context *context) {
    pthread_mutex_lock(&pool->lock);
    struct mu_cuda_last_event last = context->last;
    pthread_mutex_unlock(&pool->lock);
    return last;
}

/* False when another thread has taken it, or a later span has closed. */
static bool last_event_take(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                            const struct mu_cuda_last_event *last) {
    pthread_mutex_lock(&pool->lock);
    bool taken = last->slot != NULL && context->last.slot == last->slot &&
                 context->last.serial == last->serial;
    if (taken) {
        context->last.slot = NULL;
    }
    pthread_mutex_unlock(&pool->lock);
    return taken;
}

static void last_event_is_complete(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                                   const struct mu_cuda_last_event *last) {
    pthread_mutex_lock(&pool->lock);
    if (atomic_load(&last->slot->serial) == last->serial) { /* else it was another span's event */
        context->waited = last->waited;
    }
    pthread_mutex_unlock(&pool->lock);
}

static bool has_paused(struct mu_cuda_pool *pool, const struct mu_cuda_last_event *last) {
    return last->slot != NULL && pool->now_ns() - last->recorded_ns >= PAUSE_NS;
}

/* A host that pauses may have waited for the GPU, as `.item()` does. If the last event is complete
 * when it comes back, that bounds the GPU's clock as a wait of ours would. */
static void look_after_pause(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                             struct mu_cuda_last_event last) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (pool->driver->thread_exchange_capture_mode(&mode) != CUDA_SUCCESS) {
        return;
    }
    CUresult code = pool->driver->event_query(last.event);
    last.waited.complete_ns = pool->now_ns();
    pool->driver->thread_exchange_capture_mode(&mode);
    if (code == CUDA_SUCCESS && last_event_take(pool, context, &last)) {
        last_event_is_complete(pool, context, &last);
    }
}

void mu_cuda_look(struct mu_cuda_pool *pool) {
    int32_t context_count = pool == NULL ? 0 : atomic_load(&pool->context_count);
    for (int32_t i = 0; i < context_count; i++) {
        struct mu_cuda_last_event last = last_event_of(pool, &pool->contexts[i]);
        if (has_paused(pool, &last) && current_context(pool) == &pool->contexts[i]) {
            look_after_pause(pool, &pool->contexts[i], last);
        }
    }
}

/* --- spans --- */

static uint64_t stream_number(const struct mu_cuda_pool *pool, CUstream stream) {
    unsigned long long id;
    if (pool->driver->stream_get_id(stream, &id) == CUDA_SUCCESS) {
        return id;
    }
    return (uint64_t)(uintptr_t)stream;
}

static bool slot_begin(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                       struct mu_cuda_slot *slot, CUstream stream) {
    if (!event_make(pool, context, &slot->begin) || !event_make(pool, context, &slot->end) ||
        !anchor_record_if_due(pool, context, stream)) {
        return false;
    }
    slot->stream = stream;
    slot->times =
        (struct mu_cuda_times){.stream = stream_number(pool, stream), .device = context->device};
    slot->begin_called_ns = pool->now_ns();
    return event_record(pool, context, slot->begin, stream);
}

uint32_t mu_cuda_span_begin(struct mu_cuda_pool *pool) {
    struct mu_cuda_context *context = pool == NULL ? NULL : current_context(pool);
    void *current = NULL;
    if (context == NULL) {
        return 0;
    }
    if (pool->current_stream(pool->stream_owner, context->device, &current) != 0) {
        count(pool, &pool->stats.no_stream);
        return 0;
    }
    CUstream stream = (CUstream)current;
    if (is_capturing(pool, context, stream)) {
        return 0;
    }
    struct mu_cuda_last_event last = last_event_of(pool, context);
    if (has_paused(pool, &last)) {
        look_after_pause(pool, context, last);
    }
    struct mu_cuda_slot *slot = slot_take(pool, context);
    if (slot == NULL) {
        return 0;
    }
    if (!slot_begin(pool, context, slot, stream)) {
        mu_cuda_slot_free(pool, slot);
        return 0;
    }
    count(pool, &pool->stats.spans);
    atomic_store_explicit(&slot->state, MU_CUDA_SLOT_OPEN, memory_order_release);
    return (uint32_t)(slot - pool->slots) + 1;
}

void mu_cuda_span_label(struct mu_cuda_pool *pool, uint32_t id, uint32_t label) {
    struct mu_cuda_slot *slot = slot_of(pool, id);
    if (slot != NULL) {
        slot->times.label = label;
    }
}

/* The thread may have moved to another device since the span began. */
static bool record_end(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                       struct mu_cuda_slot *slot) {
    CUcontext current = NULL;
    pool->driver->ctx_get_current(&current);
    if (current == context->handle) {
        return context_is_there(pool, context) &&
               event_record(pool, context, slot->end, slot->stream);
    }
    struct mu_cuda_visit visit;
    if (!mu_cuda_context_enter(pool, context, &visit)) {
        return false;
    }
    bool recorded = event_record(pool, context, slot->end, slot->stream);
    mu_cuda_context_leave(pool, &visit);
    return recorded;
}

static void note_last_closed(struct mu_cuda_pool *pool, struct mu_cuda_context *context,
                             struct mu_cuda_slot *slot) {
    struct mu_cuda_last_event last = {.slot = slot,
                                      .serial = atomic_load(&slot->serial),
                                      .event = slot->end,
                                      .waited = {slot->stream, slot->end_called_ns, 0},
                                      .recorded_ns = slot->end_done_ns};
    pthread_mutex_lock(&pool->lock);
    context->last = last;
    pthread_mutex_unlock(&pool->lock);
}

void mu_cuda_span_end(struct mu_cuda_pool *pool, uint32_t id) {
    struct mu_cuda_slot *slot = slot_of(pool, id);
    if (slot == NULL || atomic_load(&slot->state) != MU_CUDA_SLOT_OPEN) {
        return;
    }
    struct mu_cuda_context *context = &pool->contexts[slot->context];
    slot->end_called_ns = pool->now_ns();
    bool ended = !mu_cuda_context_dead(context) && !is_capturing(pool, context, slot->stream) &&
                 record_end(pool, context, slot);
    slot->end_done_ns = pool->now_ns();
    if (ended) {
        note_last_closed(pool, context, slot);
    }
    atomic_store_explicit(&slot->state, ended ? MU_CUDA_SLOT_CLOSED : MU_CUDA_SLOT_FAILED,
                          memory_order_release);
}

void mu_cuda_span_cancel(struct mu_cuda_pool *pool, uint32_t id) {
    struct mu_cuda_slot *slot = slot_of(pool, id);
    if (slot == NULL) {
        return;
    }
    int state = atomic_load(&slot->state);
    if (state == MU_CUDA_SLOT_OPEN) {
        mu_cuda_slot_free(pool, slot);
        return;
    }
    while (state == MU_CUDA_SLOT_CLOSED || state == MU_CUDA_SLOT_READY ||
           state == MU_CUDA_SLOT_FAILED) {
        if (atomic_compare_exchange_weak(&slot->state, &state, MU_CUDA_SLOT_CANCELLED)) {
            return;
        }
    }
}

enum mu_cuda_span_state mu_cuda_span_poll(const struct mu_cuda_pool *pool, uint32_t id,
                                          struct mu_cuda_times *times) {
    const struct mu_cuda_slot *slot = slot_of(pool, id);
    if (slot == NULL) {
        return MU_CUDA_SPAN_NONE;
    }
    switch (atomic_load_explicit(&slot->state, memory_order_acquire)) {
    case MU_CUDA_SLOT_OPEN:
    case MU_CUDA_SLOT_CLOSED:
        return MU_CUDA_SPAN_PENDING;
    case MU_CUDA_SLOT_READY:
        *times = slot->times;
        return MU_CUDA_SPAN_READY;
    case MU_CUDA_SLOT_FAILED:
        return MU_CUDA_SPAN_FAILED;
    default:
        return MU_CUDA_SPAN_NONE;
    }
}

void mu_cuda_span_release(struct mu_cuda_pool *pool, uint32_t id) {
    struct mu_cuda_slot *slot = slot_of(pool, id);
    if (slot == NULL) {
        return;
    }
    int state = atomic_load(&slot->state);
    if (state == MU_CUDA_SLOT_FREE || state == MU_CUDA_SLOT_OPEN) {
        return;
    }
    if (state == MU_CUDA_SLOT_CLOSED) {
        count(pool, &pool->stats.late);
    } else if (state == MU_CUDA_SLOT_FAILED) {
        count(pool, &pool->stats.failed);
    }
    mu_cuda_slot_free(pool, slot);
}

/* --- waiting and the end --- */

static void context_wait(struct mu_cuda_pool *pool, struct mu_cuda_context *context) {
    struct mu_cuda_last_event last = last_event_of(pool, context);
    struct mu_cuda_visit visit;
    if (!last_event_take(pool, context, &last) || !mu_cuda_context_enter(pool, context, &visit)) {
        return;
    }
    CUresult code = pool->driver->event_synchronize(last.event);
    last.waited.complete_ns = pool->now_ns();
    mu_cuda_context_leave(pool, &visit);
    if (code == CUDA_SUCCESS) {
        last_event_is_complete(pool, context, &last);
    } else if (!mu_cuda_is_capture_error(code)) {
        mu_cuda_context_fail(pool, context, "cuEventSynchronize", code);
    }
}

void mu_cuda_wait(struct mu_cuda_pool *pool) {
    if (pool == NULL) {
        return;
    }
    int32_t context_count = atomic_load_explicit(&pool->context_count, memory_order_acquire);
    for (int32_t i = 0; i < context_count; i++) {
        if (!mu_cuda_context_dead(&pool->contexts[i])) {
            context_wait(pool, &pool->contexts[i]);
        }
    }
}

void mu_cuda_pool_stats(struct mu_cuda_pool *pool, struct mu_cuda_stats *stats) {
    if (pool == NULL) {
        *stats = (struct mu_cuda_stats){0};
        return;
    }
    pthread_mutex_lock(&pool->lock);
    *stats = pool->stats;
    pthread_mutex_unlock(&pool->lock);
}

static void context_destroy_events(struct mu_cuda_pool *pool, struct mu_cuda_context *context) {
    struct mu_cuda_visit visit;
    if (mu_cuda_context_dead(context) || !mu_cuda_context_enter(pool, context, &visit)) {
        return;
    }
    for (int32_t i = 0; i < pool->slot_count; i++) {
        struct mu_cuda_slot *slot = &pool->slots[i];
        if (slot->context == context->index && slot->begin != NULL) {
            pool->driver->event_destroy(slot->begin);
        }
        if (slot->context == context->index && slot->end != NULL) {
            pool->driver->event_destroy(slot->end);
        }
    }
    for (int i = 0; i < MU_CUDA_ANCHORS; i++) {
        if (context->anchors[i].event != NULL) {
            pool->driver->event_destroy(context->anchors[i].event);
        }
    }
    mu_cuda_context_leave(pool, &visit);
}

void mu_cuda_pool_free(struct mu_cuda_pool *pool) {
    if (pool == NULL) {
        return;
    }
    int32_t context_count = atomic_load(&pool->context_count);
    for (int32_t i = 0; i < context_count; i++) {
        context_destroy_events(pool, &pool->contexts[i]);
    }
    pthread_mutex_destroy(&pool->lock);
    free(pool->slots);
    free(pool);
}
