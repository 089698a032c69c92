/* Finds the process and the track of a row, and names them. */
#include "trace/convert_internal.h"

#include "base/digits.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>

enum { PIDS_PER_RANK = 1000, PIDS_PER_SLOT = 100, PID_OVERFLOW = 1 << 30 };
enum { FIRST_MADE_TID = 10000000 }; /* above every tid that Linux hands out */
enum { ATTEMPTS_SEARCHED = 1024 };  /* the newest of a file */
enum { FIRST_FIT = 32 };            /* tracks whose gaps are searched for room */

static void out_of_memory(struct mu_converter *converter) {
    mu_error_no_memory(&converter->error, "tracks of a trace");
}

static int64_t new_pid(struct mu_converter *converter) {
    const struct mu_convert_options *options = &converter->options;
    int number = options->slot * PIDS_PER_SLOT + ++converter->process_count;
    if (converter->process_count >= PIDS_PER_SLOT || number >= PIDS_PER_RANK || options->rank < 0 ||
        options->rank > PID_OVERFLOW / PIDS_PER_RANK - 1) {
        return PID_OVERFLOW + (int64_t)atomic_fetch_add(&converter->job->ids.next_process, 1);
    }
    return options->rank * PIDS_PER_RANK + number;
}

static uint32_t new_uuid(struct mu_converter *converter) {
    return atomic_fetch_add_explicit(&converter->job->ids.next_track, 1, memory_order_relaxed);
}

/* Cut on a character, and ended by NUL. */
static void store_text(char *out, size_t size, struct mu_span text) {
    char clean[1024];
    size_t bad = 0, most = sizeof(clean) / MU_UTF8_CLEAN_FACTOR;
    size_t raw_length = text.length < most ? text.length : most;
    size_t length = mu_utf8_clean(clean, text.text, raw_length, &bad);
    length = mu_utf8_cut(clean, length, size - 1);
    memcpy(out, clean, length);
    out[length] = 0;
}

static void store_decoded(char *out, size_t size, struct mu_span text) {
    char raw[512];
    size_t length = text.length < sizeof(raw) ? text.length : sizeof(raw);
    length = mu_utf8_percent_decode(raw, text.text, length);
    store_text(out, size, (struct mu_span){raw, length});
}

static struct mu_process *add_process(struct mu_converter *converter) {
    struct mu_process *process = calloc(1, sizeof(*process));
    if (process == NULL) {
        out_of_memory(converter);
        return NULL;
    }
    process->attempt = process->real_pid = process->node_high = -1;
    process->rank = converter->options.rank;
    process->pid = new_pid(converter);
    process->uuid = new_uuid(converter);
    process->is_one_of_many = converter->options.is_one_of_many || converter->processes != NULL;
    process->next_tid = FIRST_MADE_TID;
    process->next = converter->processes;
    converter->processes = converter->process = process;
    return process;
}

static void name_process(const struct mu_converter *converter, struct mu_process *process,
                         struct mu_span host) {
    char text[200];
    if (converter->options.is_foreign) {
        store_decoded(process->name, sizeof(text), host);
        return;
    }
    store_text(text, sizeof(text), host);
    snprintf(process->name, sizeof(process->name), "%s rank %lld", text, (long long)process->rank);
    if (process->attempt > 0) {
        size_t length = strlen(process->name);
        snprintf(process->name + length, sizeof(process->name) - length, " attempt %lld",
                 (long long)process->attempt);
    }
}

static struct mu_process *process_of_attempt(const struct mu_converter *converter, int64_t attempt,
                                             int64_t real_pid) {
    struct mu_process *process = converter->processes;
    for (int left = ATTEMPTS_SEARCHED; process != NULL && left > 0; left--) {
        if (process->attempt == attempt && (real_pid < 0 || process->real_pid == real_pid)) {
            return process;
        }
        process = process->next;
    }
    return NULL;
}

static struct mu_process *process_of_node(const struct mu_converter *converter, int64_t high) {
    struct mu_process *process = converter->processes;
    for (int left = ATTEMPTS_SEARCHED; process != NULL && left > 0; left--) {
        if (process->node_high == high) {
            return process;
        }
        process = process->next;
    }
    return NULL;
}

/* The process whose row came last, unless the node id belongs to another one: what a dead process
 * left may be written after rows of the next. The high bits of a process's ids are those of its
 * first rows. Where they are 0, the process may have taken the id before it had files, and gets
 * other bits then. */
struct mu_process *mu_process_of(struct mu_converter *converter, int64_t node,
                                 struct mu_span machine) {
    struct mu_process *process = converter->process;
    if (process == NULL) {
        process = add_process(converter);
        if (process != NULL) {
            name_process(converter, process, machine);
        }
        return process;
    }
    int64_t high = node >> MU_NODE_SHIFT;
    if (node < 0 || process->node_high == high) {
        return process;
    }
    struct mu_process *other = process_of_node(converter, high);
    if (other != NULL) {
        return high == 0 && process->node_high < 0 ? process : other;
    }
    if (process->node_high <= 0) {
        process->node_high = high;
    }
    return process;
}

/* A new attempt, or another process: the rows that follow get their own tracks. Those after the row
 * of a process that is known go on with its tracks. */
void mu_process_row(struct mu_converter *converter, const struct mu_event_row *row) {
    struct mu_span rest = row->metadata.user, key, value, host = row->machine, label = {"", 0};
    int64_t attempt = -1, real_pid = -1;
    while (mu_metadata_next(&rest, &key, &value)) {
        if (mu_span_equals(key, "pid")) {
            real_pid = mu_digits_small(value.text, value.length);
        } else if (mu_span_equals(key, "attempt")) {
            attempt = mu_digits_small(value.text, value.length);
        } else if (mu_span_equals(key, "host") && value.length > 0) {
            host = value;
        } else if (mu_span_equals(key, "label")) {
            label = value;
        }
    }
    struct mu_process *known = process_of_attempt(converter, attempt, real_pid);
    if (known != NULL) { /* each rotated part repeats the row */
        converter->process = known;
        return;
    }
    struct mu_process *process = converter->process;
    if (process == NULL || process->announced) {
        process = add_process(converter);
    }
    if (process != NULL) {
        process->attempt = attempt;
        process->real_pid = real_pid;
        store_decoded(process->label, sizeof(process->label), label);
        name_process(converter, process, host);
        converter->last_track = NULL;
    }
}

static uint64_t track_key(const struct mu_process *process, enum mu_track_kind kind, int64_t key,
                          struct mu_span tag) {
    uint64_t hash = mu_hash_u64((uint64_t)key ^ mu_hash_u64((uint64_t)process->pid * 8 + kind));
    return (hash ^ mu_hash_bytes(tag.text, tag.length)) | 1;
}

static int is_track(const struct mu_track *track, const struct mu_process *process,
                    enum mu_track_kind kind, int64_t key, struct mu_span tag) {
    return track->process == process && track->kind == kind && track->key == key &&
           (tag.length == 0 ? track->tag[0] == 0 : mu_span_equals(tag, track->tag));
}

/* Not in the map: overflow tracks are reached from the track that they belong to. */
static struct mu_track *make_track(struct mu_converter *converter, struct mu_process *process,
                                   enum mu_track_kind kind, int64_t key) {
    struct mu_track *track = calloc(1, sizeof(*track));
    if (track == NULL) {
        out_of_memory(converter);
        return NULL;
    }
    track->process = process;
    track->kind = kind;
    track->key = key;
    track->uuid = new_uuid(converter);
    track->last_ns = INT64_MIN;
    track->next = process->tracks;
    process->tracks = track;
    return track;
}

static void announce(struct mu_converter *converter, struct mu_track *track) {
    if (!track->process->announced) {
        track->process->announced = 1;
        converter->writer.ops->process(&converter->writer, track->process);
    }
    converter->writer.ops->track(&converter->writer, track);
}

static struct mu_track *find_track(struct mu_converter *converter, struct mu_process *process,
                                   enum mu_track_kind kind, int64_t key, struct mu_span tag) {
    struct mu_track *track = mu_id_map_find(&converter->tracks, track_key(process, kind, key, tag));
    while (track != NULL && !is_track(track, process, kind, key, tag)) {
        track = track->next_same_key;
    }
    return track;
}

static void register_track(struct mu_converter *converter, struct mu_track *track) {
    struct mu_span tag = {track->tag, strlen(track->tag)};
    uint64_t key = track_key(track->process, track->kind, track->key, tag);
    track->next_same_key = mu_id_map_find(&converter->tracks, key);
    mu_error_kept(mu_id_map_put(&converter->tracks, key, track, &converter->error));
}

/* Below FIRST_MADE_TID, which fits into 24 bits; 0 is not a key. Also when memory is out. */
static int take_tid(struct mu_converter *converter, const struct mu_process *process, int64_t tid) {
    uint64_t key = ((uint64_t)process->uuid << 24 | (uint64_t)tid) + 1;
    if (mu_id_map_find(&converter->taken_tids, key) != NULL) {
        return 0;
    }
    return mu_id_map_put(&converter->taken_tids, key, converter, &converter->error) == MU_OK;
}

static void name_thread(struct mu_track *track, struct mu_span name) {
    char tag[120], text[120];
    store_decoded(tag, sizeof(tag), (struct mu_span){track->tag, strlen(track->tag)});
    store_decoded(text, sizeof(text), name);
    if (text[0] != 0 && tag[0] != 0) {
        snprintf(track->name, sizeof(track->name), "%s (%s)", text, tag);
    } else if (text[0] != 0 || tag[0] != 0) {
        snprintf(track->name, sizeof(track->name), "%s", text[0] != 0 ? text : tag);
    } else if (track->key >= 0) {
        snprintf(track->name, sizeof(track->name), "thread %lld", (long long)track->key);
    } else {
        snprintf(track->name, sizeof(track->name), "stages");
    }
}

static struct mu_track *add_thread(struct mu_converter *converter, struct mu_process *process,
                                   int64_t tid, struct mu_span tag) {
    struct mu_track *track = make_track(converter, process, MU_TRACK_THREAD, tid);
    if (track == NULL) {
        return NULL;
    }
    memcpy(track->tag, tag.text, tag.length);
    int64_t wanted = tid > 0 && tid < FIRST_MADE_TID ? tid : 1;
    track->tid = take_tid(converter, process, wanted) ? wanted : process->next_tid++;
    track->order = MU_TRACK_ORDER_FIRST + process->thread_count++;
    name_thread(track, (struct mu_span){"", 0});
    register_track(converter, track);
    return track;
}

static struct mu_span fit_tag(struct mu_span tag) {
    const size_t max = sizeof(((struct mu_track *)0)->tag) - 1;
    return (struct mu_span){tag.length > 0 ? tag.text : "", tag.length < max ? tag.length : max};
}

struct mu_track *mu_track_of_thread(struct mu_converter *converter, struct mu_process *process,
                                    int64_t tid, struct mu_span tag) {
    struct mu_track *track = converter->last_track;
    tag = tag.length == 0 ? (struct mu_span){"", 0} : fit_tag(tag);
    if (track != NULL && is_track(track, process, MU_TRACK_THREAD, tid, tag)) {
        return track;
    }
    track = find_track(converter, process, MU_TRACK_THREAD, tid, tag);
    if (track == NULL) {
        track = add_thread(converter, process, tid, tag);
        if (track != NULL) {
            announce(converter, track);
        }
    }
    converter->last_track = track;
    return track;
}

void mu_thread_row(struct mu_converter *converter, const struct mu_event_row *row) {
    struct mu_process *process = mu_process_of(converter, row->metadata.node, row->machine);
    struct mu_span rest = row->metadata.user, key, value, name = {"", 0};
    while (mu_metadata_next(&rest, &key, &value)) {
        if (mu_span_equals(key, "thread_name")) {
            name = value;
        }
    }
    if (process == NULL) {
        return;
    }
    struct mu_span tag = fit_tag(row->metadata.tag);
    struct mu_track *track =
        find_track(converter, process, MU_TRACK_THREAD, row->metadata.tid, tag);
    if (track == NULL) {
        track = add_thread(converter, process, row->metadata.tid, tag);
    }
    if (track == NULL) {
        return;
    }
    char before[sizeof(track->name)];
    memcpy(before, track->name, sizeof(before));
    name_thread(track, name);
    if (track->prefix_length == 0 || strcmp(before, track->name) != 0) {
        announce(converter, track);
    }
}

static int needs_nest(enum mu_track_kind kind) {
    return kind == MU_TRACK_CUDA || kind == MU_TRACK_ASYNC;
}

static struct mu_track *add_other(struct mu_converter *converter, struct mu_process *process,
                                  enum mu_track_kind kind, int64_t key, const char *name,
                                  int with_nest) {
    struct mu_track *track = make_track(converter, process, kind, key);
    if (track == NULL) {
        return NULL;
    }
    if (with_nest) {
        track->nest = calloc(1, sizeof(*track->nest));
        if (track->nest == NULL) {
            out_of_memory(converter);
            return NULL; /* the process owns the track */
        }
    }
    snprintf(track->name, sizeof(track->name), "%s", name);
    track->tid = process->next_tid++;
    track->order = kind == MU_TRACK_STEPS ? MU_TRACK_ORDER_STEPS
                                          : MU_TRACK_ORDER_OTHER + process->other_count++;
    return track;
}

struct mu_track *mu_track_of_kind(struct mu_converter *converter, struct mu_process *process,
                                  enum mu_track_kind kind, int64_t key, const char *name) {
    struct mu_track *track = find_track(converter, process, kind, key, (struct mu_span){"", 0});
    if (track != NULL) {
        return track;
    }
    track = add_other(converter, process, kind, key, name, needs_nest(kind));
    if (track != NULL) {
        register_track(converter, track);
        announce(converter, track);
    }
    return track;
}

static struct mu_track *add_overflow(struct mu_converter *converter, struct mu_track *first,
                                     struct mu_track *last, int number, int with_nest) {
    char name[sizeof(first->name)];
    /* Trace processors merge sibling tracks of the same name into one. */
    snprintf(name, sizeof(name), "%.200s (%d)", first->name, number);
    last->overflow = add_other(converter, first->process, first->kind, first->key, name, with_nest);
    if (last->overflow != NULL) {
        if (first->kind == MU_TRACK_THREAD) {
            last->overflow->order = first->order;
        }
        announce(converter, last->overflow);
    }
    return last->overflow;
}

/* --- more overflow tracks than can be searched: a heap, at its root the one that is free first ---
 */

struct mu_free_track {
    int64_t from_ns; /* where its last slice ends */
    struct mu_track *track;
};

struct mu_more_tracks {
    size_t count, size;
    struct mu_free_track heap[];
};

static void swap_tracks(struct mu_free_track *a, struct mu_free_track *b) {
    struct mu_free_track kept = *a;
    *a = *b;
    *b = kept;
}

static void sink_first(struct mu_more_tracks *more) {
    for (size_t at = 0, child; (child = 2 * at + 1) < more->count; at = child) {
        if (child + 1 < more->count && more->heap[child + 1].from_ns < more->heap[child].from_ns) {
            child++;
        }
        if (more->heap[at].from_ns <= more->heap[child].from_ns) {
            return;
        }
        swap_tracks(&more->heap[at], &more->heap[child]);
    }
}

static void raise_last(struct mu_more_tracks *more) {
    for (size_t at = more->count - 1; at > 0; at = (at - 1) / 2) {
        if (more->heap[(at - 1) / 2].from_ns <= more->heap[at].from_ns) {
            return;
        }
        swap_tracks(&more->heap[(at - 1) / 2], &more->heap[at]);
    }
}

static int make_room(struct mu_converter *converter, struct mu_track *first) {
    struct mu_more_tracks *old = first->more;
    if (old != NULL && old->count < old->size) {
        return 1;
    }
    size_t count = old == NULL ? 0 : old->count, size = count == 0 ? 16 : 2 * count;
    struct mu_more_tracks *more = realloc(old, sizeof(*more) + size * sizeof(more->heap[0]));
    if (more == NULL) {
        out_of_memory(converter);
        return 0;
    }
    more->count = count;
    more->size = size;
    first->more = more;
    return 1;
}

static struct mu_track *one_of_more(struct mu_converter *converter, struct mu_track *first,
                                    struct mu_interval interval) {
    struct mu_more_tracks *more = first->more;
    if (more != NULL && more->heap[0].from_ns <= interval.begin) {
        more->heap[0].from_ns = interval.end;
        struct mu_track *track = more->heap[0].track;
        sink_first(more);
        return track;
    }
    if (!make_room(converter, first)) {
        return NULL;
    }
    more = first->more;
    struct mu_track unlinked = {0};
    int number = FIRST_FIT + 1 + (int)more->count;
    struct mu_track *track = add_overflow(converter, first, &unlinked, number, 0);
    if (track != NULL) {
        more->heap[more->count++] = (struct mu_free_track){interval.end, track};
        raise_last(more);
    }
    return track;
}

/* The first track, from `track` on, where the interval nests; one more where there is none. Beyond
 * FIRST_FIT tracks, one whose slices have all ended. */
struct mu_track *mu_track_with_room(struct mu_converter *converter, struct mu_track *track,
                                    struct mu_interval interval) {
    struct mu_track *candidate = track;
    for (int number = 1;; number++) {
        if (candidate->nest != NULL && mu_nest_accept(candidate->nest, interval)) {
            return candidate;
        }
        if (number == FIRST_FIT) {
            return one_of_more(converter, track, interval);
        }
        if (candidate->overflow == NULL &&
            add_overflow(converter, track, candidate, number + 1, 1) == NULL) {
            return NULL;
        }
        candidate = candidate->overflow;
    }
}

static void free_track(struct mu_track *track) {
    free(track->nest);
    free(track->more);
    free(track->names_known);
    free(track);
}

void mu_tracks_reset(struct mu_converter *converter) {
    while (converter->processes != NULL) {
        struct mu_process *process = converter->processes;
        converter->processes = process->next;
        while (process->tracks != NULL) {
            struct mu_track *track = process->tracks;
            process->tracks = track->next;
            free_track(track);
        }
        free(process);
    }
}
