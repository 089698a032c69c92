#include "journal_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_TRIES = 8, LAST_SEARCH_SLOTS = 512 };

static const struct mu_chunk_header *chunk_at(const struct mu_journal_image *image,
                                              uint32_t index) {
    return (const struct mu_chunk_header *)(const void *)(image->bytes + MU_CHUNKS_OFFSET +
                                                          (size_t)index * MU_CHUNK_BYTES);
}

static const struct mu_record *ring_of(const struct mu_chunk_header *chunk) {
    return (const struct mu_record *)(const void *)((const uint8_t *)chunk + MU_CHUNK_HEADER_BYTES);
}

static int check_header(const struct mu_journal_header *header, struct mu_error *err) {
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
        }
    }
}

static void load_timeline(struct mu_journal_image *image) {
    mu_timeline_reset(&image->timeline);
    uint32_t count = image->header->anchor_count;
    for (uint32_t i = 0; i < count && i < MU_TIMELINE_ANCHORS; i++) {
        mu_timeline_add(&image->timeline, image->header->anchors[i]);
    }
}

int mu_journal_image_open(struct mu_journal_image *image, const uint8_t *bytes, size_t size,
                          struct mu_error *err) {
    memset(image, 0, sizeof(*image));
    if (size < MU_JOURNAL_HEADER_BYTES) {
        return mu_error_set(err, MU_ERR_FORMAT, "not a journal: only %zu bytes", size);
    }
    const struct mu_journal_header *header = (const void *)bytes;
    int code = check_header(header, err);
    if (code != MU_OK) {
        return code;
    }
    if (size < MU_CHUNKS_OFFSET) {
        return mu_error_set(err, MU_ERR_FORMAT, "the journal is cut short: %zu bytes", size);
    }
    image->bytes = bytes;
    image->size = size;
    image->header = header;
    uint32_t strings = atomic_load_explicit(&header->string_count, memory_order_acquire);
    image->strings.entries = (const void *)(bytes + MU_STRINGS_OFFSET);
    image->strings.blob = (const char *)bytes + MU_BLOB_OFFSET;
    image->strings.blob_bytes = MU_STRING_BLOB_BYTES;
    image->strings.count = strings < MU_STRINGS_MAX ? strings : MU_STRINGS_MAX;
    uint32_t chunks = atomic_load_explicit(&header->chunk_count, memory_order_acquire);
    size_t whole = (size - MU_CHUNKS_OFFSET) / MU_CHUNK_BYTES;
    image->chunk_count = chunks < whole ? chunks : (uint32_t)whole;
    if (image->chunk_count > MU_CHUNKS_MAX) {
        image->chunk_count = MU_CHUNKS_MAX;
    }
    choose_commit(image);
    load_timeline(image);
    return MU_OK;
}

void mu_journal_image_close(struct mu_journal_image *image) {
    free(image->owned);
    memset(image, 0, sizeof(*image));
}

static int read_range(int fd, uint8_t *to, size_t offset, size_t bytes, const char *path,
                      struct mu_error *err) {
    while (bytes > 0) {
        ssize_t got = pread(fd, to + offset, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return mu_error_sys(err, "read journal", path);
        }
        if (got == 0) {
            return mu_error_set(err, MU_ERR_FORMAT, "the journal is cut short: %s", path);
        }
        offset += (size_t)got;
        bytes -= (size_t)got;
    }
    return MU_OK;
}

/* How many bytes of the file are of use; the header has been read. */
static size_t used_bytes(const struct mu_journal_header *header, size_t file_bytes) {
    uint32_t chunks = atomic_load(&header->chunk_count);
    if (chunks > MU_CHUNKS_MAX) {
        chunks = MU_CHUNKS_MAX;
    }
    size_t wanted = MU_CHUNKS_OFFSET + (size_t)chunks * MU_CHUNK_BYTES;
    return wanted < file_bytes ? wanted : file_bytes;
}

static uint64_t newest_epoch(const struct mu_journal_header *header) {
    uint64_t first = atomic_load(&header->commits[0].epoch);
    uint64_t second = atomic_load(&header->commits[1].epoch);
    return first > second ? first : second;
}

/* Reads until no drain fell between the first and the last byte: slots are used again only after
 * a commit. */
static int read_steady(int fd, size_t file_bytes, uint8_t **bytes, size_t *size, const char *path,
                       struct mu_error *err) {
    struct mu_journal_header *header = calloc(1, MU_JOURNAL_HEADER_BYTES);
    int code = header == NULL ? mu_error_no_memory(err, "journal header") : MU_OK;
    for (int i = 0; code == MU_OK && i < READ_TRIES; i++) {
        code = read_range(fd, (uint8_t *)header, 0, MU_JOURNAL_HEADER_BYTES, path, err);
        code = code == MU_OK ? check_header(header, err) : code;
        if (code != MU_OK) {
            break;
        }
        *size = used_bytes(header, file_bytes);
        uint8_t *grown = realloc(*bytes, *size);
        if (grown == NULL) {
            code = mu_error_no_memory(err, "journal");
            break;
        }
        *bytes = grown;
        code = read_range(fd, *bytes, 0, *size, path, err);
        if (code == MU_OK) {
            code = read_range(fd, (uint8_t *)header, 0, MU_JOURNAL_HEADER_BYTES, path, err);
        }
        if (newest_epoch(header) == newest_epoch((const void *)*bytes)) {
            break;
        }
    }
    free(header);
    return code;
}

int mu_journal_image_read(struct mu_journal_image *image, const char *path, struct mu_error *err) {
    memset(image, 0, sizeof(*image));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return mu_error_sys(err, "open journal", path);
    }
    struct stat status;
    uint8_t *bytes = NULL;
    size_t size = 0;
    int code = MU_OK;
    if (fstat(fd, &status) != 0) {
        code = mu_error_sys(err, "stat journal", path);
    } else if (!S_ISREG(status.st_mode) || status.st_size < MU_JOURNAL_HEADER_BYTES) {
        code = mu_error_set(err, MU_ERR_FORMAT, "not a journal: %s", path);
    } else {
        code = read_steady(fd, (size_t)status.st_size, &bytes, &size, path, err);
    }
    close(fd);
    if (code == MU_OK) {
        code = mu_journal_image_open(image, bytes, size, err);
    }
    if (code != MU_OK) {
        free(bytes);
        return code;
    }
    image->owned = bytes;
    return MU_OK;
}

bool mu_journal_is_held(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    bool held = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return held;
}

static const struct mu_chunk_commit *lane_commit(const struct mu_journal_image *image,
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

static void copy_open(const struct mu_chunk_header *chunk, struct mu_lane_view *view) {
    if (atomic_load(&chunk->state) != MU_CHUNK_OWNED) {
        return;
    }
    for (uint32_t i = 0; i < kept_depth(chunk); i++) {
        const struct mu_open_stage *stage = &chunk->open[i];
        view->open[i].node = atomic_load_explicit(&stage->node, memory_order_acquire);
        view->open[i].parent = atomic_load_explicit(&stage->parent, memory_order_relaxed);
        view->open[i].step = atomic_load_explicit(&stage->step, memory_order_relaxed);
        view->open[i].start = atomic_load_explicit(&stage->start, memory_order_relaxed);
        view->open[i].name = atomic_load_explicit(&stage->name, memory_order_relaxed);
    }
}

/* Records whose END rows waited for GPU times when the process ended. */
static void view_held(struct mu_journal_image *image, const struct mu_chunk_commit *commit,
                      uint64_t head, struct mu_lane_view *view, struct mu_recovered *recovered) {
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
            .offset_ns = image->real_offset_ns + image->user_offset_ns,
        };
    }
}

static void view_chunk(struct mu_journal_image *image, uint32_t index, struct mu_lane_view *view,
                       struct mu_recovered *recovered) {
    const struct mu_chunk_header *chunk = chunk_at(image, index);
    const struct mu_chunk_commit *commit = lane_commit(image, chunk);
    uint64_t head = atomic_load_explicit(&chunk->head, memory_order_acquire);
    memset(view, 0, sizeof(*view));
    view->ring = ring_of(chunk);
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
    for (int depth = 0; depth < MU_OPEN_MAX; depth++) {
        recovered->open_stages += view->open[depth].node != 0;
    }
    size_t length = 0;
    const char *tag = mu_strings_get(&image->strings, atomic_load(&chunk->tag), &length);
    view->track_length =
        mu_csv_track_text(view->track, atomic_load(&chunk->tid), tag, tag == NULL ? 0 : length);
}

static uint64_t count_rows(const struct mu_csv_writer *writer) {
    uint64_t rows = 0;
    for (size_t i = 0; i < writer->length; i++) {
        rows += writer->buffer[i] == '\n';
    }
    return rows;
}

int mu_journal_image_rows(struct mu_journal_image *image, struct mu_csv_writer *writer,
                          struct mu_recovered *recovered, struct mu_error *err) {
    memset(recovered, 0, sizeof(*recovered));
    struct mu_rows *rows = malloc(sizeof(*rows));
    struct mu_lane_view *views = calloc(image->chunk_count + 1, sizeof(*views));
    int code = MU_OK;
    if (rows == NULL || views == NULL) {
        code = mu_error_no_memory(err, "recovery");
        goto done;
    }
    char machine[sizeof(image->header->host) + 1] = "";
    memcpy(machine, image->header->host, sizeof(image->header->host));
    mu_csv_writer_set_machine(writer, machine);
    mu_rows_init(rows);
    for (uint32_t i = 0; i < image->chunk_count; i++) {
        view_chunk(image, i, &views[i], recovered);
    }
    struct mu_row_context context = {.strings = image->strings,
                                     .timeline = &image->timeline,
                                     .real_offset_ns = image->real_offset_ns,
                                     .user_offset_ns = image->user_offset_ns};
    code = mu_rows_write(rows, &context, views, image->chunk_count, writer, err);
    recovered->bad_records += rows->bad_records;
    recovered->rows = count_rows(writer);
    mu_rows_free(rows);
done:
    free(rows);
    free(views);
    return code;
}

/* A string of the header, which need not end within its field. */
static void header_text(const char *field, size_t size, char *out) {
    size_t length = strnlen(field, size);
    memcpy(out, field, length);
    out[length] = '\0';
}

static bool exists(const char *path) {
    return access(path, F_OK) == 0;
}

void mu_journal_image_csv_path(const struct mu_journal_image *image, const char *journal_path,
                               char *path, size_t size) {
    char name[sizeof(image->header->csv_name) + 1], directory[sizeof(image->header->log_dir) + 1];
    header_text(image->header->csv_name, sizeof(image->header->csv_name), name);
    header_text(image->header->log_dir, sizeof(image->header->log_dir), directory);
    const char *slash = strrchr(journal_path, '/');
    int beside = slash == NULL ? 0 : (int)(slash - journal_path) + 1;
    int stem = (int)strlen(name) - (int)strlen(".csv");
    if (stem < 0 || strchr(name, '/') != NULL) {
        path[0] = '\0';
        return;
    }
    /* A part that was renamed after the commit keeps what the commit counts. */
    snprintf(path, size, "%.*s%.*s.part%04llu.csv", beside, journal_path, stem, name,
             (unsigned long long)image->csv_part + 1);
    if (!exists(path)) {
        snprintf(path, size, "%.*s%s", beside, journal_path, name);
    }
    if (!exists(path) && directory[0] != '\0') {
        snprintf(path, size, "%s/%.*s.part%04llu.csv", directory, stem, name,
                 (unsigned long long)image->csv_part + 1);
        if (!exists(path)) {
            snprintf(path, size, "%s/%s", directory, name);
        }
    }
}

static int64_t unix_ns(struct mu_journal_image *image, uint64_t ticks) {
    return mu_timeline_mono_ns(&image->timeline, ticks) + image->real_offset_ns +
           image->user_offset_ns;
}

static void see_open(struct mu_journal_image *image, const struct mu_chunk_header *chunk,
                     struct mu_seen_lane *lane) {
    for (uint32_t i = 0; i < kept_depth(chunk); i++) {
        const struct mu_open_stage *stage = &chunk->open[i];
        uint64_t node = atomic_load_explicit(&stage->node, memory_order_acquire);
        if (node == 0) {
            return;
        }
        struct mu_seen_stage *seen = &lane->open[lane->depth++];
        seen->name = mu_strings_get(&image->strings, atomic_load(&stage->name), &seen->name_length);
        seen->node = node;
        seen->step = atomic_load(&stage->step);
        seen->start_ns = unix_ns(image, atomic_load(&stage->start));
    }
}

/* Finished stages are found from the drained end on: a slot's length leads to the next one. */
static void see_last(struct mu_journal_image *image, const struct mu_chunk_header *chunk,
                     struct mu_seen_lane *lane) {
    const struct mu_record *ring = ring_of(chunk);
    uint64_t head = atomic_load_explicit(&chunk->head, memory_order_acquire);
    uint64_t lowest = head > LAST_SEARCH_SLOTS ? head - LAST_SEARCH_SLOTS : 0;
    for (uint64_t position = head; position > lowest && lane->last_count < MU_SEEN_LAST_MAX;) {
        const struct mu_record *record = &ring[--position & (MU_RING_SLOTS - 1)];
        if (record->kind != MU_RECORD_STAGE || record->slots != 1 || record->event != 0) {
            continue;
        }
        struct mu_seen_stage *seen = &lane->last[lane->last_count];
        seen->name = mu_strings_get(&image->strings, record->name, &seen->name_length);
        if (seen->name == NULL) {
            continue;
        }
        seen->node = record->node;
        seen->step = record->step;
        seen->start_ns = unix_ns(image, record->start);
        seen->end_ns = unix_ns(image, record->end);
        lane->last_count++;
    }
}

bool mu_journal_image_lane(struct mu_journal_image *image, uint32_t chunk_index,
                           struct mu_seen_lane *lane) {
    memset(lane, 0, sizeof(*lane));
    if (chunk_index >= image->chunk_count) {
        return false;
    }
    const struct mu_chunk_header *chunk = chunk_at(image, chunk_index);
    if (atomic_load(&chunk->state) != MU_CHUNK_OWNED) {
        return false;
    }
    lane->tid = atomic_load(&chunk->tid);
    lane->step = atomic_load(&chunk->step);
    lane->tag = mu_strings_get(&image->strings, atomic_load(&chunk->tag), &lane->tag_length);
    lane->thread_name = mu_strings_get(&image->strings, atomic_load(&chunk->thread_name),
                                       &lane->thread_name_length);
    see_open(image, chunk, lane);
    see_last(image, chunk, lane);
    return true;
}
