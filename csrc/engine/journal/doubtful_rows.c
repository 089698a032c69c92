#include "journal/doubtful_rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/event.h"
#include "journal/journal_image.h"

enum { KNOWN_FLAGS = 31, PAGE_BYTES = 4096, EMPTY_MAX = 2 };

_Static_assert(MU_BLOB_OFFSET % PAGE_BYTES == 0, "pages of the strings begin where they do");

static const struct mu_record *slot_at(const struct mu_chunk_header *chunk, uint64_t position) {
    return mu_journal_image_ring(chunk) + (position & (MU_RING_SLOTS - 1));
}

/* A drain writes the commits of the threads for the coming epoch, and then the epoch: at most one
 * of the two may be ahead, by one. After that it moves the tail up to what is drained. */
static bool is_mixed_chunk(const struct mu_journal_image *image,
                           const struct mu_chunk_header *chunk) {
    uint64_t first = atomic_load(&chunk->commits[0].epoch);
    uint64_t second = atomic_load(&chunk->commits[1].epoch);
    uint64_t low = first < second ? first : second, high = first < second ? second : first;
    uint64_t head = atomic_load(&chunk->head);
    const struct mu_chunk_commit *commit = mu_journal_chunk_commit(image, chunk);
    uint64_t drained = commit == NULL ? 0 : commit->drained;
    return low > image->epoch || high > image->epoch + 1 || head < drained ||
           head - drained > MU_RING_SLOTS || atomic_load(&chunk->tail) > drained;
}

/* Each byte of a string is written once, behind those before it: of an older page the last bytes
 * are zeros. */
static bool has_older_page(const char *text, size_t length) {
    bool older = length > 0 && text[length - 1] == '\0';
    for (size_t end = PAGE_BYTES; end < length; end += PAGE_BYTES) {
        older = older || text[end - 1] == '\0';
    }
    return older;
}

/* The strings follow one another, and few are empty. A page of their entries or of their bytes that
 * is older than their count lacks some. */
static bool has_mixed_strings(const struct mu_strings *strings) {
    uint32_t count = atomic_load(strings->count);
    size_t end = 0;
    bool mixed = count > MU_STRINGS_MAX;
    for (uint32_t i = 0; !mixed && i < count; i++) {
        mixed = strings->entries[i].offset != end;
        end += strings->entries[i].length;
        mixed = mixed || end > strings->blob_bytes;
    }
    return mixed || (count > EMPTY_MAX && end == 0) || has_older_page(strings->blob, end);
}

bool mu_journal_image_is_mixed(const struct mu_journal_image *image) {
    bool mixed = image->missing_chunks > 0 || has_mixed_strings(&image->strings);
    for (uint32_t i = 0; i < image->chunk_count; i++) {
        mixed = mixed || is_mixed_chunk(image, mu_journal_image_chunk(image, i));
    }
    return mixed;
}

static uint64_t ticks_of(const struct mu_record *record) {
    return record->kind == MU_RECORD_STAGE ? record->end : record->start;
}

/* The record may have been written when its page went to the disk. Whatever was stored after the
 * names and numbers shows that: the times are the last ones. */
static bool is_record(const struct mu_record *record) {
    bool has_payload = record->kind == MU_RECORD_EVENT || record->flags & MU_RECORD_INLINE_NAME;
    if (record->flags > KNOWN_FLAGS || has_payload != (record->slots > 1) || record->slots == 0 ||
        record->slots > MU_RING_SLOTS) {
        return false;
    }
    if (record->kind == MU_RECORD_EVENT) {
        return mu_event_name(record->event) != NULL && record->start != 0;
    }
    return record->kind == MU_RECORD_STAGE && record->event == 0 && record->node != 0 &&
           record->start != 0 && record->end >= record->start && record->parent < record->node &&
           (record->depth < MU_OPEN_MAX || record->depth == MU_DEPTH_UNKEPT);
}

/* Copies the payload to `text`, in one piece. */
MU_MUST_CHECK static bool has_whole_payload(const struct mu_chunk_header *chunk, uint64_t position,
                                            char *text) {
    const struct mu_record *record = slot_at(chunk, position);
    struct mu_record_payload payload;
    size_t bytes = (record->slots - 1u) * (size_t)MU_SLOT_BYTES;
    for (size_t i = 1; i < record->slots; i++) {
        memcpy(text + (i - 1) * MU_SLOT_BYTES, slot_at(chunk, position + i), MU_SLOT_BYTES);
    }
    memcpy(&payload, text, sizeof(payload));
    size_t left = bytes - sizeof(payload);
    if (payload.name_bytes > left || payload.metadata_bytes > left - payload.name_bytes) {
        return false;
    }
    const char *name = text + sizeof(payload);
    return record->check == mu_payload_check(name, payload.name_bytes, name + payload.name_bytes,
                                             payload.metadata_bytes);
}

/* The records of a ring, in the order of their ends. */
struct gathered {
    struct mu_record *ring; /* owned: MU_RING_SLOTS */
    uint64_t *positions;    /* owned: as many, where they were */
    bool *behind;           /* owned: as many; it follows a newer record */
    char *text;             /* owned: as many slots */
    size_t count;
};

static void gathered_free(struct gathered *gathered) {
    free(gathered->ring);
    free(gathered->positions);
    free(gathered->behind);
    free(gathered->text);
    memset(gathered, 0, sizeof(*gathered));
}

MU_MUST_CHECK static int gathered_init(struct gathered *gathered, struct mu_error *err) {
    gathered->count = 0;
    gathered->ring = calloc(MU_RING_SLOTS, MU_SLOT_BYTES);
    gathered->positions = calloc(MU_RING_SLOTS, sizeof(*gathered->positions));
    gathered->behind = calloc(MU_RING_SLOTS, sizeof(*gathered->behind));
    gathered->text = malloc((size_t)MU_RING_SLOTS * MU_SLOT_BYTES);
    if (gathered->ring == NULL || gathered->positions == NULL || gathered->behind == NULL ||
        gathered->text == NULL) {
        gathered_free(gathered);
        return mu_error_no_memory(err, "records of a journal");
    }
    return MU_OK;
}

static void find_whole_records(const struct mu_chunk_header *chunk, struct gathered *gathered) {
    const struct mu_record *last = slot_at(chunk, MU_RING_SLOTS - 1);
    /* The end of the record before. */
    uint64_t before = is_record(last) && last->slots == 1 ? ticks_of(last) : 0;
    for (uint64_t position = 0; position < MU_RING_SLOTS;) {
        const struct mu_record *record = slot_at(chunk, position);
        bool whole = is_record(record) &&
                     (record->slots == 1 || has_whole_payload(chunk, position, gathered->text));
        if (whole) {
            gathered->behind[gathered->count] = ticks_of(record) < before;
            gathered->positions[gathered->count++] = position;
        }
        before = whole ? ticks_of(record) : 0;
        position += whole ? record->slots : 1;
    }
}

struct by_ticks {
    uint64_t ticks, position;
};

static int compare_ticks(const void *a, const void *b) {
    const struct by_ticks *left = a, *right = b;
    if (left->ticks != right->ticks) {
        return left->ticks < right->ticks ? -1 : 1;
    }
    return (left->position > right->position) - (left->position < right->position);
}

/* One record after the other into a ring that has never gone round: those that are behind, or the
 * others. */
MU_MUST_CHECK static int put_in_order(const struct mu_chunk_header *chunk,
                                      struct gathered *gathered, bool behind, uint64_t *used,
                                      struct mu_error *err) {
    struct by_ticks *order = malloc((gathered->count + 1) * sizeof(*order));
    if (order == NULL) {
        return mu_error_no_memory(err, "records of a journal");
    }
    size_t count = 0;
    for (size_t i = 0; i < gathered->count; i++) {
        uint64_t position = gathered->positions[i];
        if (gathered->behind[i] == behind) {
            order[count++] = (struct by_ticks){ticks_of(slot_at(chunk, position)), position};
        }
    }
    qsort(order, count, sizeof(*order), compare_ticks);
    *used = 0;
    for (size_t i = 0; i < count; i++) {
        uint16_t slots = slot_at(chunk, order[i].position)->slots;
        for (uint64_t slot = 0; slot < slots && *used < MU_RING_SLOTS; slot++) {
            gathered->ring[(*used)++] = *slot_at(chunk, order[i].position + slot);
        }
    }
    free(order);
    return MU_OK;
}

/* Slots that the newest commit leaves to be drained, and that hold no whole record. */
static uint64_t count_unproven(const struct mu_chunk_header *chunk,
                               const struct gathered *gathered) {
    uint64_t head = atomic_load(&chunk->head), drained = 0, covered = 0;
    for (int i = 0; i < 2; i++) {
        bool newer =
            atomic_load(&chunk->commits[i].epoch) != 0 && chunk->commits[i].drained > drained;
        drained = newer ? chunk->commits[i].drained : drained;
    }
    if (head <= drained || head - drained > MU_RING_SLOTS) {
        return 0;
    }
    uint64_t begin = drained & (MU_RING_SLOTS - 1), slots = head - drained;
    for (size_t i = 0; i < gathered->count; i++) {
        uint64_t after = (gathered->positions[i] - begin) & (MU_RING_SLOTS - 1);
        covered += after < slots ? slot_at(chunk, gathered->positions[i])->slots : 0;
    }
    return covered < slots ? slots - covered : 0;
}

static void view_open(const struct mu_chunk_header *chunk, struct mu_buffer_view *view) {
    uint32_t depth = atomic_load(&chunk->depth);
    if (atomic_load(&chunk->state) != MU_CHUNK_OWNED) {
        return;
    }
    for (uint32_t i = 0; i < depth && i < MU_OPEN_MAX; i++) {
        struct mu_open_view *open = &view->open[i];
        if (!mu_open_view_load(open, &chunk->open[i]) || open->start == 0 ||
            open->parent >= open->node) {
            open->node = 0;
        }
    }
}

MU_MUST_CHECK static int view_chunk(const struct mu_journal_image *image, uint32_t index,
                                    bool behind, struct gathered *gathered,
                                    struct mu_buffer_view *view, uint64_t *unproven,
                                    struct mu_error *err) {
    const struct mu_chunk_header *chunk = mu_journal_image_chunk(image, index);
    int code = gathered_init(gathered, err);
    if (code != MU_OK) {
        return code;
    }
    find_whole_records(chunk, gathered);
    if (!behind) {
        *unproven += count_unproven(chunk, gathered);
        view_open(chunk, view);
    }
    code = put_in_order(chunk, gathered, behind, &view->to, err);
    if (view->to == 0) {
        gathered_free(gathered);
    }
    view->ring = gathered->ring;
    size_t length = 0;
    const char *tag = mu_strings_get(&image->strings, atomic_load(&chunk->tag), &length);
    view->track_length =
        mu_csv_track_text(view->track, atomic_load(&chunk->tid), tag, tag == NULL ? 0 : length);
    return code;
}

/* Each anchor was true once, so that those that follow one another are a timeline. */
static void load_timeline(const struct mu_anchor_set *set, struct mu_timeline *timeline) {
    mu_timeline_reset(timeline);
    for (uint32_t i = 0; i < set->count && i < MU_TIMELINE_ANCHORS; i++) {
        if (set->anchors[i].ticks != 0 && set->anchors[i].mono_ns != 0) {
            mu_timeline_add(timeline, set->anchors[i]);
        }
    }
}

static int64_t last_anchor_ns(const struct mu_timeline *timeline) {
    const struct mu_anchor *newest = mu_timeline_newest(timeline);
    return newest == NULL ? INT64_MIN : newest->mono_ns;
}

/* The newest anchors, and the clock's offset where no commit says it. False when there is none: no
 * record has a time then. */
MU_MUST_CHECK static bool find_time(struct mu_journal_image *image) {
    struct mu_timeline other;
    load_timeline(&image->header->anchor_sets[0], &image->timeline);
    load_timeline(&image->header->anchor_sets[1], &other);
    if (last_anchor_ns(&other) > last_anchor_ns(&image->timeline)) {
        image->timeline = other;
    }
    const struct mu_anchor *newest = mu_timeline_newest(&image->timeline);
    if (newest != NULL && image->real_offset_ns == 0) {
        image->real_offset_ns = mu_clock_add(newest->real_ns, -newest->mono_ns);
    }
    return newest != NULL;
}

MU_MUST_CHECK static int write_views(struct mu_journal_image *image, struct mu_buffer_view *views,
                                     struct mu_csv_writer *writer, uint64_t *unproven,
                                     struct mu_error *err) {
    struct mu_rows *rows = malloc(sizeof(*rows));
    if (rows == NULL) {
        return mu_error_no_memory(err, "recovery");
    }
    struct mu_row_context context = {.strings = image->strings,
                                     .timeline = &image->timeline,
                                     .real_offset_ns = image->real_offset_ns,
                                     .user_offset_ns = image->user_offset_ns};
    mu_rows_init(rows);
    int code = mu_rows_write(rows, &context, views, image->chunk_count, writer, err);
    *unproven += rows->bad_records;
    mu_rows_free(rows);
    free(rows);
    return code;
}

MU_MUST_CHECK static int write_rows(struct mu_journal_image *image, bool behind,
                                    struct mu_csv_writer *writer, uint64_t *unproven,
                                    struct mu_error *err) {
    struct gathered *gathered = calloc(image->chunk_count + 1, sizeof(*gathered));
    struct mu_buffer_view *views = calloc(image->chunk_count + 1, sizeof(*views));
    int code = gathered == NULL || views == NULL ? mu_error_no_memory(err, "recovery") : MU_OK;
    bool timed = find_time(image);
    for (uint32_t i = 0; code == MU_OK && i < image->chunk_count; i++) {
        code = view_chunk(image, i, behind, &gathered[i], &views[i], unproven, err);
        if (!timed) {
            *unproven += views[i].to;
        }
    }
    if (code == MU_OK && timed) {
        mu_journal_image_set_machine(image, writer);
        code = write_views(image, views, writer, unproven, err);
    }
    for (uint32_t i = 0; gathered != NULL && i < image->chunk_count; i++) {
        gathered_free(&gathered[i]);
    }
    free(gathered);
    free(views);
    return code;
}

int mu_doubtful_rows(struct mu_journal_image *image, struct mu_csv_writer *writer,
                     uint64_t *unproven, struct mu_error *err) {
    *unproven = image->missing_chunks;
    return write_rows(image, false, writer, unproven, err);
}

int mu_doubtful_rows_behind(struct mu_journal_image *image, struct mu_csv_writer *writer,
                            uint64_t *unproven, struct mu_error *err) {
    return write_rows(image, true, writer, unproven, err);
}
