/* Pairs the START and END rows of stages, and decides on which track each is drawn.
 *
 * The stages of a thread nest, so most ENDs match the stack of its track. A stage that ends while
 * others above it are open stays on the stack, marked as ended, until those have ended. One of them
 * that ends later overlaps it, and moves to a separate track.
 *
 * A node id should be open once. Where it is open several times, an END takes the latest START of
 * its own track, and the latest of all tracks only when its own has none; a START that finds ENDs
 * waiting for it chooses among them in the same way. So each END ends one stage, and each stage
 * ends once. Files may be damaged or made to do harm, so no search goes on forever: of the stages
 * and ENDs that share a node id, the SEARCHED newest are looked at.
 */
#include "trace/convert_internal.h"

#include "base/digits.h"

#include <stdio.h>
#include <stdlib.h>

#define LONGEST_NS (INT64_MAX / 4)      /* with it no sum of times overflows */
#define KEY_OF_NAME 0x8000000000000000u /* node ids stay below 2^53 */

enum { SEARCHED = 256, TOPS_SEARCHED = 1024 };

struct mu_pending { /* an END that waits for its START */
    struct mu_pending *next_same_key;
    struct mu_event_row row; /* its texts are in `text` */
    struct mu_track *track;
    char *text; /* owned */
};

int mu_row_is_wanted(const struct mu_converter *converter, const struct mu_trace_name *name,
                     int64_t step) {
    const struct mu_convert_options *options = &converter->options;
    int in_steps = !options->has_steps || (step >= options->step_begin && step < options->step_end);
    return in_steps && name->wanted;
}

/* --- open stages --- */

static struct mu_open *new_open(struct mu_converter *converter) {
    struct mu_open *open = converter->free_opens;
    if (open != NULL) {
        converter->free_opens = open->below;
    } else {
        open = malloc(sizeof(*open));
        if (open == NULL) {
            mu_error_no_memory(&converter->error, "open stages");
            return NULL;
        }
    }
    memset(open, 0, sizeof(*open));
    open->older = converter->newest;
    if (converter->newest != NULL) {
        converter->newest->newer = open;
    } else {
        converter->oldest = open;
    }
    converter->newest = open;
    return open;
}

static void release_open(struct mu_converter *converter, struct mu_open *open) {
    struct mu_open **from_newer = open->newer != NULL ? &open->newer->older : &converter->newest;
    struct mu_open **from_older = open->older != NULL ? &open->older->newer : &converter->oldest;
    *from_newer = open->older;
    *from_older = open->newer;
    mu_trace_names_release(open->name);
    free(open->text); /* NOLINT(clang-analyzer-unix.Malloc): the oldest has no older one */
    open->below = converter->free_opens;
    converter->free_opens = open;
}

static void enter_map(struct mu_converter *converter, struct mu_open *open) {
    struct mu_open *next = mu_id_map_find(&converter->open_by_key, open->key);
    if (mu_id_map_put(&converter->open_by_key, open->key, open, &converter->error) != MU_OK) {
        return;
    }
    open->in_map = 1;
    open->previous_same_key = NULL;
    open->next_same_key = next;
    if (next != NULL) {
        next->previous_same_key = open;
    }
}

/* Others of the same key stay, those that entered before it and those that entered after. */
static void leave_map(struct mu_converter *converter, struct mu_open *open) {
    struct mu_open *next = open->next_same_key, *previous = open->previous_same_key;
    open->in_map = 0;
    if (next != NULL) {
        next->previous_same_key = previous;
    }
    if (previous != NULL) {
        previous->next_same_key = next;
    } else if (next != NULL) {
        mu_id_map_replace(&converter->open_by_key, open->key, next);
    } else {
        mu_id_map_remove(&converter->open_by_key, open->key);
    }
}

/* The text is kept where something in it is needed at the end: the user's part, or all of it. */
static void keep_text(struct mu_converter *converter, struct mu_open *open,
                      const struct mu_event_row *row) {
    int whole = converter->writer.ops->begins_at_start;
    struct mu_span wanted = whole ? row->metadata_text : row->metadata.user;
    if (wanted.length == 0) {
        return;
    }
    open->text = malloc(wanted.length);
    if (open->text == NULL) {
        mu_error_no_memory(&converter->error, "metadata of an open stage");
        return;
    }
    memcpy(open->text, wanted.text, wanted.length);
    open->text_length = wanted.length;
    if (!whole) {
        open->user = (struct mu_span){open->text, wanted.length};
    }
}

static struct mu_open *open_from_row(struct mu_converter *converter, struct mu_track *track,
                                     const struct mu_event_row *row) {
    struct mu_open *open = new_open(converter);
    if (open == NULL) {
        mu_trace_names_release(row->name);
        return NULL;
    }
    open->begin_ns = row->at_ns;
    open->step = row->step;
    open->node = row->metadata.node;
    open->parent = row->metadata.parent;
    open->line = row->line;
    open->row = converter->counts.rows;
    open->name = row->name;
    open->track = track;
    keep_text(converter, open, row);
    return open;
}

/* --- events --- */

/* Field by field: the places of further arguments need no zeros. */
static void fill_event(struct mu_trace_event *event, const struct mu_open *open) {
    event->name = open->name;
    event->begin_ns = open->begin_ns;
    event->end_ns = open->end_ns;
    event->step = open->step;
    event->node = open->node;
    event->parent = open->parent;
    event->has_step = 1;
    event->field_count = 0;
    event->user[0] = (struct mu_span){NULL, 0};
    event->user[1] = open->user;
    event->machine = (struct mu_span){NULL, 0};
    event->metadata = (struct mu_span){open->text, open->text_length};
    event->duration_ns = 0;
    event->named_end = 0;
}

static void add_ms_field(struct mu_trace_event *event, const char *key, int64_t ns) {
    event->fields[event->field_count++] =
        (struct mu_field){.key = key, .unit = MU_FIELD_MS, .ns = ns};
}

static void add_end_row(struct mu_trace_event *event, const struct mu_event_row *row) {
    const struct mu_metadata *metadata = &row->metadata;
    event->user[0] = metadata->user;
    event->metadata = row->metadata_text;
    event->machine = row->machine;
    if (metadata->closed.length > 0) {
        event->fields[event->field_count++] =
            (struct mu_field){.key = "closed", .unit = MU_FIELD_TEXT, .text = metadata->closed};
    }
    if (metadata->has & MU_HAS_CUDA_MS) {
        add_ms_field(event, "cuda_ms", metadata->cuda_ns);
    }
}

static int is_usable(int64_t begin_ns, int64_t duration_ns) {
    int64_t end_ns;
    return !__builtin_add_overflow(begin_ns, duration_ns, &end_ns) && end_ns >= begin_ns &&
           mu_csv_usable_time(begin_ns) && mu_csv_usable_time(end_ns);
}

/* A stream works in order: where two stages cross by no more than the errors of their places, the
 * later row is moved. */
static struct mu_interval on_stream(const struct mu_track *track, int64_t called_ns,
                                    const struct mu_metadata *metadata) {
    struct mu_interval interval = {.begin = metadata->cuda_begin_ns,
                                   .end = metadata->cuda_begin_ns + metadata->cuda_ns,
                                   .called = called_ns};
    if (metadata->has & MU_HAS_CUDA_ERR && metadata->cuda_error_ns >= 0 &&
        metadata->cuda_error_ns <= MU_NEST_ERROR_MAX) {
        interval.error = metadata->cuda_error_ns;
    }
    return mu_nest_fit(track->nest, interval);
}

/* The same stage as the GPU saw it. */
static void draw_on_stream(struct mu_converter *converter, struct mu_process *process,
                           const struct mu_trace_event *stage, const struct mu_metadata *metadata) {
    enum { NEEDED = MU_HAS_CUDA_MS | MU_HAS_CUDA_TS };
    if ((metadata->has & NEEDED) != NEEDED ||
        !is_usable(metadata->cuda_begin_ns, metadata->cuda_ns)) {
        return;
    }
    int64_t stream = metadata->stream < 0 ? 0 : metadata->stream;
    char name[64];
    snprintf(name, sizeof(name), "CUDA stream %lld", (long long)stream);
    struct mu_track *track = mu_track_of_kind(converter, process, MU_TRACK_CUDA, stream, name);
    if (track == NULL) {
        return;
    }
    struct mu_interval interval = on_stream(track, stage->begin_ns, metadata);
    struct mu_trace_event event = *stage;
    event.begin_ns = interval.begin;
    event.end_ns = interval.end;
    event.user[0] = event.user[1] = (struct mu_span){NULL, 0};
    event.field_count = 0;
    if (metadata->has & MU_HAS_CUDA_ERR) {
        int64_t error_ns = metadata->cuda_error_ns;
        add_ms_field(&event, "cuda_err_ms", interval.error > error_ns ? interval.error : error_ns);
    }
    track = mu_track_with_room(converter, track, interval);
    if (track != NULL && !converter->writer.ops->begins_at_start) {
        converter->writer.ops->slice(&converter->writer, track, &event);
        converter->counts.slices++;
    }
}

static int cross(const struct mu_open *a, const struct mu_open *b) {
    int a_first = a->begin_ns < b->begin_ns && b->begin_ns < a->end_ns && a->end_ns < b->end_ns;
    int b_first = b->begin_ns < a->begin_ns && a->begin_ns < b->end_ns && b->end_ns < a->end_ns;
    return a_first || b_first;
}

/* 1 when the stage cannot nest with one that ended on the same stack, or when that is more than can
 * be searched. */
static int crosses_an_ended(const struct mu_open *open) {
    if (open->track->kept_count == 0 || !open->on_stack || open->begun) {
        return 0;
    }
    int left = SEARCHED;
    for (const struct mu_open *other = open->track->top; other != NULL; other = other->below) {
        if (left-- == 0) {
            return 1;
        }
        if (other != open && other->ended && !other->moved && cross(open, other)) {
            return 1;
        }
    }
    return 0;
}

static struct mu_track *place(struct mu_converter *converter, struct mu_open *open) {
    if (open->track->nest == NULL && !open->is_early && !crosses_an_ended(open)) {
        return open->track;
    }
    open->moved = 1;
    return mu_track_with_room(converter, open->track,
                              (struct mu_interval){.begin = open->begin_ns, .end = open->end_ns});
}

static void draw(struct mu_converter *converter, struct mu_open *open,
                 const struct mu_event_row *row) {
    const struct mu_trace_ops *ops = converter->writer.ops;
    if (!mu_row_is_wanted(converter, open->name, open->step)) {
        return;
    }
    struct mu_trace_event event;
    fill_event(&event, open);
    add_end_row(&event, row);
    event.duration_ns = open->end_ns - open->begin_ns;
    event.named_end = open->end_ns < open->track->last_ns;
    if (open->begun) {
        ops->slice_end(&converter->writer, open->track, &event);
    } else {
        struct mu_track *track = place(converter, open);
        if (track == NULL) {
            return;
        }
        ops->slice(&converter->writer, track, &event);
    }
    converter->counts.slices++;
    if (row->metadata.has != 0) {
        draw_on_stream(converter, open->track->process, &event, &row->metadata);
    }
}

/* Removes the ended stages at the top, because no open stage is above them. */
static void drop_ended(struct mu_converter *converter, struct mu_track *track) {
    while (track->top != NULL && track->top->ended) {
        struct mu_open *open = track->top;
        track->top = open->below;
        track->kept_count--;
        release_open(converter, open);
    }
}

/* 0 when the row has no usable duration_ms. */
static int duration_of(const struct mu_event_row *row, int64_t *duration_ns) {
    const struct mu_span *text = &row->duration;
    return mu_digits_parse(text->text, text->length, 6, duration_ns) && *duration_ns >= 0 &&
           *duration_ns <= LONGEST_NS;
}

/* The clock was set back within the stage. Its duration_ms was measured by a clock that nobody
 * sets, but what the stage covers then need not nest with the rest of its thread. */
static void end_early(struct mu_converter *converter, struct mu_open *open,
                      const struct mu_event_row *row) {
    int64_t duration_ns = 0;
    int has_duration = duration_of(row, &duration_ns) && is_usable(open->begin_ns, duration_ns);
    mu_notes_add(&converter->notes, MU_NOTE_END_EARLY, converter->file, row->line,
                 "END of '%.*s' is %lld ns before its START in time; drawn %s",
                 (int)open->name->clean_length, open->name->clean,
                 (long long)(open->begin_ns - row->at_ns),
                 has_duration ? "from its START, by its duration_ms" : "without length");
    duration_ns = has_duration ? duration_ns : 0;
    open->end_ns = open->begin_ns + duration_ns;
    open->is_early = duration_ns > 0;
}

static void end_open(struct mu_converter *converter, struct mu_open *open,
                     const struct mu_event_row *row) {
    struct mu_track *track = open->track;
    open->end_ns = row->at_ns;
    if (row->at_ns < open->begin_ns) {
        end_early(converter, open, row);
    }
    if (open->in_map) {
        leave_map(converter, open);
    }
    draw(converter, open, row);
    if (!open->on_stack) {
        release_open(converter, open);
    } else if (track->top == open) {
        track->top = open->below;
        release_open(converter, open);
        drop_ended(converter, track);
    } else {
        open->ended = 1;
        track->kept_count++;
    }
}

/* --- ENDs that came before their START --- */

static char *copy_span(char *out, struct mu_span *span) {
    if (span->length > 0) {
        memcpy(out, span->text, span->length);
    }
    span->text = out;
    return out + span->length;
}

static void draw_alone(struct mu_converter *converter, struct mu_track *track,
                       const struct mu_event_row *row) {
    int64_t duration_ns;
    if (!duration_of(row, &duration_ns) || !is_usable(row->at_ns - duration_ns, duration_ns)) {
        mu_notes_add(&converter->notes, MU_NOTE_END_DROPPED, converter->file, row->line,
                     "END of '%.*s' has no START and no duration_ms; left out",
                     (int)row->name->clean_length, row->name->clean);
        return;
    }
    mu_notes_add(&converter->notes, MU_NOTE_END_ALONE, converter->file, row->line,
                 "END of '%.*s' has no START; drawn by its duration_ms",
                 (int)row->name->clean_length, row->name->clean);
    struct mu_open open = {
        .begin_ns = row->at_ns - duration_ns,
        .end_ns = row->at_ns,
        .step = row->step,
        .node = row->metadata.node,
        .parent = row->metadata.parent,
        .name = row->name,
        .track = track,
    };
    draw(converter, &open, row);
}

static void free_pending(struct mu_pending *pending) {
    mu_trace_names_release(pending->row.name);
    free(pending->text);
    free(pending);
}

static void give_up_pending(struct mu_converter *converter) {
    struct mu_id_map *map = &converter->pending_by_key;
    for (size_t i = 0; i <= map->mask; i++) {
        struct mu_pending *pending = map->slots[i].key != 0 ? map->slots[i].value : NULL;
        while (pending != NULL) {
            struct mu_pending *next = pending->next_same_key;
            draw_alone(converter, pending->track, &pending->row);
            free_pending(pending);
            pending = next;
        }
        map->slots[i].key = 0;
    }
    map->count = 0;
}

static void keep_pending(struct mu_converter *converter, struct mu_track *track, uint64_t key,
                         const struct mu_event_row *row) {
    if (converter->pending_by_key.count >= MU_PENDING_MAX) {
        give_up_pending(converter);
    }
    struct mu_pending *pending = calloc(1, sizeof(*pending));
    size_t size = row->machine.length + row->duration.length + row->metadata_text.length + 1;
    char *text = malloc(size);
    if (pending == NULL || text == NULL) {
        mu_error_no_memory(&converter->error, "an END without START");
        mu_trace_names_release(row->name);
        free(pending);
        free(text);
        return;
    }
    pending->row = *row;
    pending->text = text;
    pending->track = track;
    text = copy_span(text, &pending->row.machine);
    text = copy_span(text, &pending->row.duration);
    copy_span(text, &pending->row.metadata_text);
    mu_metadata_parse(pending->row.metadata_text, &pending->row.metadata);
    pending->next_same_key = mu_id_map_find(&converter->pending_by_key, key);
    if (mu_id_map_put(&converter->pending_by_key, key, pending, &converter->error) != MU_OK) {
        free_pending(pending);
    }
}

static struct mu_pending *take_pending(struct mu_converter *converter, uint64_t key,
                                       const struct mu_track *track) {
    if (converter->pending_by_key.count == 0) {
        return NULL;
    }
    struct mu_pending *latest = mu_id_map_find(&converter->pending_by_key, key);
    struct mu_pending *pending = latest, *before = NULL;
    int left = SEARCHED;
    while (pending != NULL && pending->track != track) {
        before = pending;
        pending = left-- > 0 ? pending->next_same_key : NULL;
    }
    if (pending != NULL && before != NULL) {
        before->next_same_key = pending->next_same_key;
        return pending;
    }
    if (latest != NULL && latest->next_same_key != NULL) {
        mu_id_map_replace(&converter->pending_by_key, key, latest->next_same_key);
    } else if (latest != NULL) {
        mu_id_map_remove(&converter->pending_by_key, key);
    }
    return latest;
}

/* 1 when the END of this stage was waiting. */
static int meet_pending(struct mu_converter *converter, struct mu_open *open) {
    struct mu_pending *pending = take_pending(converter, open->key, open->track);
    if (pending == NULL) {
        return 0;
    }
    end_open(converter, open, &pending->row);
    free_pending(pending);
    return 1;
}

/* --- rows --- */

static uint64_t key_of_name(const struct mu_track *track, const struct mu_trace_name *name,
                            int64_t id) {
    uint64_t key = mu_hash_u64(name->hash ^ mu_hash_u64(track->uuid ^ (uint64_t)(id + 1) << 32));
    return key | KEY_OF_NAME;
}

static void note_duplicate(struct mu_converter *converter, const struct mu_event_row *row) {
    mu_notes_add(&converter->notes, MU_NOTE_DUPLICATE_NODE, converter->file, row->line,
                 "node_id %lld is open already; an END goes to the latest START of its thread",
                 (long long)row->metadata.node);
}

static void begin_now(struct mu_converter *converter, struct mu_open *open) {
    if (!mu_row_is_wanted(converter, open->name, open->step)) {
        return;
    }
    struct mu_trace_event event;
    fill_event(&event, open);
    open->begun = 1;
    converter->writer.ops->slice_begin(&converter->writer, open->track, &event);
}

static void push(struct mu_converter *converter, struct mu_track *track, struct mu_open *open) {
    struct mu_open *top = track->top;
    if (top != NULL && converter->writer.ops->eager_ties && !top->begun &&
        top->begin_ns == open->begin_ns) {
        begin_now(converter, top);
    }
    if (top != NULL && !top->in_map && !top->ended) {
        enter_map(converter, top);
    }
    open->below = top;
    open->on_stack = 1;
    track->top = open;
    if (converter->tops_in_map) {
        enter_map(converter, open);
    }
}

void mu_stage_start(struct mu_converter *converter, struct mu_track *track,
                    const struct mu_event_row *row) {
    struct mu_open *open = open_from_row(converter, track, row);
    if (open == NULL) {
        return;
    }
    int has_node = open->node > 0;
    open->key = has_node ? (uint64_t)open->node : key_of_name(track, open->name, -1);
    if (has_node && (mu_id_map_find(&converter->open_by_key, open->key) != NULL ||
                     (track->top != NULL && track->top->key == open->key))) {
        note_duplicate(converter, row);
    }
    int in_order = row->at_ns >= track->last_ns;
    if (in_order) {
        track->last_ns = row->at_ns;
    }
    if (converter->writer.ops->begins_at_start) {
        struct mu_trace_event event;
        fill_event(&event, open);
        event.machine = row->machine;
        open->begun = mu_row_is_wanted(converter, open->name, open->step);
        if (open->begun) {
            converter->writer.ops->slice_begin(&converter->writer, track, &event);
        }
    }
    if (has_node && meet_pending(converter, open)) {
        return;
    }
    if (in_order) {
        push(converter, track, open);
    }
    if (!open->in_map && (!in_order || !has_node)) {
        enter_map(converter, open);
    }
}

static int is_open_on_top(const struct mu_track *track, uint64_t key) {
    return track->top != NULL && track->top->key == key && !track->top->ended;
}

static struct mu_open *later_of(struct mu_open *a, struct mu_open *b) {
    return a == NULL || (b != NULL && b->row > a->row) ? b : a;
}

/* In the map, which holds stages that have others above them. Those of one track entered it in the
 * order of their STARTs. */
static struct mu_open *latest_below(struct mu_converter *converter, const struct mu_track *track,
                                    uint64_t key) {
    struct mu_open *open = mu_id_map_find(&converter->open_by_key, key);
    int left = SEARCHED;
    while (open != NULL && open->track != track) {
        open = left-- > 0 ? open->next_same_key : NULL;
    }
    return open;
}

int mu_stage_is_repeated(struct mu_converter *converter, const struct mu_track *track,
                         const struct mu_event_row *row) {
    uint64_t key = (uint64_t)row->metadata.node;
    return (row->metadata.has & MU_HAS_REPEATED) != 0 &&
           (is_open_on_top(track, key) || latest_below(converter, track, key) != NULL);
}

static void enter_tops(struct mu_converter *converter) {
    for (struct mu_process *process = converter->processes; process; process = process->next) {
        for (struct mu_track *track = process->tracks; track != NULL; track = track->next) {
            if (track->top != NULL && !track->top->in_map && !track->top->ended) {
                enter_map(converter, track->top);
            }
        }
    }
    converter->tops_in_map = 1;
}

/* The latest stage of that key on top of any track. Such a stage need not be in the map, unless
 * there are many tracks. */
static struct mu_open *latest_on_tops(struct mu_converter *converter, uint64_t key) {
    struct mu_open *latest = NULL;
    int left = TOPS_SEARCHED;
    for (struct mu_process *process = converter->processes; process; process = process->next) {
        for (struct mu_track *track = process->tracks; track != NULL; track = track->next) {
            if (left-- == 0) {
                enter_tops(converter);
                return NULL;
            }
            if (is_open_on_top(track, key)) {
                latest = later_of(latest, track->top);
            }
        }
    }
    return latest;
}

static struct mu_open *latest_of_all(struct mu_converter *converter, uint64_t key) {
    struct mu_open *latest = converter->tops_in_map ? NULL : latest_on_tops(converter, key);
    struct mu_open *open = mu_id_map_find(&converter->open_by_key, key);
    for (int left = SEARCHED; open != NULL && left > 0; left--, open = open->next_same_key) {
        latest = later_of(latest, open);
    }
    return latest;
}

/* The track differs from the stage's own when another thread recorded the END. */
static struct mu_open *find_open(struct mu_converter *converter, struct mu_track *track,
                                 uint64_t key) {
    if (is_open_on_top(track, key)) {
        return track->top;
    }
    struct mu_open *own = latest_below(converter, track, key);
    return own != NULL ? own : latest_of_all(converter, key);
}

void mu_stage_end(struct mu_converter *converter, struct mu_track *track,
                  const struct mu_event_row *row) {
    int has_node = row->metadata.node > 0;
    uint64_t key = has_node ? (uint64_t)row->metadata.node : key_of_name(track, row->name, -1);
    struct mu_open *open = find_open(converter, track, key);
    if (open != NULL) {
        end_open(converter, open, row);
        mu_trace_names_release(row->name);
    } else if (has_node) {
        keep_pending(converter, track, key, row);
    } else {
        draw_alone(converter, track, row);
        mu_trace_names_release(row->name);
    }
    if (row->at_ns > track->last_ns) {
        track->last_ns = row->at_ns;
    }
}

void mu_async_start(struct mu_converter *converter, struct mu_track *track,
                    const struct mu_event_row *row) {
    struct mu_open *open = open_from_row(converter, track, row);
    if (open == NULL) {
        return;
    }
    open->key = key_of_name(track, open->name, row->metadata.id);
    if (!meet_pending(converter, open)) {
        enter_map(converter, open);
    }
}

void mu_async_end(struct mu_converter *converter, struct mu_track *track,
                  const struct mu_event_row *row) {
    uint64_t key = key_of_name(track, row->name, row->metadata.id);
    struct mu_open *open = mu_id_map_find(&converter->open_by_key, key);
    if (open == NULL) {
        keep_pending(converter, track, key, row);
        return;
    }
    end_open(converter, open, row);
    mu_trace_names_release(row->name);
}

/* --- steps --- */

/* `text` has room for MU_DIGITS_MAX bytes after the word. */
static void make_step_name(struct mu_trace_name *name, char *text, int64_t step) {
    memcpy(text, "step ", 5);
    ptrdiff_t length = mu_digits_put_i64(text + 5, step) - text;
    *name = (struct mu_trace_name){
        .number = MU_NAME_UNNUMBERED, .wanted = 1, .clean = text, .json = text};
    name->raw_length = name->clean_length = name->json_length = (uint32_t)length;
}

void mu_step_marker_close(struct mu_converter *converter, struct mu_process *process,
                          int64_t end_ns) {
    if (!process->has_step) {
        return;
    }
    process->has_step = 0;
    char text[5 + MU_DIGITS_MAX];
    struct mu_trace_name name;
    make_step_name(&name, text, process->step);
    struct mu_track *track = mu_track_of_kind(converter, process, MU_TRACK_STEPS, 0, "steps");
    if (track == NULL || !mu_row_is_wanted(converter, &name, process->step)) {
        return;
    }
    struct mu_trace_event event = {.name = &name, .node = -1, .parent = -1};
    event.begin_ns = process->step_begin_ns;
    event.end_ns = end_ns > event.begin_ns ? end_ns : event.begin_ns;
    converter->writer.ops->slice(&converter->writer, track, &event);
}

/* Steps follow the START rows of the first thread, because END rows may come later. A negative one
   says that a row belongs to no step, and has no marker. */
void mu_step_marker(struct mu_converter *converter, struct mu_track *track,
                    const struct mu_event_row *row) {
    struct mu_process *process = track->process;
    if (converter->options.is_foreign) {
        return;
    }
    if (process->main_track == NULL) {
        process->main_track = track;
    }
    if (track != process->main_track || (process->has_step && process->step == row->step)) {
        return;
    }
    if (process->has_step && row->step >= 0 && row->step < process->step) {
        mu_notes_add(&converter->notes, MU_NOTE_STEP_BACK, converter->file, row->line,
                     "step goes back from %lld to %lld", (long long)process->step,
                     (long long)row->step);
    }
    int64_t end_ns = process->last_ns < row->at_ns ? process->last_ns : row->at_ns;
    mu_step_marker_close(converter, process, end_ns);
    process->has_step = row->step >= 0;
    process->step = row->step;
    process->step_begin_ns = row->at_ns;
}

/* --- the end --- */

static void draw_open(struct mu_converter *converter, struct mu_open *open) {
    if (open->ended || !mu_row_is_wanted(converter, open->name, open->step)) {
        return;
    }
    converter->counts.open++;
    mu_notes_add(&converter->notes, MU_NOTE_OPEN, converter->file, open->line,
                 "'%.*s' has no END; shown as open", (int)open->name->clean_length,
                 open->name->clean);
    struct mu_trace_event event;
    fill_event(&event, open);
    if (!open->begun) {
        struct mu_track *track = open->track;
        if (track->kind == MU_TRACK_ASYNC) {
            track = mu_track_with_room(
                converter, track, (struct mu_interval){.begin = open->begin_ns, .end = INT64_MAX});
        }
        if (track != NULL) {
            converter->writer.ops->slice_begin(&converter->writer, track, &event);
        }
    }
}

void mu_stages_finish(struct mu_converter *converter) {
    give_up_pending(converter);
    for (struct mu_open *open = converter->oldest; open != NULL; open = open->newer) {
        draw_open(converter, open);
    }
    for (struct mu_process *process = converter->processes; process; process = process->next) {
        mu_step_marker_close(converter, process, process->last_ns);
    }
}

void mu_stages_reset(struct mu_converter *converter) {
    while (converter->oldest != NULL) {
        release_open(converter, converter->oldest);
    }
    while (converter->free_opens != NULL) {
        struct mu_open *open = converter->free_opens;
        converter->free_opens = open->below;
        free(open);
    }
    for (size_t i = 0; converter->pending_by_key.slots && i <= converter->pending_by_key.mask;
         i++) {
        struct mu_id_slot *slot = &converter->pending_by_key.slots[i];
        struct mu_pending *pending = slot->key != 0 ? slot->value : NULL;
        while (pending != NULL) {
            struct mu_pending *next = pending->next_same_key;
            free_pending(pending);
            pending = next;
        }
    }
}
