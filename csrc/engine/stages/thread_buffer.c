#include "stages/thread_buffer.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/invariant.h"
#include "base/utf8.h"
#include "cuda/cuda_timing.h"
#include "cuda/nvtx.h"
#include "stages/frame_order.h"
#include "stages/state.h"

enum { FRAMES_AT_FIRST = MU_OPEN_MAX, NODES_PER_BLOCK = 4096 };

static const uint64_t ring_mask = MU_RING_SLOTS - 1;

/* Rare cases stay out of line, so that the code for every stage is short. */
#define SELDOM __attribute__((noinline, cold)) static

static inline bool unlikely(bool condition) {
    return __builtin_expect(condition, 0);
}

SELDOM void cancel_span(struct mu_thread_buffer *buffer, struct mu_frame *frame) {
    mu_cuda_span_cancel(buffer->recorder->gpu, frame->span);
    frame->span = 0;
}

/* What holds between two calls. The thread is the only writer of these fields of its chunk, but for
 * the tail, which the drain moves up to the head. */
static inline void check(const struct mu_thread_buffer *buffer) {
    const struct mu_chunk_header *chunk = buffer->chunk;
    MU_INVARIANT(atomic_load(&chunk->state) == MU_CHUNK_OWNED);
    MU_INVARIANT(atomic_load(&chunk->head) == buffer->head);
    MU_INVARIANT(atomic_load(&chunk->tail) <= buffer->head);
    MU_INVARIANT(buffer->head <= buffer->free_until);
    MU_INVARIANT(buffer->free_until - atomic_load(&chunk->tail) <= MU_RING_SLOTS);
    if (mu_frames_in_order(buffer)) {
        MU_INVARIANT(atomic_load(&chunk->depth) == buffer->depth);
    }
    MU_INVARIANT(buffer->depth <= buffer->frames_allocated);
}

int mu_thread_buffer_init(struct mu_thread_buffer *buffer) {
    buffer->frames = calloc(FRAMES_AT_FIRST, sizeof(*buffer->frames));
    buffer->aggregates = calloc(MU_PATHS_MAX, sizeof(*buffer->aggregates));
    if (buffer->frames == NULL || buffer->aggregates == NULL) {
        mu_thread_buffer_free(buffer);
        return MU_ERR_NO_MEMORY;
    }
    buffer->frames_allocated = buffer->frames_in_order = FRAMES_AT_FIRST;
    buffer->step_depth = -1;
    return MU_OK;
}

void mu_thread_buffer_free(struct mu_thread_buffer *buffer) {
    for (uint32_t i = 0; buffer->frames != NULL && i < buffer->depth; i++) {
        free(buffer->frames[i].owned_name);
        cancel_span(buffer, &buffer->frames[i]);
    }
    if (buffer->in_use != NULL) {
        atomic_store(buffer->in_use, false);
    }
    free(buffer->frames);
    for (int path = 0; buffer->aggregates != NULL && path < MU_PATHS_MAX; path++) {
        free(buffer->aggregates[path]);
    }
    free(buffer->aggregates);
    buffer->frames = NULL;
    buffer->aggregates = NULL;
    buffer->depth = 0;
}

static inline uint64_t load8(const char *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof(word));
    return word;
}

static inline uint32_t load4(const char *bytes) {
    uint32_t word;
    memcpy(&word, bytes, sizeof(word));
    return word;
}

/* Stage names have about ten bytes: two overlapping words spare a call of memcmp. */
static inline bool same_text(const char *a, const char *b, size_t length) {
    if (length >= 8 && length <= 16) {
        return load8(a) == load8(b) && load8(a + length - 8) == load8(b + length - 8);
    }
    if (length >= 4 && length < 8) {
        return load4(a) == load4(b) && load4(a + length - 4) == load4(b + length - 4);
    }
    return memcmp(a, b, length) == 0;
}

static struct mu_aggregate *aggregate_of(struct mu_thread_buffer *buffer, uint16_t path) {
    if (buffer->aggregates[path] == NULL) {
        struct mu_aggregate *aggregate = malloc(sizeof(*aggregate));
        if (aggregate != NULL) {
            mu_aggregate_init(aggregate);
        }
        buffer->aggregates[path] = aggregate;
    }
    return buffer->aggregates[path];
}

SELDOM void resolve(struct mu_thread_buffer *buffer, uint16_t parent_path, const char *name,
                    size_t length, uint64_t hash, struct mu_stage *stage) {
    struct mu_recorder *recorder = buffer->recorder;
    pthread_mutex_lock(&recorder->registry_lock);
    memset(stage, 0, sizeof(*stage));
    stage->name_id = mu_names_intern(recorder->names, name, length, hash);
    stage->path = mu_names_path(recorder->names, parent_path, stage->name_id);
    stage->aggregate = aggregate_of(buffer, stage->path);
    if (stage->name_id != MU_NAME_NONE) {
        size_t known;
        stage->name = mu_journal_string(&recorder->journal, stage->name_id, &known);
        stage->hash = hash;
        stage->length = (uint32_t)length;
        stage->parent_path = parent_path;
    } else {
        atomic_fetch_add_explicit(&recorder->troubles.full_names, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&recorder->registry_lock);
}

static inline const struct mu_stage *find_stage(struct mu_thread_buffer *buffer,
                                                uint16_t parent_path, const char *name,
                                                size_t length, uint64_t hash) {
    struct mu_stage *stage = &buffer->cache[(hash ^ (parent_path * 0x9E37u)) % MU_STAGE_CACHE];
    if (unlikely(stage->hash != hash || stage->parent_path != parent_path ||
                 stage->length != length || stage->name == NULL ||
                 !same_text(stage->name, name, length))) {
        resolve(buffer, parent_path, name, length, hash, stage);
    }
    return stage;
}

MU_MUST_CHECK static bool grow_frames(struct mu_thread_buffer *buffer) {
    if (buffer->depth >= MU_STAGE_DEPTH_MAX) {
        return false;
    }
    uint32_t wanted = buffer->frames_allocated * 2;
    struct mu_frame *frames = realloc(buffer->frames, wanted * sizeof(*frames));
    if (frames == NULL) {
        return false;
    }
    buffer->frames = frames;
    buffer->frames_allocated = wanted;
    if (mu_frames_in_order(buffer)) {
        buffer->frames_in_order = wanted;
    }
    return true;
}

SELDOM bool make_frame(struct mu_thread_buffer *buffer) {
    if (buffer->depth < buffer->frames_allocated || grow_frames(buffer)) {
        return true;
    }
    mu_frames_take_branch(buffer);
    buffer->too_deep++;
    mu_frames_choose_stops(buffer);
    atomic_fetch_add_explicit(&buffer->recorder->troubles.too_deep, 1, memory_order_relaxed);
    return false;
}

static inline void publish_open(struct mu_thread_buffer *buffer, uint32_t depth,
                                const struct mu_frame *frame, uint64_t parent) {
    struct mu_open_stage *open = &buffer->chunk->open[depth];
    /* Release on each field: a reader that sees one of them sees the 0 as well. */
    atomic_store_explicit(&open->node, 0, memory_order_relaxed);
    atomic_store_explicit(&open->parent, parent, memory_order_release);
    atomic_store_explicit(&open->step, frame->step, memory_order_release);
    atomic_store_explicit(&open->start, frame->start, memory_order_release);
    atomic_store_explicit(&open->name, frame->name_id, memory_order_release);
    atomic_store_explicit(&open->node, frame->node, memory_order_release);
}

static inline void set_depth(struct mu_thread_buffer *buffer, uint32_t depth) {
    buffer->depth = depth;
    atomic_store_explicit(&buffer->chunk->depth, depth, memory_order_release);
}

/* A name beyond the table's bound is kept in the frame while its stage runs. */
static void keep_name(struct mu_frame *frame, const char *name, size_t length) {
    frame->owned_name = malloc(length + 1);
    if (frame->owned_name == NULL) {
        frame->length = 0;
        return;
    }
    memcpy(frame->owned_name, name, length);
    frame->name = frame->owned_name;
}

/* Node ids are taken in blocks, so that threads seldom compete for them. */
SELDOM void more_nodes(struct mu_thread_buffer *buffer) {
    buffer->node_next = atomic_fetch_add_explicit(&buffer->recorder->node_next, NODES_PER_BLOCK,
                                                  memory_order_relaxed);
    buffer->node_end = buffer->node_next + NODES_PER_BLOCK;
}

/* Fills the frame above the innermost one, but for the time. `parent`: the number of a frame, from
 * 1; 0 none. */
static inline struct mu_frame *fill_frame(struct mu_thread_buffer *buffer, uint32_t parent,
                                          const char *name, size_t length, uint64_t hash) {
    uint32_t depth = buffer->depth;
    struct mu_frame *frame = &buffer->frames[depth];
    uint16_t parent_path = parent == 0 ? MU_PATH_ROOT : buffer->frames[parent - 1].path;
    const struct mu_stage *stage = find_stage(buffer, parent_path, name, length, hash);
    if (unlikely(buffer->node_next == buffer->node_end)) {
        more_nodes(buffer);
    }
    frame->name = stage->name;
    frame->owned_name = NULL;
    frame->hash = hash;
    frame->length = (uint32_t)length;
    frame->name_id = stage->name_id;
    frame->path = stage->path;
    frame->aggregate = stage->aggregate;
    frame->node = buffer->node_next++;
    frame->span = 0;
    frame->range = NULL;
    frame->step = atomic_load_explicit(&buffer->timer->step, memory_order_relaxed);
    if (unlikely(stage->name_id == MU_NAME_NONE)) {
        keep_name(frame, name, length);
    }
    MU_INVARIANT(frame->path < MU_PATHS_MAX);
    MU_INVARIANT(frame->node > (depth == 0 ? 0 : frame[-1].node));
    return frame;
}

SELDOM void start_out_of_order(struct mu_thread_buffer *buffer, const char *name, size_t length,
                               uint64_t hash) {
    uint32_t parent = mu_frames_take_branch(buffer);
    struct mu_frame *frame = fill_frame(buffer, parent, name, length, hash);
    frame->parent = parent == 0 ? 0 : buffer->frames[parent - 1].node;
    frame->slot = mu_frames_free_slot(buffer);
    frame->start = mu_clock_ticks(buffer->counter);
    if (frame->slot < MU_OPEN_MAX) {
        publish_open(buffer, frame->slot, frame, frame->parent);
    }
    buffer->depth++;
    mu_frames_publish_depth(buffer);
}

void mu_thread_buffer_start(struct mu_thread_buffer *buffer, const char *name, size_t length,
                            uint64_t hash) {
    check(buffer);
    length = mu_name_cut(name, length);
    uint32_t depth = buffer->depth;
    if (unlikely(depth >= buffer->frames_in_order)) {
        if (!make_frame(buffer)) {
            return;
        }
        if (!mu_frames_in_order(buffer)) {
            start_out_of_order(buffer, name, length, hash);
            return;
        }
    }
    struct mu_frame *frame = fill_frame(buffer, depth, name, length, hash);
    frame->start = mu_clock_ticks(buffer->counter);
    if (depth < MU_OPEN_MAX) {
        publish_open(buffer, depth, frame, depth == 0 ? 0 : frame[-1].node);
    }
    set_depth(buffer, depth + 1);
}

void mu_thread_buffer_start_with(struct mu_thread_buffer *buffer, const char *name, size_t length,
                                 uint64_t hash, const struct mu_gpu_events *events) {
    struct mu_cuda_pool *pool = buffer->recorder->gpu;
    uint32_t depth = buffer->depth;
    mu_nvtx_push(events->range);
    uint32_t span = events->gpu ? mu_cuda_span_begin(pool) : 0;
    mu_thread_buffer_start(buffer, name, length, hash);
    if (buffer->depth == depth) { /* too deep to be recorded */
        mu_cuda_span_cancel(pool, span);
        mu_nvtx_pop(events->range);
        return;
    }
    struct mu_frame *frame = &buffer->frames[depth];
    frame->range = events->range;
    frame->span = span;
    mu_cuda_span_label(pool, span, mu_timer_gpu_label(buffer->timer, frame->path));
}

/* Copies bytes to a position of the ring. They may wrap around its end. */
static void ring_copy(struct mu_thread_buffer *buffer, uint64_t slot, size_t offset,
                      const char *bytes, size_t length) {
    if (length == 0) {
        return;
    }
    uint8_t *ring = (uint8_t *)buffer->ring;
    size_t at = ((slot & ring_mask) * MU_SLOT_BYTES + offset) % (MU_RING_SLOTS * MU_SLOT_BYTES);
    size_t first = MU_RING_SLOTS * MU_SLOT_BYTES - at;
    if (first > length) {
        first = length;
    }
    memcpy(ring + at, bytes, first);
    memcpy(ring, bytes + first, length - first);
}

static uint16_t payload_slots(size_t name_length, size_t metadata_length) {
    size_t bytes = sizeof(struct mu_record_payload) + name_length + metadata_length;
    return (uint16_t)((bytes + MU_SLOT_BYTES - 1) / MU_SLOT_BYTES);
}

static void write_payload(struct mu_thread_buffer *buffer, struct mu_record *record,
                          const char *name, size_t name_length, const char *metadata,
                          size_t metadata_length) {
    struct mu_record_payload payload = {(uint32_t)name_length, (uint32_t)metadata_length};
    record->check = mu_payload_check(name, name_length, metadata, metadata_length);
    uint64_t slot = buffer->head + 1;
    ring_copy(buffer, slot, 0, (const char *)&payload, sizeof(payload));
    ring_copy(buffer, slot, sizeof(payload), name, name_length);
    ring_copy(buffer, slot, sizeof(payload) + name_length, metadata, metadata_length);
}

SELDOM void call_drain(struct mu_thread_buffer *buffer) {
    uint64_t tail = atomic_load_explicit(&buffer->chunk->tail, memory_order_acquire);
    if (buffer->head - tail < MU_RING_SLOTS / 2) {
        buffer->wake_at = tail + MU_RING_SLOTS / 2;
        return;
    }
    buffer->wake_at = buffer->head + MU_RING_SLOTS / 8;
    buffer->recorder->call_drain(buffer->recorder);
}

SELDOM bool make_room(struct mu_thread_buffer *buffer, uint32_t slots) {
    uint64_t tail = atomic_load_explicit(&buffer->chunk->tail, memory_order_acquire);
    buffer->free_until = tail + MU_RING_SLOTS;
    if (buffer->head + slots <= buffer->free_until) {
        return true;
    }
    MU_RELAXED_ADD(buffer->chunk->dropped, 1);
    atomic_fetch_add_explicit(&buffer->recorder->troubles.dropped_records, 1, memory_order_relaxed);
    call_drain(buffer);
    return false;
}

static inline struct mu_record *reserve(struct mu_thread_buffer *buffer, uint32_t slots) {
    if (unlikely(buffer->head + slots > buffer->free_until) && !make_room(buffer, slots)) {
        return NULL;
    }
    return &buffer->ring[buffer->head & ring_mask];
}

static inline void publish(struct mu_thread_buffer *buffer, uint32_t slots) {
    MU_INVARIANT(slots > 0 && buffer->head + slots <= buffer->free_until);
    buffer->head += slots;
    atomic_store_explicit(&buffer->chunk->head, buffer->head, memory_order_release);
    if (unlikely(buffer->head >= buffer->wake_at)) {
        call_drain(buffer);
    }
}

static inline void record_stage(struct mu_thread_buffer *buffer, struct mu_frame *frame,
                                uint32_t slot, uint64_t parent, uint64_t end, uint64_t duration_ns,
                                uint8_t flags) {
    uint16_t slots = 1;
    if (unlikely(frame->name_id == MU_NAME_NONE)) {
        slots += payload_slots(frame->length, 0);
        flags |= MU_RECORD_INLINE_NAME;
    }
    struct mu_record *record = reserve(buffer, slots);
    if (unlikely(record == NULL)) {
        cancel_span(buffer, frame);
        return;
    }
    record->kind = MU_RECORD_STAGE;
    record->event = 0;
    record->flags = flags;
    record->depth = slot < MU_OPEN_MAX ? (uint8_t)slot : MU_DEPTH_UNKEPT;
    record->name = frame->name_id;
    record->slots = slots;
    record->node = frame->node;
    record->parent = parent;
    record->step = frame->step;
    record->start = frame->start;
    record->end = end;
    record->span = frame->span;
    record->duration_ns = duration_ns;
    if (unlikely(slots > 1)) {
        write_payload(buffer, record, frame->name, frame->length, "", 0);
    }
    publish(buffer, slots);
}

SELDOM void end_gpu_events(struct mu_thread_buffer *buffer, struct mu_frame *frame) {
    mu_cuda_span_end(buffer->recorder->gpu, frame->span);
    mu_nvtx_pop(frame->range);
}

static inline void end_stage(struct mu_thread_buffer *buffer, struct mu_frame *frame, uint32_t slot,
                             uint64_t parent, uint64_t end, uint8_t flags) {
    if (unlikely(frame->span != 0 || frame->range != NULL)) {
        end_gpu_events(buffer, frame);
    }
    uint64_t rate = atomic_load_explicit(buffer->rate, memory_order_relaxed);
    uint64_t duration_ns = mu_clock_scale(end - frame->start, rate);
    if (frame->aggregate != NULL) {
        mu_aggregate_add(frame->aggregate, duration_ns);
    }
    record_stage(buffer, frame, slot, parent, end, duration_ns, flags);
    if (unlikely(frame->owned_name != NULL)) {
        free(frame->owned_name);
        frame->owned_name = NULL;
    }
}

/* Of stages in order. */
static inline void close_top(struct mu_thread_buffer *buffer, uint64_t end, uint8_t flags) {
    uint32_t depth = buffer->depth - 1;
    struct mu_frame *frame = &buffer->frames[depth];
    end_stage(buffer, frame, depth, depth == 0 ? 0 : frame[-1].node, end, flags);
    set_depth(buffer, depth);
}

static void close_at(struct mu_thread_buffer *buffer, uint32_t index, uint64_t end, uint8_t flags) {
    bool is_top = index + 1 == buffer->depth;
    if (is_top && mu_frames_in_order(buffer)) {
        close_top(buffer, end, flags);
        return;
    }
    if (mu_frames_in_order(buffer)) {
        mu_frames_leave_order(buffer);
    }
    struct mu_frame *frame = &buffer->frames[index];
    end_stage(buffer, frame, frame->slot, frame->parent, end, flags);
    mu_frames_remove(buffer, index);
}

/* Ends the stages from `index` on, up to the first one with an owner. Returns how many. */
static uint32_t close_from(struct mu_thread_buffer *buffer, uint32_t index, uint64_t end,
                           uint8_t flags) {
    uint32_t until = index;
    while (until < buffer->depth && !mu_frame_has_owner(&buffer->frames[until])) {
        until++;
    }
    for (uint32_t i = until; i > index; i--) {
        close_at(buffer, i - 1, end, flags);
    }
    return until - index;
}

static enum mu_stop_result close_with_inner(struct mu_thread_buffer *buffer, uint32_t index,
                                            uint64_t end) {
    uint32_t closed = close_from(buffer, index + 1, end, MU_RECORD_CLOSED_ORDER);
    close_at(buffer, index, end, 0);
    return closed == 0 ? MU_STOP_OK : MU_STOP_CLOSED_INNER;
}

static bool forgets_too_deep(struct mu_thread_buffer *buffer) {
    bool is_too_deep = buffer->too_deep > 0;
    if (is_too_deep) {
        buffer->too_deep--;
        mu_frames_choose_stops(buffer);
    }
    return is_too_deep;
}

static inline bool is_named(const struct mu_frame *frame, const char *name, size_t length,
                            uint64_t hash) {
    return frame->hash == hash && frame->length == length && same_text(frame->name, name, length);
}

/* One more than the place of the innermost; 0 where there is none. */
static uint32_t find_named(const struct mu_thread_buffer *buffer, const char *name, size_t length,
                           uint64_t hash) {
    uint32_t found = buffer->depth;
    while (found > 0 && !is_named(&buffer->frames[found - 1], name, length, hash)) {
        found--;
    }
    return found;
}

static enum mu_stop_result stop_outer(struct mu_thread_buffer *buffer, const char *name,
                                      size_t length, uint64_t hash, uint64_t end) {
    if (forgets_too_deep(buffer)) {
        return MU_STOP_OK;
    }
    uint32_t found = find_named(buffer, name, length, hash);
    if (found == 0) {
        found = find_named(buffer, name, length, MU_HASH_OF_OWNED);
    }
    return found == 0 ? MU_STOP_NOT_OPEN : close_with_inner(buffer, found - 1, end);
}

enum mu_stop_result mu_thread_buffer_stop(struct mu_thread_buffer *buffer, const char *name,
                                          size_t length, uint64_t hash) {
    uint64_t end = mu_clock_ticks(buffer->counter);
    check(buffer);
    length = mu_name_cut(name, length);
    if (unlikely(buffer->depth == 0 || buffer->stops_slowly ||
                 !is_named(&buffer->frames[buffer->depth - 1], name, length, hash))) {
        return stop_outer(buffer, name, length, hash, end);
    }
    close_top(buffer, end, 0);
    return MU_STOP_OK;
}

/* Stages of an owner that ended from `index` on are no longer among those of the last set_step. */
static inline void keep_step_depth(struct mu_thread_buffer *buffer, uint32_t index,
                                   uint32_t ended) {
    int32_t before = buffer->step_depth - (int32_t)index;
    if (unlikely(before > 0)) {
        buffer->step_depth -= before < (int32_t)ended ? before : (int32_t)ended;
    }
}

enum { NOT_OF_HANDLE, OF_HANDLE, SAME_FLOW, SAME_FRAME };

/* How well the stage fits the owner. */
static inline int fit(const struct mu_frame *frame, const struct mu_stage_owner *owner) {
    if (!mu_frame_has_owner(frame) || frame->owner.handle != owner->handle) {
        return NOT_OF_HANDLE;
    }
    if (frame->owner.frame == owner->frame) {
        return SAME_FRAME;
    }
    return mu_frame_is_of_flow(frame, owner) ? SAME_FLOW : OF_HANDLE;
}

static enum mu_stop_result stop_owned_outer(struct mu_thread_buffer *buffer,
                                            const struct mu_stage_owner *owner, uint64_t end) {
    uint32_t found = 0;
    int best = NOT_OF_HANDLE;
    for (uint32_t i = buffer->depth; i > 0 && best < SAME_FRAME; i--) {
        int fits = fit(&buffer->frames[i - 1], owner);
        if (fits > best) {
            best = fits;
            found = i;
        }
    }
    if (best < SAME_FRAME && forgets_too_deep(buffer)) {
        return MU_STOP_OK;
    }
    if (found == 0) {
        return MU_STOP_NOT_OPEN;
    }
    uint32_t depth = buffer->depth;
    enum mu_stop_result result = close_with_inner(buffer, found - 1, end);
    keep_step_depth(buffer, found - 1, depth - buffer->depth);
    return result;
}

enum mu_stop_result mu_thread_buffer_stop_owned(struct mu_thread_buffer *buffer,
                                                const struct mu_stage_owner *owner) {
    uint64_t end = mu_clock_ticks(buffer->counter);
    check(buffer);
    if (unlikely(buffer->depth == 0 || buffer->stops_slowly ||
                 fit(&buffer->frames[buffer->depth - 1], owner) < SAME_FRAME)) {
        return stop_owned_outer(buffer, owner, end);
    }
    close_top(buffer, end, 0);
    keep_step_depth(buffer, buffer->depth, 1);
    return MU_STOP_OK;
}

uint32_t mu_thread_buffer_set_step(struct mu_thread_buffer *buffer) {
    uint32_t closed = 0;
    check(buffer);
    if (buffer->step_depth >= 0) {
        uint64_t end = mu_clock_ticks(buffer->counter);
        closed = close_from(buffer, (uint32_t)buffer->step_depth, end, MU_RECORD_CLOSED_STEP);
    }
    buffer->step_depth = (int32_t)buffer->depth;
    buffer->too_deep = 0;
    mu_frames_choose_stops(buffer);
    int64_t step = atomic_load_explicit(&buffer->timer->step, memory_order_relaxed);
    atomic_store_explicit(&buffer->chunk->step, step, memory_order_relaxed);
    return closed;
}

bool mu_thread_buffer_event(struct mu_thread_buffer *buffer, const struct mu_event *event) {
    check(buffer);
    size_t name_length = mu_name_cut(event->name, event->name_length);
    size_t metadata_length =
        mu_utf8_cut(event->metadata, event->metadata_length, MU_METADATA_BYTES_MAX);
    bool whole = event->metadata_length <= MU_METADATA_BYTES_MAX;
    if (!whole) {
        atomic_fetch_add_explicit(&buffer->recorder->troubles.cut_metadata, 1,
                                  memory_order_relaxed);
    }
    uint16_t slots = 1 + payload_slots(name_length, metadata_length);
    struct mu_record *record = reserve(buffer, slots);
    if (record == NULL) {
        return whole;
    }
    memset(record, 0, sizeof(*record));
    record->kind = MU_RECORD_EVENT;
    record->event = (uint8_t)event->type;
    record->flags = (event->has_time ? MU_RECORD_REAL_TIME : 0) |
                    (event->has_duration ? MU_RECORD_HAS_DURATION : 0);
    record->slots = slots;
    record->step = event->step;
    record->start = mu_clock_ticks(buffer->counter);
    record->end = event->has_time ? (uint64_t)event->real_ns : record->start;
    record->parent = event->has_duration ? (uint64_t)event->duration_ns : 0;
    write_payload(buffer, record, event->name, name_length, event->metadata, metadata_length);
    publish(buffer, slots);
    return whole;
}
