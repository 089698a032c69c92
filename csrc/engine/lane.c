#include "lane.h"

#include <stdlib.h>
#include <string.h>

#include "marks.h"
#include "recorder.h"

enum { FRAMES_AT_FIRST = MU_OPEN_MAX };

static const uint64_t ring_mask = MU_RING_SLOTS - 1;

static inline bool unlikely(bool condition) {
    return __builtin_expect(condition, 0);
}

int mu_lane_init(struct mu_lane *lane) {
    lane->frames = calloc(FRAMES_AT_FIRST, sizeof(*lane->frames));
    lane->aggregates = calloc(MU_PATHS_MAX, sizeof(*lane->aggregates));
    if (lane->frames == NULL || lane->aggregates == NULL) {
        mu_lane_free(lane);
        return MU_ERR_NO_MEMORY;
    }
    lane->frames_allocated = FRAMES_AT_FIRST;
    lane->step_depth = -1;
    return MU_OK;
}

void mu_lane_free(struct mu_lane *lane) {
    for (uint32_t i = 0; lane->frames != NULL && i < lane->depth; i++) {
        free(lane->frames[i].owned_name);
        mu_frame_cancel_span(lane, &lane->frames[i]);
    }
    free(lane->frames);
    for (int path = 0; lane->aggregates != NULL && path < MU_PATHS_MAX; path++) {
        free(lane->aggregates[path]);
    }
    free(lane->aggregates);
    lane->frames = NULL;
    lane->aggregates = NULL;
    lane->depth = 0;
}

static inline uint64_t load8(const char *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof(word));
    return word;
}

/* Stage names have about ten bytes: two overlapping words spare a call of memcmp. */
static inline bool same_text(const char *a, const char *b, size_t length) {
    if (length >= 8 && length <= 16) {
        return load8(a) == load8(b) && load8(a + length - 8) == load8(b + length - 8);
    }
    if (length < 8) {
        bool same = true;
        for (size_t i = 0; i < length; i++) {
            same = same && a[i] == b[i];
        }
        return same;
    }
    return memcmp(a, b, length) == 0;
}

static inline const struct mu_stage *find_stage(struct mu_lane *lane, uint16_t parent_path,
                                                const char *name, size_t length, uint64_t hash) {
    struct mu_stage *stage = &lane->cache[(hash ^ (parent_path * 0x9E37u)) % MU_LANE_CACHE];
    if (unlikely(stage->hash != hash || stage->parent_path != parent_path ||
                 stage->length != length || stage->name == NULL ||
                 !same_text(stage->name, name, length))) {
        mu_recorder_resolve(lane, parent_path, name, length, hash, stage);
    }
    return stage;
}

static bool grow_frames(struct mu_lane *lane) {
    if (lane->depth >= MU_LANE_DEPTH_MAX) {
        return false;
    }
    uint32_t wanted = lane->frames_allocated * 2;
    struct mu_frame *frames = realloc(lane->frames, wanted * sizeof(*frames));
    if (frames == NULL) {
        return false;
    }
    lane->frames = frames;
    lane->frames_allocated = wanted;
    return true;
}

static inline void publish_open(struct mu_lane *lane, uint32_t depth, const struct mu_frame *frame,
                                uint64_t parent) {
    struct mu_open_stage *open = &lane->chunk->open[depth];
    /* Release on each field: a reader that sees one of them sees the 0 as well. */
    atomic_store_explicit(&open->node, 0, memory_order_relaxed);
    atomic_store_explicit(&open->parent, parent, memory_order_release);
    atomic_store_explicit(&open->step, frame->step, memory_order_release);
    atomic_store_explicit(&open->start, frame->start, memory_order_release);
    atomic_store_explicit(&open->name, frame->name_id, memory_order_release);
    atomic_store_explicit(&open->node, frame->node, memory_order_release);
}

static inline void set_depth(struct mu_lane *lane, uint32_t depth) {
    lane->depth = depth;
    atomic_store_explicit(&lane->chunk->depth, depth, memory_order_release);
}

/* A name beyond the table's bound lives in the frame while its stage runs. */
static void keep_name(struct mu_frame *frame, const char *name, size_t length) {
    frame->owned_name = malloc(length + 1);
    if (frame->owned_name == NULL) {
        frame->length = 0;
        return;
    }
    memcpy(frame->owned_name, name, length);
    frame->name = frame->owned_name;
}

void mu_lane_start(struct mu_lane *lane, const char *name, size_t length, uint64_t hash) {
    length = mu_name_cut(name, length);
    uint32_t depth = lane->depth;
    if (unlikely(depth == lane->frames_allocated && !grow_frames(lane))) {
        lane->too_deep++;
        atomic_fetch_add_explicit(&lane->recorder->troubles.too_deep, 1, memory_order_relaxed);
        return;
    }
    struct mu_frame *frame = &lane->frames[depth];
    uint16_t parent_path = depth == 0 ? MU_PATH_ROOT : frame[-1].path;
    const struct mu_stage *stage = find_stage(lane, parent_path, name, length, hash);
    if (unlikely(lane->node_next == lane->node_end)) {
        mu_recorder_more_nodes(lane);
    }
    frame->name = stage->name;
    frame->owned_name = NULL;
    frame->hash = hash;
    frame->length = (uint32_t)length;
    frame->name_id = stage->name_id;
    frame->path = stage->path;
    frame->aggregate = stage->aggregate;
    frame->node = lane->node_next++;
    frame->span = 0;
    frame->range = NULL;
    frame->step = atomic_load_explicit(&lane->timer->step, memory_order_relaxed);
    if (unlikely(stage->name_id == MU_NAME_NONE)) {
        keep_name(frame, name, length);
    }
    frame->start = mu_clock_ticks(lane->counter);
    if (depth < MU_OPEN_MAX) {
        publish_open(lane, depth, frame, depth == 0 ? 0 : frame[-1].node);
    }
    set_depth(lane, depth + 1);
}

/* Bytes at a position of the ring, which may run over its end. */
static void ring_copy(struct mu_lane *lane, uint64_t slot, size_t offset, const char *bytes,
                      size_t length) {
    if (length == 0) {
        return;
    }
    uint8_t *ring = (uint8_t *)lane->ring;
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

static void write_payload(struct mu_lane *lane, const char *name, size_t name_length,
                          const char *metadata, size_t metadata_length) {
    struct mu_record_payload payload = {(uint32_t)name_length, (uint32_t)metadata_length};
    uint64_t slot = lane->head + 1;
    ring_copy(lane, slot, 0, (const char *)&payload, sizeof(payload));
    ring_copy(lane, slot, sizeof(payload), name, name_length);
    ring_copy(lane, slot, sizeof(payload) + name_length, metadata, metadata_length);
}

static inline struct mu_record *reserve(struct mu_lane *lane, uint32_t slots) {
    if (unlikely(lane->head + slots > lane->room_until) && !mu_recorder_make_room(lane, slots)) {
        return NULL;
    }
    return &lane->ring[lane->head & ring_mask];
}

static inline void publish(struct mu_lane *lane, uint32_t slots) {
    lane->head += slots;
    atomic_store_explicit(&lane->chunk->head, lane->head, memory_order_release);
    if (unlikely(lane->head >= lane->wake_at)) {
        mu_recorder_call_drain(lane);
    }
}

static inline void record_stage(struct mu_lane *lane, struct mu_frame *frame, uint64_t end,
                                uint8_t flags) {
    uint32_t depth = lane->depth - 1;
    uint16_t slots = 1;
    if (unlikely(frame->name_id == MU_NAME_NONE)) {
        slots += payload_slots(frame->length, 0);
        flags |= MU_RECORD_INLINE_NAME;
    }
    struct mu_record *record = reserve(lane, slots);
    if (unlikely(record == NULL)) {
        mu_frame_cancel_span(lane, frame);
        return;
    }
    record->kind = MU_RECORD_STAGE;
    record->event = 0;
    record->flags = flags;
    record->depth = depth < MU_OPEN_MAX ? (uint8_t)depth : MU_DEPTH_UNKEPT;
    record->name = frame->name_id;
    record->slots = slots;
    record->node = frame->node;
    record->parent = depth == 0 ? 0 : frame[-1].node;
    record->step = frame->step;
    record->start = frame->start;
    record->end = end;
    record->span = frame->span;
    if (unlikely(slots > 1)) {
        write_payload(lane, frame->name, frame->length, NULL, 0);
    }
    publish(lane, slots);
}

static inline void close_top(struct mu_lane *lane, uint64_t end, uint8_t flags) {
    struct mu_frame *frame = &lane->frames[lane->depth - 1];
    if (unlikely(frame->span != 0 || frame->range != NULL)) {
        mu_frame_end_marks(lane, frame);
    }
    if (frame->aggregate != NULL) {
        uint64_t rate = atomic_load_explicit(lane->rate, memory_order_relaxed);
        mu_aggregate_add(frame->aggregate, mu_clock_scale(end - frame->start, rate));
    }
    record_stage(lane, frame, end, flags);
    if (unlikely(frame->owned_name != NULL)) {
        free(frame->owned_name);
        frame->owned_name = NULL;
    }
    set_depth(lane, lane->depth - 1);
}

static inline bool frame_is(const struct mu_frame *frame, const char *name, size_t length,
                            uint64_t hash) {
    return frame->hash == hash && frame->length == length && same_text(frame->name, name, length);
}

static enum mu_stop_result stop_outer(struct mu_lane *lane, const char *name, size_t length,
                                      uint64_t hash, uint64_t end) {
    if (lane->too_deep > 0) {
        lane->too_deep--;
        return MU_STOP_OK;
    }
    uint32_t found = lane->depth;
    while (found > 0 && !frame_is(&lane->frames[found - 1], name, length, hash)) {
        found--;
    }
    if (found == 0) {
        return MU_STOP_NOT_OPEN;
    }
    while (lane->depth > found) {
        close_top(lane, end, MU_RECORD_CLOSED_ORDER);
    }
    close_top(lane, end, 0);
    return MU_STOP_CLOSED_INNER;
}

enum mu_stop_result mu_lane_stop(struct mu_lane *lane, const char *name, size_t length,
                                 uint64_t hash) {
    uint64_t end = mu_clock_ticks(lane->counter);
    length = mu_name_cut(name, length);
    if (unlikely(lane->depth == 0 || lane->too_deep > 0 ||
                 !frame_is(&lane->frames[lane->depth - 1], name, length, hash))) {
        return stop_outer(lane, name, length, hash, end);
    }
    close_top(lane, end, 0);
    return MU_STOP_OK;
}

uint32_t mu_lane_set_step(struct mu_lane *lane) {
    uint32_t closed = 0;
    uint64_t end = mu_clock_ticks(lane->counter);
    while (lane->step_depth >= 0 && lane->depth > (uint32_t)lane->step_depth) {
        close_top(lane, end, MU_RECORD_CLOSED_STEP);
        closed++;
    }
    lane->step_depth = (int32_t)lane->depth;
    lane->too_deep = 0;
    int64_t step = atomic_load_explicit(&lane->timer->step, memory_order_relaxed);
    atomic_store_explicit(&lane->chunk->step, step, memory_order_relaxed);
    return closed;
}

bool mu_lane_event(struct mu_lane *lane, const struct mu_event *event) {
    size_t name_length = mu_name_cut(event->name, event->name_length);
    size_t metadata_length =
        mu_utf8_cut(event->metadata, event->metadata_length, MU_METADATA_BYTES_MAX);
    bool whole = event->metadata_length <= MU_METADATA_BYTES_MAX;
    if (!whole) {
        atomic_fetch_add_explicit(&lane->recorder->troubles.cut_metadata, 1, memory_order_relaxed);
    }
    uint16_t slots = 1 + payload_slots(name_length, metadata_length);
    struct mu_record *record = reserve(lane, slots);
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
    record->start = mu_clock_ticks(lane->counter);
    record->end = event->has_time ? (uint64_t)event->real_ns : record->start;
    record->parent = event->has_duration ? (uint64_t)event->duration_ns : 0;
    write_payload(lane, event->name, name_length, event->metadata, metadata_length);
    publish(lane, slots);
    return whole;
}
