#include "journal/journal_reader.h"

#include <stdlib.h>
#include <string.h>

enum { LAST_SEARCH_SLOTS = 512 };

int mu_journal_check_header(const struct mu_journal_header *header, struct mu_error *err) {
    /* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): no header after an error */
    if (memcmp(header->magic, MU_JOURNAL_MAGIC, sizeof(header->magic)) != 0) {
        return mu_error_set(err, MU_ERR_FORMAT, "not a journal: the first bytes are others");
    }
    if (header->byte_order != MU_JOURNAL_BYTE_ORDER) {
        return mu_error_set(err, MU_ERR_FORMAT,
                            "the journal was written on a machine of the other byte order");
    }
    if (header->version > MU_JOURNAL_VERSION) {
        return mu_error_set(err, MU_ERR_VERSION,
                            "the journal has version %u; this program reads up to %d",
                            header->version, MU_JOURNAL_VERSION);
    }
    if (header->version != MU_JOURNAL_VERSION || header->header_bytes != MU_JOURNAL_HEADER_BYTES ||
        header->chunk_bytes != MU_CHUNK_BYTES || header->chunks_max != MU_CHUNKS_MAX ||
        header->strings_offset != MU_STRINGS_OFFSET || header->blob_offset != MU_BLOB_OFFSET ||
        header->chunks_offset != MU_CHUNKS_OFFSET) {
        return mu_error_set(err, MU_ERR_FORMAT, "the journal's header is damaged");
    }
    return MU_OK;
}

static void choose_commit(struct mu_journal_image *image) {
    const struct mu_commit *commits = image->header->commits;
    for (int i = 0; i < 2; i++) {
        uint64_t epoch = atomic_load_explicit(&commits[i].epoch, memory_order_acquire);
        if (epoch > image->epoch) {
            image->epoch = epoch;
            image->csv_bytes = commits[i].csv_bytes;
            image->csv_part = commits[i].csv_part;
            image->real_offset_ns = commits[i].real_offset_ns;
            image->user_offset_ns = commits[i].user_offset_ns;
            image->reported_drops = image->header->reported_drops[i];
            image->reported_unplaced = image->header->reported_unplaced[i];
        }
    }
}

static void load_timeline(struct mu_journal_image *image) {
    mu_timeline_reset(&image->timeline);
    uint32_t version = atomic_load(&image->header->anchors_version);
    const struct mu_anchor_set *set = &image->header->anchor_sets[version & 1];
    uint32_t count = set->count;
    for (uint32_t i = 0; i < count && i < MU_TIMELINE_ANCHORS; i++) {
        mu_timeline_add(&image->timeline, set->anchors[i]);
    }
}

int mu_journal_image_open(struct mu_journal_image *image, const uint8_t *bytes, size_t size,
                          struct mu_error *err) {
    memset(image, 0, sizeof(*image));
    if (size < MU_JOURNAL_HEADER_BYTES) {
        return mu_error_set(err, MU_ERR_FORMAT, "not a journal: only %zu bytes", size);
    }
    const struct mu_journal_header *header = (const void *)bytes;
    int code = mu_journal_check_header(header, err);
    if (code != MU_OK) {
        return code;
    }
    if (size < MU_CHUNKS_OFFSET) {
        return mu_error_set(err, MU_ERR_FORMAT, "the journal is cut short: %zu bytes", size);
    }
    image->bytes = bytes;
    image->size = size;
    image->header = header;
    image->strings.entries = (const void *)(bytes + MU_STRINGS_OFFSET);
    image->strings.blob = (const char *)bytes + MU_BLOB_OFFSET;
    image->strings.blob_bytes = MU_STRING_BLOB_BYTES;
    image->strings.count = &header->string_count;
    uint32_t chunks = atomic_load_explicit(&header->chunk_count, memory_order_acquire);
    chunks = chunks < MU_CHUNKS_MAX ? chunks : MU_CHUNKS_MAX;
    size_t whole = (size - MU_CHUNKS_OFFSET) / MU_CHUNK_BYTES;
    image->whole_chunks = whole < MU_CHUNKS_MAX ? (uint32_t)whole : MU_CHUNKS_MAX;
    image->chunk_count = chunks < whole ? chunks : (uint32_t)whole;
    image->missing_chunks = chunks - image->chunk_count;
    choose_commit(image);
    load_timeline(image);
    return MU_OK;
}

void mu_journal_image_close(struct mu_journal_image *image) {
    free(image->owned);
    free(image->later_heads);
    memset(image, 0, sizeof(*image));
}

const struct mu_chunk_commit *mu_journal_chunk_commit(const struct mu_journal_image *image,
                                                      const struct mu_chunk_header *chunk) {
    const struct mu_chunk_commit *best = NULL;
    uint64_t best_epoch = 0;
    for (int i = 0; i < 2; i++) {
        uint64_t epoch = atomic_load_explicit(&chunk->commits[i].epoch, memory_order_relaxed);
        if (epoch > best_epoch && epoch <= image->epoch) {
            best = &chunk->commits[i];
            best_epoch = epoch;
        }
    }
    return best;
}

static uint32_t kept_depth(const struct mu_chunk_header *chunk) {
    uint32_t depth = atomic_load_explicit(&chunk->depth, memory_order_acquire);
    return depth < MU_OPEN_MAX ? depth : MU_OPEN_MAX;
}

static void copy_open(const struct mu_chunk_header *chunk, struct mu_buffer_view *view) {
    if (atomic_load(&chunk->state) != MU_CHUNK_OWNED) {
        return;
    }
    for (uint32_t i = 0; i < kept_depth(chunk); i++) {
        if (!mu_open_view_load(&view->open[i], &chunk->open[i])) {
            view->open[i].node = 0;
        }
    }
}

/* Records whose END rows waited for GPU times when the process ended. */
static void view_held(struct mu_journal_image *image, const struct mu_chunk_commit *commit,
                      uint64_t head, struct mu_buffer_view *view, struct mu_recovered *recovered) {
    uint64_t count = commit->held_count <= MU_HELD_MAX ? commit->held_count : 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t position = commit->drained - commit->held[i];
        const struct mu_record *record = &view->ring[position & (MU_RING_SLOTS - 1)];
        bool kept = commit->held[i] <= commit->drained && head - position <= MU_RING_SLOTS;
        if (!kept || record->kind != MU_RECORD_STAGE || record->slots == 0 ||
            record->slots > head - position) {
            recovered->bad_records++;
            continue;
        }
        view->held[view->held_count++] = (struct mu_held_row){
            .position = position,
            .began_ns = mu_timeline_mono_ns(&image->timeline, record->start),
            .offset_ns = mu_clock_add(image->real_offset_ns, image->user_offset_ns),
        };
    }
}

static void view_chunk(struct mu_journal_image *image, uint32_t index, struct mu_buffer_view *view,
                       struct mu_recovered *recovered) {
    const struct mu_chunk_header *chunk = mu_journal_image_chunk(image, index);
    const struct mu_chunk_commit *commit = mu_journal_chunk_commit(image, chunk);
    uint64_t head = atomic_load_explicit(&chunk->head, memory_order_acquire);
    memset(view, 0, sizeof(*view));
    view->ring = mu_journal_image_ring(chunk);
    if (commit != NULL) {
        view->from = commit->drained;
        memcpy(view->started, commit->started, sizeof(view->started));
        view_held(image, commit, head, view, recovered);
    }
    view->to = head;
    if (head < view->from || head - view->from > MU_RING_SLOTS) {
        recovered->bad_records++;
        view->to = view->from;
    }
    copy_open(chunk, view);
    uint64_t later = image->later_heads == NULL ? head : image->later_heads[index];
    if (view->to == head && later > head && later - view->from <= MU_RING_SLOTS) {
        mu_buffer_view_cut_open(view, later);
    }
    size_t length = 0;
    const char *tag = mu_strings_get(&image->strings, atomic_load(&chunk->tag), &length);
    view->track_length =
        mu_csv_track_text(view->track, atomic_load(&chunk->tid), tag, tag == NULL ? 0 : length);
}

static uint64_t dropped_of_rings(const struct mu_journal_image *image) {
    uint64_t dropped = 0;
    for (uint32_t i = 0; i < image->chunk_count; i++) {
        dropped += atomic_load(&mu_journal_image_chunk(image, i)->dropped);
    }
    return dropped;
}

uint64_t mu_journal_image_dropped(const struct mu_journal_image *image) {
    return atomic_load(&image->header->dropped) + dropped_of_rings(image);
}

/* For views that were written: stages that ended are not among the open ones any more. */
static uint64_t count_open(const struct mu_buffer_view *views, uint32_t view_count) {
    uint64_t open = 0;
    for (uint32_t i = 0; i < view_count; i++) {
        for (int depth = 0; depth < MU_OPEN_MAX; depth++) {
            open += views[i].open[depth].node != 0;
        }
    }
    return open;
}

bool mu_journal_image_last_ns(const struct mu_journal_image *image, int64_t *real_ns) {
    const struct mu_anchor *newest = mu_timeline_newest(&image->timeline);
    if (newest != NULL) {
        *real_ns = mu_clock_add(mu_clock_add(newest->mono_ns, image->real_offset_ns),
                                image->user_offset_ns);
    }
    return newest != NULL;
}

/* `reported` is one more than rows report. */
static void write_drops(const struct mu_journal_image *image, struct mu_csv_writer *writer,
                        uint64_t dropped, uint64_t reported, const char *reason) {
    int64_t real_ns;
    if (reported > 0 && dropped >= reported && mu_journal_image_last_ns(image, &real_ns)) {
        mu_rows_write_drops(writer, real_ns, image->header->pid, dropped + 1 - reported, reason);
    }
}

void mu_journal_image_set_machine(const struct mu_journal_image *image,
                                  struct mu_csv_writer *writer) {
    const struct mu_journal_header *header = image->header;
    char machine[sizeof(header->machine) + 1] = "";
    _Static_assert(sizeof(header->machine) == sizeof(header->host), "either fits");
    memcpy(machine, header->machine[0] != '\0' ? header->machine : header->host,
           sizeof(header->machine));
    mu_csv_writer_set_machine(writer, machine);
}

int mu_journal_image_rows(struct mu_journal_image *image, struct mu_csv_writer *writer,
                          struct mu_recovered *recovered, struct mu_error *err) {
    memset(recovered, 0, sizeof(*recovered));
    if (image->overrun) {
        return mu_error_set(err, MU_ERR_STATE,
                            "the process records faster than its journal can be read");
    }
    recovered->bad_records = image->missing_chunks;
    struct mu_rows *rows = malloc(sizeof(*rows));
    struct mu_buffer_view *views = calloc(image->chunk_count + 1, sizeof(*views));
    int code = MU_OK;
    if (rows == NULL || views == NULL) {
        code = mu_error_no_memory(err, "recovery");
        goto done;
    }
    mu_journal_image_set_machine(image, writer);
    mu_rows_init(rows);
    for (uint32_t i = 0; i < image->chunk_count; i++) {
        view_chunk(image, i, &views[i], recovered);
    }
    struct mu_row_context context = {.strings = image->strings,
                                     .timeline = &image->timeline,
                                     .real_offset_ns = image->real_offset_ns,
                                     .user_offset_ns = image->user_offset_ns};
    code = mu_rows_write(rows, &context, views, image->chunk_count, writer, err);
    write_drops(image, writer, dropped_of_rings(image), image->reported_drops,
                MU_DROPPED_RING_FULL);
    write_drops(image, writer, atomic_load(&image->header->dropped), image->reported_unplaced,
                MU_DROPPED_NO_ROOM);
    recovered->bad_records += rows->bad_records;
    recovered->unnamed = rows->unnamed;
    recovered->rows = mu_csv_count_rows(writer->buffer, writer->length);
    recovered->open_stages = count_open(views, image->chunk_count);
    mu_rows_free(rows);
done:
    free(rows);
    free(views);
    return code;
}

static int64_t unix_ns(struct mu_journal_image *image, uint64_t ticks) {
    int64_t mono = mu_timeline_mono_ns(&image->timeline, ticks);
    return mu_clock_add(mu_clock_add(mono, image->real_offset_ns), image->user_offset_ns);
}

/* Among the open stages of a thread, in the order of their starts. */
static void add_open(struct mu_seen_thread *thread, const struct mu_seen_stage *stage) {
    int place = thread->depth++;
    while (place > 0 && thread->open[place - 1].start_ns > stage->start_ns) {
        thread->open[place] = thread->open[place - 1];
        place--;
    }
    thread->open[place] = *stage;
}

static void see_open(struct mu_journal_image *image, const struct mu_chunk_header *chunk,
                     struct mu_seen_thread *thread) {
    for (uint32_t i = 0; i < kept_depth(chunk); i++) {
        struct mu_open_view open;
        if (!mu_open_view_load(&open, &chunk->open[i])) {
            continue;
        }
        struct mu_seen_stage seen = {
            .node = open.node, .step = open.step, .start_ns = unix_ns(image, open.start)};
        seen.name = mu_strings_get(&image->strings, open.name, &seen.name_length);
        add_open(thread, &seen);
    }
}

/* Goes back from the newest slot, also over those that are in the CSV already. Lengths allow only
 * walking forward, so a slot is accepted when its bytes are a plausible record of a stage. */
static void see_last(struct mu_journal_image *image, const struct mu_chunk_header *chunk,
                     struct mu_seen_thread *thread) {
    const struct mu_record *ring = mu_journal_image_ring(chunk);
    uint64_t head = atomic_load_explicit(&chunk->head, memory_order_acquire);
    uint64_t lowest = head > LAST_SEARCH_SLOTS ? head - LAST_SEARCH_SLOTS : 0;
    for (uint64_t position = head; position > lowest && thread->last_count < MU_SEEN_LAST_MAX;) {
        const struct mu_record *record = &ring[--position & (MU_RING_SLOTS - 1)];
        if (record->kind != MU_RECORD_STAGE || record->slots != 1 || record->event != 0 ||
            record->node == 0 || record->end < record->start) {
            continue;
        }
        struct mu_seen_stage *seen = &thread->last[thread->last_count];
        seen->name = mu_strings_get(&image->strings, record->name, &seen->name_length);
        if (seen->name == NULL) {
            continue;
        }
        seen->node = record->node;
        seen->step = record->step;
        seen->start_ns = unix_ns(image, record->start);
        seen->end_ns = unix_ns(image, record->end);
        thread->last_count++;
    }
}

bool mu_journal_image_thread(struct mu_journal_image *image, uint32_t chunk_index,
                             struct mu_seen_thread *thread) {
    memset(thread, 0, sizeof(*thread));
    if (chunk_index >= image->chunk_count) {
        return false;
    }
    const struct mu_chunk_header *chunk = mu_journal_image_chunk(image, chunk_index);
    if (atomic_load(&chunk->state) != MU_CHUNK_OWNED) {
        return false;
    }
    thread->tid = atomic_load(&chunk->tid);
    thread->step = atomic_load(&chunk->step);
    thread->tag = mu_strings_get(&image->strings, atomic_load(&chunk->tag), &thread->tag_length);
    thread->thread_name = mu_strings_get(&image->strings, atomic_load(&chunk->thread_name),
                                         &thread->thread_name_length);
    see_open(image, chunk, thread);
    see_last(image, chunk, thread);
    return true;
}
