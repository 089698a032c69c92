#include "stages/drain.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/event.h"
#include "base/invariant.h"
#include "journal/page_guard.h"
#include "stages/corrections.h"
#include "stages/drain_state.h"
#include "stages/drain_windows.h"
#include "stages/heartbeat.h"
#include "stages/output_state.h"
#include "stages/state.h"

/* Slots of a thread buffer that one write takes at most; bounds the memory of a drain. */
enum { SLOTS_A_ROUND = 2048 };

/* When real time differs from monotonic time by more than this, the system's clock was set. Slewing
 * by NTP moves both clocks. */
static const int64_t clock_step_ns = 1000000;

/* How long the drain waits for GPU times before a file ends, and how often it polls. */
enum { FINISH_TRIES = 500 };
static const struct timespec finish_pause = {.tv_nsec = 2000000};

int mu_drain_create(struct mu_drain **out, struct mu_error *err) {
    struct mu_drain *drain = calloc(1, sizeof(*drain));
    if (drain == NULL) {
        return mu_error_no_memory(err, "drain");
    }
    mu_rows_init(&drain->rows);
    mu_csv_writer_init(&drain->writer);
    *out = drain;
    return MU_OK;
}

void mu_drain_free(struct mu_drain *drain) {
    if (drain == NULL) {
        return;
    }
    mu_rows_free(&drain->rows);
    mu_csv_writer_free(&drain->writer);
    mu_once_rows_free(&drain->once);
    mu_drain_windows_free(&drain->windows);
    free(drain);
}

static struct mu_strings live_strings(const struct mu_recorder *recorder) {
    const struct mu_journal *journal = &recorder->journal;
    struct mu_strings strings = {
        .entries =
            (const struct mu_string_entry *)(const void *)(journal->base + MU_STRINGS_OFFSET),
        .blob = (const char *)(journal->base + MU_BLOB_OFFSET),
        .count = &mu_journal_header(journal)->string_count,
        .blob_bytes = MU_STRING_BLOB_BYTES,
    };
    return strings;
}

static uint32_t chunk_count(const struct mu_recorder *recorder) {
    return atomic_load_explicit(&mu_journal_header(&recorder->journal)->chunk_count,
                                memory_order_acquire);
}

static void describe_track(const struct mu_strings *strings, const struct mu_chunk_header *chunk,
                           struct mu_buffer_view *view) {
    size_t length = 0;
    uint32_t tag = atomic_load_explicit(&chunk->tag, memory_order_acquire);
    const char *text = mu_strings_get(strings, tag, &length);
    view->track_length =
        mu_csv_track_text(view->track, atomic_load_explicit(&chunk->tid, memory_order_relaxed),
                          text, text == NULL ? 0 : length);
}

static void copy_open(struct mu_chunk_header *chunk, struct mu_buffer_view *view) {
    uint32_t depth = atomic_load_explicit(&chunk->depth, memory_order_acquire);
    for (uint32_t i = 0; i < MU_OPEN_MAX; i++) {
        if (i >= depth || !mu_open_view_load(&view->open[i], &chunk->open[i])) {
            view->open[i].node = 0;
        }
    }
}

/* The end of the last whole record at or before `limit`. */
static uint64_t record_boundary(const struct mu_buffer_view *view, uint64_t head, uint64_t limit) {
    if (head <= limit) {
        return head;
    }
    uint64_t position = view->from;
    for (;;) {
        uint16_t slots = view->ring[position & (MU_RING_SLOTS - 1)].slots;
        if (slots == 0 || position + slots > limit) {
            return position > view->from ? position : head;
        }
        position += slots;
    }
}

/* What holds between two drains: tail, what is drained and head follow each other within one length
 * of the ring, and the rows that are held back are between the first two, in order. */
static void check_view(const struct mu_buffer_view *view, const struct mu_chunk_header *chunk) {
    MU_INVARIANT(atomic_load(&chunk->tail) <= view->from);
    MU_INVARIANT(view->from <= atomic_load(&chunk->head));
    MU_INVARIANT(atomic_load(&chunk->head) - atomic_load(&chunk->tail) <= MU_RING_SLOTS);
    MU_INVARIANT(view->held_count <= MU_HELD_MAX);
    for (uint32_t i = 0; i < view->held_count; i++) {
        MU_INVARIANT(view->held[i].position >= atomic_load(&chunk->tail));
        MU_INVARIANT(i == 0 || view->held[i].position > view->held[i - 1].position);
        MU_INVARIANT(view->held[i].position < view->from);
    }
}

/* Ends the view before the row that would find no place among those that wait for GPU times. Its
 * records stay in the ring, unless the ring's slots are needed. Returns whether it ended earlier.
 */
static bool cut_before_crowd(struct mu_buffer_view *view, uint64_t head) {
    uint64_t oldest = view->held_count > 0 ? view->held[0].position : view->from;
    uint32_t left = MU_HELD_MAX - view->held_count;
    if (head - oldest > MU_RING_SLOTS / 2) {
        return false;
    }
    for (uint64_t position = view->from; position < view->to;) {
        const struct mu_record *record = &view->ring[position & (MU_RING_SLOTS - 1)];
        if (record->kind == MU_RECORD_STAGE && record->span != 0 && left-- == 0) {
            view->to = position;
            return true;
        }
        position += record->slots == 0 ? 1 : record->slots;
    }
    return false;
}

static void view_chunk(struct mu_recorder *recorder, const struct mu_strings *strings,
                       uint32_t index) {
    struct mu_chunk_header *chunk = mu_journal_chunk(&recorder->journal, index);
    struct mu_buffer_view *view = &recorder->drain->views[index];
    check_view(view, chunk);
    view->changed = false;
    view->ring = mu_chunk_ring(chunk);
    uint64_t head = atomic_load_explicit(&chunk->head, memory_order_acquire);
    if (head < view->from) {
        head = view->from; /* its page was lost; the thread's next record says it again */
    }
    view->to = record_boundary(view, head, view->from + SLOTS_A_ROUND);
    recorder->drain->cut[index] = !recorder->drain->finish && cut_before_crowd(view, head);
    copy_open(chunk, view);
    uint64_t later = atomic_load_explicit(&chunk->head, memory_order_acquire);
    mu_buffer_view_cut_open(view, later);
    describe_track(strings, chunk, view);
    mu_drain_windows_choose(recorder, strings, index);
}

void mu_drain_take_anchor_lock_held(struct mu_recorder *recorder) {
    mu_timeline_add(&recorder->timeline, mu_clock_anchor(recorder->counter));
    atomic_store_explicit(&recorder->rate, mu_timeline_rate(&recorder->timeline),
                          memory_order_relaxed);
    pthread_mutex_lock(&recorder->registry_lock);
    mu_journal_publish_anchors(&recorder->journal, &recorder->timeline);
    pthread_mutex_unlock(&recorder->registry_lock);
}

static void commit_chunk(struct mu_recorder *recorder, uint32_t index) {
    struct mu_chunk_header *chunk = mu_journal_chunk(&recorder->journal, index);
    const struct mu_buffer_view *view = &recorder->drain->views[index];
    uint64_t first = atomic_load_explicit(&chunk->commits[0].epoch, memory_order_relaxed);
    uint64_t second = atomic_load_explicit(&chunk->commits[1].epoch, memory_order_relaxed);
    struct mu_chunk_commit *commit = &chunk->commits[first <= second ? 0 : 1];
    MU_INVARIANT(first <= recorder->epoch && second <= recorder->epoch);
    MU_INVARIANT(commit->drained <= view->to); /* also where it was never written */
    atomic_exchange_explicit(&commit->epoch, 0, memory_order_acq_rel);
    commit->drained = view->to;
    memcpy(commit->started, view->started, sizeof(commit->started));
    commit->held_count = view->held_count;
    for (uint32_t i = 0; i < view->held_count; i++) {
        commit->held[i] = (uint16_t)(view->to - view->held[i].position);
    }
    atomic_store_explicit(&commit->epoch, recorder->epoch + 1, memory_order_release);
}

static void commit_chunks(struct mu_recorder *recorder, uint32_t count) {
    const struct mu_buffer_view *views = recorder->drain->views;
    pthread_mutex_lock(&recorder->registry_lock);
    for (uint32_t i = 0; i < count; i++) {
        if (views[i].changed || views[i].to != views[i].from) {
            commit_chunk(recorder, i);
        }
    }
    pthread_mutex_unlock(&recorder->registry_lock);
}

static uint64_t last_epoch(const struct mu_journal_header *header) {
    uint64_t first = atomic_load_explicit(&header->commits[0].epoch, memory_order_relaxed);
    uint64_t second = atomic_load_explicit(&header->commits[1].epoch, memory_order_relaxed);
    return first < second ? second : first;
}

void mu_drain_commit_lock_held(struct mu_recorder *recorder) {
    uint64_t epoch = recorder->epoch + 1;
    MU_INVARIANT(last_epoch(mu_journal_header(&recorder->journal)) == recorder->epoch);
    struct mu_commit *commit = &mu_journal_header(&recorder->journal)->commits[epoch & 1];
    pthread_mutex_lock(&recorder->registry_lock);
    atomic_exchange_explicit(&commit->epoch, 0, memory_order_acq_rel);
    commit->csv_bytes = recorder->output.csv_bytes;
    commit->csv_part = recorder->output.part;
    commit->real_offset_ns = recorder->real_offset_ns;
    commit->user_offset_ns = recorder->user_offset_ns;
    struct mu_journal_header *header = mu_journal_header(&recorder->journal);
    header->reported_drops[epoch & 1] = recorder->reported_drops + 1;
    header->reported_unplaced[epoch & 1] = recorder->reported_unplaced + 1;
    atomic_store_explicit(&commit->epoch, epoch, memory_order_release);
    pthread_mutex_unlock(&recorder->registry_lock);
    recorder->epoch = epoch;
    mu_output_state_publish_lock_held(recorder);
}

static void free_slots(struct mu_recorder *recorder, uint32_t index) {
    struct mu_chunk_header *chunk = mu_journal_chunk(&recorder->journal, index);
    struct mu_buffer_view *view = &recorder->drain->views[index];
    view->from = view->to;
    uint64_t tail = view->held_count == 0 ? view->to : view->held[0].position;
    MU_INVARIANT(atomic_load(&chunk->tail) <= tail && tail <= view->to);
    atomic_store_explicit(&chunk->tail, tail, memory_order_release);
    bool retired = atomic_load_explicit(&chunk->state, memory_order_acquire) == MU_CHUNK_RETIRED;
    if (retired && atomic_load_explicit(&chunk->head, memory_order_acquire) == tail) {
        memset(view->started, 0, sizeof(view->started));
        recorder->drain->named_threads[index] = 0;
        mu_drain_windows_end_track(recorder, index);
        atomic_store_explicit(&chunk->depth, 0, memory_order_relaxed);
        atomic_store_explicit(&chunk->state, MU_CHUNK_FREE, memory_order_release);
    }
}

void mu_drain_lose_rows(struct mu_recorder *recorder, const struct mu_lost_rows *lost,
                        int sys_errno) {
    struct mu_drain *drain = recorder->drain;
    mu_lost_rows_add_all(&drain->lost, lost);
    drain->head_due = drain->beat_due = true;
    atomic_fetch_add(&recorder->troubles.failed_writes, 1);
    atomic_fetch_add(&recorder->troubles.lost_rows, mu_lost_rows_total(lost));
    atomic_store(&recorder->troubles.last_errno, sys_errno);
}

/* Of what was formatted, the first `counted` bytes are rows that are written once. */
static bool flush(struct mu_recorder *recorder, size_t counted) {
    struct mu_csv_writer *writer = &recorder->drain->writer;
    struct mu_error err = {0};
    int code = mu_output_write(&recorder->output, writer->buffer, writer->length, &err);
    if (code != MU_OK) {
        struct mu_lost_rows lost = {0};
        mu_lost_rows_add_text(&lost, writer->buffer, counted);
        mu_drain_lose_rows(recorder, &lost, err.sys_errno);
    }
    writer->length = 0;
    return code == MU_OK;
}

void mu_drain_flush_lock_held(struct mu_recorder *recorder) {
    flush(recorder, recorder->drain->writer.length);
}

static int64_t now_in_rows(struct mu_recorder *recorder) {
    int64_t mono = mu_timeline_mono_ns(&recorder->timeline, mu_clock_ticks(recorder->counter));
    return mono + recorder->real_offset_ns + recorder->user_offset_ns;
}

void mu_drain_write_own_row(struct mu_recorder *recorder, const char *name, const char *metadata) {
    mu_csv_write_own(&recorder->drain->writer, now_in_rows(recorder),
                     mu_journal_header(&recorder->journal)->pid, name, metadata);
}

static void write_drops(struct mu_recorder *recorder, uint64_t count, const char *reason) {
    mu_rows_write_drops(&recorder->drain->writer, now_in_rows(recorder),
                        mu_journal_header(&recorder->journal)->pid, count, reason);
}

void mu_drain_write_offset(struct mu_recorder *recorder) {
    char metadata[64];
    snprintf(metadata, sizeof(metadata), "offset_ns=%lld", (long long)recorder->user_offset_ns);
    mu_drain_write_own_row(recorder, "my_utils.time_offset", metadata);
}

/* Readers undo the sum, which is said again where the rows of the steps may be gone. */
static void write_clock_step(struct mu_recorder *recorder, int64_t moved) {
    char metadata[96];
    snprintf(metadata, sizeof(metadata), "delta_ns=%lld,total_ns=%lld", (long long)moved,
             (long long)recorder->stepped_ns);
    mu_drain_write_own_row(recorder, "my_utils.clock_step", metadata);
}

static void write_beginning(struct mu_recorder *recorder) {
    mu_drain_write_own_row(recorder, "my_utils.process", recorder->drain->process_row);
    if (recorder->user_offset_ns != 0) {
        mu_drain_write_offset(recorder);
    }
    if (recorder->stepped_ns != 0) {
        write_clock_step(recorder, 0);
    }
}

void mu_drain_begin_part(struct mu_recorder *recorder) {
    write_beginning(recorder);
    recorder->drain->process_due = !flush(recorder, 0);
}

/* Rows that name the tracks, once for each part of the CSV. */
static void name_thread(struct mu_recorder *recorder, const struct mu_strings *strings,
                        uint32_t index) {
    struct mu_chunk_header *chunk = mu_journal_chunk(&recorder->journal, index);
    uint32_t string = atomic_load_explicit(&chunk->thread_name, memory_order_acquire);
    size_t length;
    const char *name = mu_strings_get(strings, string, &length);
    if (name == NULL || string == recorder->drain->named_threads[index]) {
        return;
    }
    static const char row_name[] = "my_utils.thread";
    char metadata[3 * MU_STRING_BYTES_MAX + 32] = "thread_name=";
    size_t used = strlen(metadata);
    used += mu_metadata_encode(metadata + used, name, length);
    const struct mu_buffer_view *view = &recorder->drain->views[index];
    struct mu_csv_event_row row = {
        .real_ns = now_in_rows(recorder),
        .type = MU_EVENT_INSTANT,
        .name = row_name,
        .name_length = sizeof(row_name) - 1,
        .metadata = metadata,
        .metadata_length = used,
        .track = view->track,
        .track_length = view->track_length,
    };
    mu_csv_write_event(&recorder->drain->writer, &row);
    recorder->drain->named_threads[index] = string;
}

static struct mu_row_context row_context(struct mu_recorder *recorder) {
    struct mu_row_context context = {.strings = live_strings(recorder),
                                     .timeline = &recorder->timeline,
                                     .real_offset_ns = recorder->real_offset_ns,
                                     .user_offset_ns = recorder->user_offset_ns,
                                     .once = &recorder->drain->once};
    return context;
}

void mu_drain_repeat_starts(struct mu_recorder *recorder) {
    struct mu_drain *drain = recorder->drain;
    const struct mu_row_context context = row_context(recorder);
    for (uint32_t i = 0; i < chunk_count(recorder); i++) {
        if (drain->views[i].ring != NULL) { /* else the chunk is newer than the last round */
            mu_rows_repeat_starts(&drain->rows, &context, &drain->views[i], &drain->writer);
        }
    }
}

void mu_drain_repeat_rows(struct mu_recorder *recorder) {
    const struct mu_csv_writer *once = &recorder->drain->once.writer;
    mu_csv_write_text(&recorder->drain->writer, once->buffer, once->length);
    mu_drain_repeat_starts(recorder);
}

static void rotate_if_full(struct mu_recorder *recorder) {
    struct mu_csv_writer *writer = &recorder->drain->writer;
    struct mu_error err = {0};
    if (recorder->drain->head_due || !mu_output_is_full(&recorder->output)) {
        return;
    }
    write_beginning(recorder);
    mu_drain_repeat_rows(recorder);
    int code = writer->failed
                   ? mu_error_no_memory(&err, "the beginning of a part")
                   : mu_output_rotate(&recorder->output, writer->buffer, writer->length, &err);
    writer->length = 0;
    writer->failed = 0;
    if (code != MU_OK) {
        atomic_fetch_add(&recorder->troubles.failed_rotations, 1);
        atomic_store(&recorder->troubles.last_errno, err.sys_errno);
        return;
    }
    atomic_store(&recorder->troubles.removed_parts, recorder->output.removed_parts);
    memset(recorder->drain->named_threads, 0, sizeof(recorder->drain->named_threads));
    mu_drain_commit_lock_held(recorder);
}

static void write_lost_range(struct mu_recorder *recorder, const struct mu_lost_range *range) {
    char metadata[128];
    snprintf(metadata, sizeof(metadata),
             "count=%" PRIu64 ",reason=" MU_DROPPED_NOT_WRITTEN ",first_step=%" PRId64
             ",last_step=%" PRId64,
             range->count, range->first, range->last);
    mu_drain_write_own_row(recorder, "my_utils.dropped", metadata);
}

static void write_lost_rows(struct mu_recorder *recorder) {
    const struct mu_lost_rows *lost = &recorder->drain->lost;
    for (uint32_t i = 0; i < lost->range_count; i++) {
        write_lost_range(recorder, &lost->ranges[i]);
    }
    if (lost->stepless > 0) {
        write_drops(recorder, lost->stepless, MU_DROPPED_NOT_WRITTEN);
    }
}

/* After a write that failed: says what was lost, and writes again what may be among it. It is
 * committed before rows follow, so that a kill cannot leave it behind rows of the journal. */
static void write_head_again(struct mu_recorder *recorder) {
    struct mu_drain *drain = recorder->drain;
    size_t counted = drain->writer.length;
    if (!drain->head_due) {
        return;
    }
    if (drain->process_due) {
        write_beginning(recorder);
    }
    write_lost_rows(recorder);
    mu_drain_repeat_rows(recorder);
    if (drain->writer.failed) {
        drain->writer.failed = 0;
        drain->writer.length = counted;
        return;
    }
    if (flush(recorder, counted)) {
        memset(&drain->lost, 0, sizeof(drain->lost));
        memset(drain->named_threads, 0, sizeof(drain->named_threads));
        drain->head_due = drain->process_due = false;
        drain->beat_due = true;
        mu_drain_commit_lock_held(recorder);
    }
}

/* Writes a row that counts lost records, where more are lost than rows report. */
static void report_drops(struct mu_recorder *recorder, const _Atomic uint64_t *count,
                         uint64_t *reported, const char *reason) {
    uint64_t dropped = atomic_load_explicit(count, memory_order_relaxed);
    if (dropped == *reported) {
        return;
    }
    write_drops(recorder, dropped - *reported, reason);
    *reported = dropped;
}

/* The same for records that were in pages of the journal which are gone. */
static void report_lost_pages(struct mu_recorder *recorder) {
    if (!mu_journal_is_lost(&recorder->journal)) {
        return;
    }
    atomic_store(&recorder->troubles.lost_journal, 1);
    uint64_t lost = recorder->drain->rows.bad_records;
    if (lost > 0) {
        recorder->drain->rows.bad_records = 0;
        atomic_fetch_add(&recorder->troubles.lost_records, lost);
        write_drops(recorder, lost, MU_DROPPED_JOURNAL_LOST);
    }
}

static void follow_clock_step(struct mu_recorder *recorder) {
    const struct mu_timeline *timeline = &recorder->timeline;
    const struct mu_anchor *last = &timeline->anchors[timeline->count - 1];
    int64_t offset = last->real_ns - last->mono_ns;
    int64_t moved = offset - recorder->real_offset_ns;
    if (moved < clock_step_ns && moved > -clock_step_ns) {
        return;
    }
    recorder->real_offset_ns = offset;
    recorder->stepped_ns = mu_clock_add(recorder->stepped_ns, moved);
    write_clock_step(recorder, moved);
    mu_drain_repeat_starts(recorder);
}

void mu_drain_follow_clock_lock_held(struct mu_recorder *recorder) {
    mu_drain_take_anchor_lock_held(recorder);
    follow_clock_step(recorder);
    if (recorder->drain->writer.length > 0) {
        mu_drain_flush_lock_held(recorder);
        mu_drain_commit_lock_held(recorder);
    }
}

/* One round drains at most SLOTS_A_ROUND slots of each thread buffer. Returns whether a thread
 * buffer has more. */
static bool drain_round(struct mu_recorder *recorder) {
    struct mu_drain *drain = recorder->drain;
    uint32_t count = chunk_count(recorder);
    struct mu_row_context context = row_context(recorder);
    bool more = false;
    mu_corrections_make_lock_held(recorder);
    for (uint32_t i = 0; i < count; i++) {
        view_chunk(recorder, &context.strings, i);
        name_thread(recorder, &context.strings, i);
        more = more || drain->views[i].to - drain->views[i].from >= SLOTS_A_ROUND / 2;
    }
    /* After the heads: a record with a GPU span is newer than the pool that holds the span. */
    struct mu_cuda_pool *pool = atomic_load(&recorder->gpu);
    struct mu_gpu_rows gpu = {.pool = pool,
                              .step = mu_cuda_pool_steps(pool),
                              .finish = drain->finish,
                              .add = recorder->add_gpu_time,
                              .owner = recorder};
    context.gpu = pool == NULL ? NULL : &gpu;
    mu_drain_take_anchor_lock_held(recorder);
    mu_cuda_collect(pool);
    if (mu_rows_write(&drain->rows, &context, drain->views, count, &drain->writer, NULL) != MU_OK) {
        drain->writer.failed = 0;
    }
    if (mu_lost_rows_total(&drain->rows.lost) > 0) { /* there was no memory for them */
        mu_drain_lose_rows(recorder, &drain->rows.lost, ENOMEM);
        memset(&drain->rows.lost, 0, sizeof(drain->rows.lost));
    }
    commit_chunks(recorder, count);
    mu_drain_flush_lock_held(recorder);
    mu_drain_commit_lock_held(recorder);
    for (uint32_t i = 0; i < count; i++) {
        free_slots(recorder, i);
        more = more || (drain->cut[i] && drain->views[i].held_count < MU_HELD_MAX);
    }
    return more;
}

void mu_drain_run_lock_held(struct mu_recorder *recorder) {
    enum { ROUNDS_MAX = 2 * MU_RING_SLOTS / SLOTS_A_ROUND };
    int rounds = 0;
    mu_page_guard_put_first();
    write_head_again(recorder);
    while (drain_round(recorder) && ++rounds < ROUNDS_MAX) {
    }
    follow_clock_step(recorder);
    report_drops(recorder, &recorder->troubles.dropped_records, &recorder->reported_drops,
                 MU_DROPPED_RING_FULL);
    report_drops(recorder, &recorder->troubles.unplaced_records, &recorder->reported_unplaced,
                 MU_DROPPED_NO_ROOM);
    report_lost_pages(recorder);
    if (recorder->drain->writer.length > 0) {
        mu_drain_flush_lock_held(recorder);
        mu_drain_commit_lock_held(recorder);
    }
    rotate_if_full(recorder);
    if (recorder->drain->beat_due && recorder->output.kind == MU_OUTPUT_FILE) {
        recorder->drain->beat_due = false;
        mu_heartbeat_write(recorder, false);
    }
}

static bool holds_rows(const struct mu_recorder *recorder) {
    const struct mu_drain *drain = recorder->drain;
    bool held = false;
    for (uint32_t i = 0; i < chunk_count(recorder); i++) {
        held = held || drain->views[i].held_count > 0 || drain->cut[i];
    }
    return held;
}

void mu_drain_finish_lock_held(struct mu_recorder *recorder) {
    mu_drain_run_lock_held(recorder);
    for (int i = 0; i < FINISH_TRIES && holds_rows(recorder); i++) {
        nanosleep(&finish_pause, NULL);
        mu_drain_run_lock_held(recorder);
    }
    if (holds_rows(recorder)) {
        recorder->drain->finish = true;
        mu_drain_run_lock_held(recorder);
        recorder->drain->finish = false;
    }
}
