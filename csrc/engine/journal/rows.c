#include "journal/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/event.h"
#include "journal/step_windows.h"

static const uint64_t ring_mask = MU_RING_SLOTS - 1;

enum row_what {
    ROW_START,
    ROW_END,
    ROW_EVENT,
    ROW_OPEN, /* the START of a stage that still runs; `position` is its depth */
};

struct mu_row_ref {
    uint64_t ticks;
    uint64_t position : 56;
    uint64_t what : 8;
};

void mu_rows_init(struct mu_rows *rows) {
    memset(rows, 0, sizeof(*rows));
}

void mu_rows_free(struct mu_rows *rows) {
    free(rows->refs);
    free(rows->positions);
    free(rows->scratch);
    for (int i = 0; i < MU_STRINGS_MAX; i++) {
        free(rows->names[i].text);
    }
    mu_rows_init(rows);
}

static const struct mu_record *record_at(const struct mu_buffer_view *view, uint64_t position) {
    return &view->ring[position & ring_mask];
}

MU_MUST_CHECK static bool reserve(void **array, size_t *allocated, size_t wanted, size_t unit) {
    if (wanted <= *allocated) {
        return true;
    }
    size_t size = wanted + wanted / 2 + 64;
    void *grown = realloc(*array, size * unit);
    if (grown == NULL) {
        return false;
    }
    *array = grown;
    *allocated = size;
    return true;
}

/* Collects the positions of the view's records. Stops early at a length that is not valid. */
static size_t find_records(struct mu_rows *rows, struct mu_buffer_view *view) {
    size_t count = 0;
    uint64_t position = view->from;
    while (position < view->to) {
        uint16_t slots = record_at(view, position)->slots;
        if (slots == 0) { /* of a page that was lost */
            rows->bad_records++;
            position++;
            continue;
        }
        if (slots > view->to - position) {
            rows->bad_records++;
            break;
        }
        rows->positions[count++] = position;
        position += slots;
    }
    return count;
}

static bool is_started(const struct mu_buffer_view *view, const struct mu_record *record) {
    return record->depth < MU_OPEN_MAX && view->started[record->depth].node == record->node;
}

/* Removes stages that have ended from the open ones. A thread buffer first publishes the record,
 * then closes the stage. Between the two, this drain or the one before may have seen the record. */
static void drop_ended_from_open(struct mu_rows *rows, struct mu_buffer_view *view, size_t count) {
    for (int depth = 0; depth < MU_OPEN_MAX; depth++) {
        if (view->open[depth].node == view->started[depth].node &&
            view->started[depth].mono_ns == MU_STAGE_ENDED) {
            view->open[depth].node = 0;
        }
    }
    for (size_t i = 0; i < count; i++) {
        const struct mu_record *record = record_at(view, rows->positions[i]);
        if (record->kind == MU_RECORD_STAGE && record->depth < MU_OPEN_MAX &&
            view->open[record->depth].node == record->node) {
            view->open[record->depth].node = 0;
        }
    }
}

/* Whether the START of the open stage at that depth is not yet written. */
static bool is_due(const struct mu_buffer_view *view, int depth) {
    const struct mu_open_view *open = &view->open[depth];
    return open->node != 0 && open->node != view->started[depth].node && open->name != 0;
}

static size_t count_open(const struct mu_buffer_view *view) {
    size_t count = 0;
    for (int depth = 0; depth < MU_OPEN_MAX; depth++) {
        count += is_due(view, depth);
    }
    return count;
}

static struct mu_row_ref make_ref(uint64_t ticks, uint64_t position, enum row_what what) {
    struct mu_row_ref ref = {.ticks = ticks, .position = position, .what = what};
    return ref;
}

/* Puts a START among those that wait, the latest on top. Stages that nest need no search. */
static void push_waiting(struct mu_row_ref *refs, size_t *waiting, struct mu_row_ref start) {
    size_t place = (*waiting)++;
    while (place > 0 && refs[place - 1].ticks > start.ticks) {
        refs[place] = refs[place - 1];
        place--;
    }
    refs[place] = start;
}

/* Orders the rows of one thread buffer, in linear time where its stages nest. Records are in the
 * order of their ends, so the walk goes backwards: a START waits on a stack until everything that
 * is later is placed. The stack grows in the lower part of the very array that is filled from its
 * upper end. */
static size_t order_rows(struct mu_rows *rows, struct mu_buffer_view *view, struct mu_row_ref *refs,
                         size_t total, size_t count) {
    size_t waiting = 0, free_end = total;
    for (int depth = 0; depth < MU_OPEN_MAX; depth++) {
        if (is_due(view, depth)) {
            uint64_t start = view->open[depth].start;
            push_waiting(refs, &waiting, make_ref(start, (uint64_t)depth, ROW_OPEN));
        }
    }
    for (size_t i = count; i-- > 0;) {
        uint64_t position = rows->positions[i];
        const struct mu_record *record = record_at(view, position);
        bool stage = record->kind == MU_RECORD_STAGE;
        uint64_t ticks = stage ? record->end : record->start;
        while (waiting > 0 && refs[waiting - 1].ticks >= ticks) {
            refs[--free_end] = refs[waiting - 1];
            waiting--;
        }
        refs[--free_end] = make_ref(ticks, position, stage ? ROW_END : ROW_EVENT);
        if (stage && !is_started(view, record)) {
            push_waiting(refs, &waiting, make_ref(record->start, position, ROW_START));
        }
    }
    while (waiting > 0) {
        refs[--free_end] = refs[waiting - 1];
        waiting--;
    }
    return free_end;
}

static const struct mu_quoted_name *quoted_name(struct mu_rows *rows,
                                                const struct mu_strings *strings, uint32_t index) {
    static const struct mu_quoted_name nameless = {NULL, 0};
    if (index >= MU_STRINGS_MAX) {
        return &nameless;
    }
    struct mu_quoted_name *name = &rows->names[index];
    size_t length;
    const char *text = name->text == NULL ? mu_strings_get(strings, index, &length) : NULL;
    if (text != NULL) {
        name->text = malloc(2 * length + 2);
        if (name->text == NULL) {
            rows->unkept.text = rows->unkept_text;
            name = &rows->unkept;
        }
        name->length = (uint32_t)mu_csv_quote(name->text, text, length);
    }
    return name->text == NULL ? &nameless : name;
}

/* The record's payload in one piece, with its two lengths checked. NULL when they are not valid or
 * memory ran out. */
static const char *read_payload(struct mu_rows *rows, const struct mu_buffer_view *view,
                                uint64_t position, struct mu_record_payload *payload) {
    size_t slots = record_at(view, position)->slots - 1u;
    size_t bytes = slots * MU_SLOT_BYTES;
    if (slots == 0 || !reserve((void **)&rows->scratch, &rows->scratch_allocated, 3 * bytes, 1)) {
        return NULL;
    }
    for (size_t i = 0; i < slots; i++) {
        memcpy(rows->scratch + i * MU_SLOT_BYTES, record_at(view, position + 1 + i), MU_SLOT_BYTES);
    }
    memcpy(payload, rows->scratch, sizeof(*payload));
    size_t left = bytes - sizeof(*payload);
    if (payload->name_bytes > left || payload->metadata_bytes > left - payload->name_bytes) {
        return NULL;
    }
    return rows->scratch + sizeof(*payload);
}

static bool describe_name(struct mu_rows *rows, const struct mu_row_context *context,
                          const struct mu_buffer_view *view, uint64_t position,
                          struct mu_csv_stage_row *row) {
    const struct mu_record *record = record_at(view, position);
    if ((record->flags & MU_RECORD_INLINE_NAME) == 0) {
        const struct mu_quoted_name *name = quoted_name(rows, &context->strings, record->name);
        row->name = name->text == NULL ? "" : name->text;
        row->name_length = name->length;
        rows->unnamed += name->text == NULL && record->name != 0;
        return true;
    }
    struct mu_record_payload payload;
    const char *text = read_payload(rows, view, position, &payload);
    if (text == NULL) {
        rows->bad_records++;
        return false;
    }
    char *quoted = rows->scratch + (record->slots - 1u) * (size_t)MU_SLOT_BYTES;
    row->name = quoted;
    row->name_length = mu_csv_quote(quoted, text, payload.name_bytes);
    return true;
}

static size_t closed_text(char *out, uint8_t flags) {
    const char *text = flags & MU_RECORD_CLOSED_ORDER  ? ",closed=out_of_order"
                       : flags & MU_RECORD_CLOSED_STEP ? ",closed=step"
                                                       : "";
    size_t length = strlen(text);
    memcpy(out, text, length);
    return length;
}

static int64_t real_ns(const struct mu_row_context *context, int64_t mono_ns) {
    int64_t real = mu_clock_add(mono_ns, context->real_offset_ns);
    return mu_clock_add(real, context->user_offset_ns);
}

/* The start as in the stage's START row, for the END row that is written now. */
static int64_t began_at(const struct mu_row_context *context, struct mu_buffer_view *view,
                        const struct mu_record *record) {
    int64_t began = mu_timeline_mono_ns(context->timeline, record->start);
    if (record->depth < MU_OPEN_MAX) {
        struct mu_started *started = &view->started[record->depth];
        if (started->node == record->node && started->mono_ns != MU_STAGE_ENDED) {
            began = started->mono_ns;
        }
        started->node = record->node;
        started->mono_ns = MU_STAGE_ENDED;
    }
    return began;
}

static void describe_stage(const struct mu_buffer_view *view, const struct mu_record *record,
                           struct mu_csv_stage_row *row) {
    row->step = record->step;
    row->node = record->node;
    row->parent = record->parent;
    row->track = view->track;
    row->track_length = view->track_length;
}

/* How many steps the row has waited. A large number when its slots, or its place here, are
 * needed. */
static uint64_t held_age(const struct mu_row_context *context, const struct mu_buffer_view *view,
                         const struct mu_held_row *end) {
    bool crowded = view->to - end->position > MU_RING_SLOTS / 2 || view->held_count >= MU_HELD_MAX;
    return crowded ? MU_GPU_HELD_STEPS : context->gpu->step - end->step;
}

/* Returns false when the row must wait for its GPU times; it is not written then. */
static bool write_end_row(struct mu_rows *rows, const struct mu_row_context *context,
                          const struct mu_buffer_view *view, const struct mu_held_row *end,
                          struct mu_csv_writer *writer) {
    const struct mu_record *record = record_at(view, end->position);
    char extra[48 + MU_GPU_TEXT_MAX];
    size_t length = closed_text(extra, record->flags);
    size_t gpu_length = 0;
    if (record->span != 0 && context->gpu != NULL &&
        mu_gpu_rows_request(context->gpu, record->span, held_age(context, view, end),
                            end->offset_ns, extra + length, &gpu_length) == MU_GPU_ROWS_WAIT) {
        return false;
    }
    struct mu_csv_stage_row row;
    describe_stage(view, record, &row);
    if (!describe_name(rows, context, view, end->position, &row)) {
        return true;
    }
    int64_t mono = mu_timeline_mono_ns(context->timeline, record->end);
    row.real_ns = mu_clock_add(mono, end->offset_ns);
    uint64_t since_start = (uint64_t)mono - (uint64_t)end->began_ns;
    int64_t duration = (int64_t)(record->duration_ns != 0 ? record->duration_ns : since_start);
    mu_csv_write_end(writer, &row, duration, extra, length + gpu_length);
    return true;
}

static struct mu_window_stage window_stage(const struct mu_record *record) {
    return (struct mu_window_stage){.node = record->node,
                                    .parent = record->parent,
                                    .step = record->step,
                                    .depth = record->depth,
                                    .name = record->name};
}

static void add_end_to_windows(const struct mu_row_context *context,
                               const struct mu_buffer_view *view, const struct mu_record *record,
                               int64_t began_ns) {
    if (view->windows == NULL) {
        return;
    }
    const struct mu_window_stage stage = window_stage(record);
    mu_step_windows_end(view->windows, &context->strings, &stage, began_ns,
                        (int64_t)record->duration_ns);
}

static void write_stage_row(struct mu_rows *rows, const struct mu_row_context *context,
                            struct mu_buffer_view *view, const struct mu_row_ref *ref,
                            struct mu_csv_writer *writer) {
    const struct mu_record *record = record_at(view, ref->position);
    int64_t offset = mu_clock_add(context->real_offset_ns, context->user_offset_ns);
    if (ref->what == ROW_END) {
        struct mu_held_row end = {.position = ref->position,
                                  .began_ns = began_at(context, view, record),
                                  .offset_ns = offset,
                                  .step = context->gpu == NULL ? 0 : context->gpu->step};
        add_end_to_windows(context, view, record, end.began_ns);
        if (!write_end_row(rows, context, view, &end, writer)) {
            view->held[view->held_count++] = end;
        }
        return;
    }
    struct mu_csv_stage_row row;
    int64_t mono = mu_timeline_mono_ns(context->timeline, ref->ticks);
    if (view->windows != NULL) {
        const struct mu_window_stage stage = window_stage(record);
        mu_step_windows_start(view->windows, &context->strings, &stage, mono);
    }
    describe_stage(view, record, &row);
    if (describe_name(rows, context, view, ref->position, &row)) {
        row.real_ns = mu_clock_add(mono, offset);
        mu_csv_write_start(writer, &row);
    }
}

/* Rows that waited and need not any more. */
static void write_held(struct mu_rows *rows, const struct mu_row_context *context,
                       struct mu_buffer_view *view, struct mu_csv_writer *writer) {
    uint32_t count = view->held_count;
    view->held_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct mu_held_row end = view->held[i];
        if (!write_end_row(rows, context, view, &end, writer)) {
            view->held[view->held_count++] = end;
        }
    }
    view->changed = view->changed || view->held_count != count;
}

static struct mu_csv_stage_row row_of_open(struct mu_rows *rows,
                                           const struct mu_row_context *context,
                                           const struct mu_open_view *open, int64_t mono) {
    const struct mu_quoted_name *name = quoted_name(rows, &context->strings, open->name);
    struct mu_csv_stage_row row = {.real_ns = real_ns(context, mono),
                                   .step = open->step,
                                   .name = name->text == NULL ? "" : name->text,
                                   .name_length = name->length,
                                   .node = open->node,
                                   .parent = open->parent};
    return row;
}

static void write_open_row(struct mu_rows *rows, const struct mu_row_context *context,
                           struct mu_buffer_view *view, const struct mu_row_ref *ref,
                           struct mu_csv_writer *writer) {
    uint64_t depth = ref->position;
    int64_t mono = mu_timeline_mono_ns(context->timeline, ref->ticks);
    if (view->windows != NULL) {
        const struct mu_open_view *open = &view->open[depth];
        const struct mu_window_stage stage = {open->node, open->parent, open->step, (uint32_t)depth,
                                              open->name};
        mu_step_windows_start(view->windows, &context->strings, &stage, mono);
    }
    struct mu_csv_stage_row row = row_of_open(rows, context, &view->open[depth], mono);
    row.track = view->track;
    row.track_length = view->track_length;
    mu_csv_write_start(writer, &row);
    view->started[depth].node = view->open[depth].node;
    view->started[depth].mono_ns = mono;
}

void mu_rows_repeat_starts(struct mu_rows *rows, const struct mu_row_context *context,
                           const struct mu_buffer_view *view, struct mu_csv_writer *writer) {
    char track[MU_COPY_TRACK_MAX];
    size_t length = mu_copy_track(track, view->track, view->track_length);
    for (int depth = 0; depth < MU_OPEN_MAX; depth++) {
        const struct mu_open_view *open = &view->open[depth];
        const struct mu_started *started = &view->started[depth];
        if (open->node != 0 && open->node == started->node && started->mono_ns != MU_STAGE_ENDED) {
            struct mu_csv_stage_row row = row_of_open(rows, context, open, started->mono_ns);
            row.track = track;
            row.track_length = length;
            mu_csv_write_start(writer, &row);
        }
    }
}

static void write_event_row(struct mu_rows *rows, const struct mu_row_context *context,
                            struct mu_buffer_view *view, const struct mu_row_ref *ref,
                            struct mu_csv_writer *writer) {
    const struct mu_record *record = record_at(view, ref->position);
    struct mu_record_payload payload;
    const char *text =
        record->kind == MU_RECORD_EVENT ? read_payload(rows, view, ref->position, &payload) : NULL;
    if (text == NULL || mu_event_name(record->event) == NULL) {
        rows->bad_records++;
        return;
    }
    bool own_time = (record->flags & MU_RECORD_REAL_TIME) != 0;
    int64_t real = own_time ? mu_clock_add((int64_t)record->end, context->user_offset_ns)
                            : real_ns(context, mu_timeline_mono_ns(context->timeline, ref->ticks));
    struct mu_csv_event_row row = {.real_ns = real,
                                   .step = record->step,
                                   .type = record->event,
                                   .name = text,
                                   .name_length = payload.name_bytes,
                                   .has_duration = (record->flags & MU_RECORD_HAS_DURATION) != 0,
                                   .duration_ns = (int64_t)record->parent,
                                   .metadata = text + payload.name_bytes,
                                   .metadata_length = payload.metadata_bytes,
                                   .track = view->track,
                                   .track_length = view->track_length};
    mu_csv_write_event(writer, &row);
    if (context->once != NULL) {
        mu_once_rows_add(context->once, writer, &row);
    }
}

static void write_row(struct mu_rows *rows, const struct mu_row_context *context,
                      struct mu_buffer_view *view, const struct mu_row_ref *ref,
                      struct mu_csv_writer *writer) {
    switch (ref->what) {
    case ROW_OPEN:
        write_open_row(rows, context, view, ref, writer);
        break;
    case ROW_EVENT:
        write_event_row(rows, context, view, ref, writer);
        break;
    default:
        write_stage_row(rows, context, view, ref, writer);
        break;
    }
    view->changed = true;
}

/* Where the ordered rows of each view are in the scratch array. */
struct run {
    size_t next, end;
};

MU_MUST_CHECK static int order_view(struct mu_rows *rows, struct mu_buffer_view *view,
                                    struct run *run, size_t *used, struct mu_error *err) {
    size_t slots = (size_t)(view->to - view->from);
    if (!reserve((void **)&rows->positions, &rows->positions_allocated, slots,
                 sizeof(*rows->positions))) {
        return mu_error_no_memory(err, "positions of records");
    }
    size_t count = find_records(rows, view);
    drop_ended_from_open(rows, view, count);
    size_t total = 2 * count + count_open(view);
    if (!reserve((void **)&rows->refs, &rows->refs_allocated, *used + total + 1,
                 sizeof(*rows->refs))) {
        return mu_error_no_memory(err, "rows of a drain");
    }
    run->end = *used + total;
    run->next = *used + order_rows(rows, view, rows->refs + *used, total, count);
    *used += total;
    return MU_OK;
}

static void lose_rows(const struct mu_buffer_view *view, struct mu_lost_rows *lost) {
    for (int depth = 0; depth < MU_OPEN_MAX; depth++) {
        mu_lost_rows_add(lost, view->open[depth].step, is_due(view, depth));
    }
    for (uint64_t position = view->from; position < view->to;) {
        const struct mu_record *record = record_at(view, position);
        if (record->slots > 0) {
            bool starts = record->kind == MU_RECORD_STAGE && !is_started(view, record);
            mu_lost_rows_add(lost, record->step, starts ? 2 : 1);
        }
        position += record->slots == 0 ? 1 : record->slots;
    }
}

static int64_t step_of(const struct mu_buffer_view *view, const struct mu_row_ref *ref) {
    return ref->what == ROW_OPEN ? view->open[ref->position].step
                                 : record_at(view, ref->position)->step;
}

static void merge_runs(struct mu_rows *rows, const struct mu_row_context *context,
                       struct mu_buffer_view *views, struct run *runs, size_t count,
                       struct mu_csv_writer *writer) {
    for (;;) {
        size_t best = count;
        for (size_t i = 0; i < count; i++) {
            if (runs[i].next < runs[i].end &&
                (best == count ||
                 rows->refs[runs[i].next].ticks < rows->refs[runs[best].next].ticks)) {
                best = i;
            }
        }
        if (best == count) {
            return;
        }
        const struct mu_row_ref *ref = &rows->refs[runs[best].next++];
        write_row(rows, context, &views[best], ref, writer);
        if (writer->failed) {
            mu_lost_rows_add(&rows->lost, step_of(&views[best], ref), 1);
        }
    }
}

int mu_rows_write(struct mu_rows *rows, const struct mu_row_context *context,
                  struct mu_buffer_view *views, size_t view_count, struct mu_csv_writer *writer,
                  struct mu_error *err) {
    struct run runs[MU_CHUNKS_MAX] = {{0}};
    size_t used = 0;
    if (view_count > MU_CHUNKS_MAX) {
        return mu_error_set(err, MU_ERR_LIMIT, "%zu thread buffers at once", view_count);
    }
    for (size_t i = 0; i < view_count; i++) {
        int code = order_view(rows, &views[i], &runs[i], &used, err);
        if (code != MU_OK) {
            for (i = 0; i < view_count; i++) {
                lose_rows(&views[i], &rows->lost);
            }
            return code;
        }
    }
    for (size_t i = 0; i < view_count; i++) {
        write_held(rows, context, &views[i], writer);
    }
    merge_runs(rows, context, views, runs, view_count, writer);
    if (writer->failed) {
        return mu_error_no_memory(err, "text of a drain");
    }
    return MU_OK;
}

bool mu_open_view_load(struct mu_open_view *open, const struct mu_open_stage *stage) {
    uint64_t node = atomic_load_explicit(&stage->node, memory_order_acquire); /* before the rest */
    struct mu_open_view seen = {
        .node = node,
        .parent = atomic_load_explicit(&stage->parent, memory_order_acquire),
        .step = atomic_load_explicit(&stage->step, memory_order_acquire),
        .start = atomic_load_explicit(&stage->start, memory_order_acquire),
        .name = atomic_load_explicit(&stage->name, memory_order_acquire),
    };
    if (node == 0 || atomic_load_explicit(&stage->node, memory_order_relaxed) != node) {
        return false;
    }
    *open = seen;
    return true;
}

static void take_as_open(struct mu_buffer_view *view, const struct mu_record *record) {
    struct mu_open_view *open = &view->open[record->depth];
    open->node = record->node;
    open->parent = record->parent;
    open->step = record->step;
    open->start = record->start;
    open->name = record->name;
}

/* The time of the last row that the view will write. */
static uint64_t last_ticks(const struct mu_buffer_view *view) {
    uint64_t last = 0;
    for (uint64_t position = view->from; position < view->to;) {
        const struct mu_record *record = record_at(view, position);
        if (record->slots == 0) {
            break;
        }
        last = record->kind == MU_RECORD_STAGE ? record->end : record->start;
        position += record->slots;
    }
    return last;
}

void mu_buffer_view_cut_open(struct mu_buffer_view *view, uint64_t end) {
    if (view->to == end) {
        return;
    }
    uint64_t last = last_ticks(view);
    for (int depth = 0; depth < MU_OPEN_MAX; depth++) {
        if (view->open[depth].start > last && view->open[depth].node != view->started[depth].node) {
            view->open[depth].node = 0;
        }
    }
    for (uint64_t position = view->to; position < end;) {
        const struct mu_record *record = record_at(view, position);
        if (record->slots == 0) {
            break;
        }
        if (record->kind == MU_RECORD_STAGE && record->depth < MU_OPEN_MAX &&
            (record->start <= last || is_started(view, record))) {
            take_as_open(view, record);
        }
        position += record->slots;
    }
}

void mu_rows_write_drops(struct mu_csv_writer *writer, int64_t real_ns, int32_t pid, uint64_t count,
                         const char *reason) {
    char metadata[64];
    snprintf(metadata, sizeof(metadata), "count=%llu,reason=%s", (unsigned long long)count, reason);
    mu_csv_write_own(writer, real_ns, pid, "my_utils.dropped", metadata);
}
