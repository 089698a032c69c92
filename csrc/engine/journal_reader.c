#include "journal_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    READ_TRIES = 8,
    LAST_SEARCH_SLOTS = 512,
    SLOTS_BEING_WRITTEN = 640, /* beyond the head, by a record with the longest metadata */
};

static const struct mu_chunk_header *chunk_at(const struct mu_journal_image *image,
                                              uint32_t index) {
    return (const struct mu_chunk_header *)(const void *)(image->bytes + MU_CHUNKS_OFFSET +
                                                          (size_t)index * MU_CHUNK_BYTES);
}

static const struct mu_record *ring_of(const struct mu_chunk_header *chunk) {
    return (const struct mu_record *)(const void *)((const uint8_t *)chunk + MU_CHUNK_HEADER_BYTES);
}

static int check_header(const struct mu_journal_header *header, struct mu_error *err) {
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
    chunks = chunks < MU_CHUNKS_MAX ? chunks : MU_CHUNKS_MAX;
    size_t whole = (size - MU_CHUNKS_OFFSET) / MU_CHUNK_BYTES;
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

/* A file that is being read into memory. */
struct copy {
    int fd;
    const char *path;
    size_t file_bytes;
    uint8_t *bytes; /* owned */
    size_t size;
    uint32_t chunks;     /* that are whole */
    bool steady;         /* no drain ended while the headers were read */
    uint64_t *positions; /* owned: the heads when reading began, and later on */
    uint64_t *nodes;     /* owned: of the open stages when reading began */
};

static int read_at(const struct copy *copy, void *to, size_t offset, size_t bytes,
                   struct mu_error *err) {
    uint8_t *at = to;
    while (bytes > 0) {
        ssize_t got = pread(copy->fd, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return mu_error_sys(err, "read journal", copy->path);
        }
        if (got == 0) {
            return mu_error_set(err, MU_ERR_FORMAT, "the journal is cut short: %s", copy->path);
        }
        at += got;
        offset += (size_t)got;
        bytes -= (size_t)got;
    }
    return MU_OK;
}

static size_t chunk_offset(uint32_t index) {
    return MU_CHUNKS_OFFSET + (size_t)index * MU_CHUNK_BYTES;
}

static int read_header(struct copy *copy, struct mu_error *err) {
    const struct mu_journal_header *header = (const void *)copy->bytes;
    int code = read_at(copy, copy->bytes, 0, MU_JOURNAL_HEADER_BYTES, err);
    if (code == MU_OK) {
        code = check_header(header, err);
    }
    if (code == MU_OK && copy->file_bytes < MU_CHUNKS_OFFSET) {
        code = mu_error_set(err, MU_ERR_FORMAT, "the journal is cut short: %zu bytes",
                            copy->file_bytes);
    }
    if (code != MU_OK) {
        return code;
    }
    uint32_t chunks = atomic_load(&header->chunk_count);
    size_t whole = (copy->file_bytes - MU_CHUNKS_OFFSET) / MU_CHUNK_BYTES;
    chunks = chunks < MU_CHUNKS_MAX ? chunks : MU_CHUNKS_MAX;
    copy->chunks = chunks < whole ? chunks : (uint32_t)whole;
    copy->size = chunk_offset(copy->chunks);
    uint8_t *grown = realloc(copy->bytes, copy->size);
    if (grown == NULL) {
        return mu_error_no_memory(err, "journal");
    }
    copy->bytes = grown;
    return MU_OK;
}

static int read_chunk_headers(struct copy *copy, struct mu_error *err) {
    int code = MU_OK;
    for (uint32_t i = 0; code == MU_OK && i < copy->chunks; i++) {
        size_t offset = chunk_offset(i);
        code = read_at(copy, copy->bytes + offset, offset, MU_CHUNK_HEADER_BYTES, err);
    }
    return code;
}

static struct mu_chunk_header *copied_chunk(const struct copy *copy, uint32_t index) {
    return (struct mu_chunk_header *)(void *)(copy->bytes + chunk_offset(index));
}

static void keep_heads_and_nodes(struct copy *copy) {
    for (uint32_t i = 0; i < copy->chunks; i++) {
        const struct mu_chunk_header *chunk = copied_chunk(copy, i);
        copy->positions[i] = atomic_load(&chunk->head);
        for (int depth = 0; depth < MU_OPEN_MAX; depth++) {
            copy->nodes[i * MU_OPEN_MAX + depth] = atomic_load(&chunk->open[depth].node);
        }
    }
}

/* The copy in the middle counts: what it says of an open stage is whole when the same stage was
 * there before and after. The ring is used up to the head of before, and known to have reached
 * that of after. */
static void join_copies(struct copy *copy, struct mu_chunk_header *after, uint32_t index) {
    struct mu_chunk_header *chunk = copied_chunk(copy, index);
    uint64_t before = copy->positions[index];
    bool steady = true;
    for (int depth = 0; depth < MU_OPEN_MAX; depth++) {
        uint64_t node = atomic_load(&after->open[depth].node);
        steady = steady && node == copy->nodes[index * MU_OPEN_MAX + depth] &&
                 node == atomic_load(&chunk->open[depth].node);
        if (!steady) {
            atomic_store(&chunk->open[depth].node, 0);
        }
    }
    atomic_store(&chunk->head, before);
    copy->positions[index] = atomic_load(&after->head);
}

/* Three copies of the chunks' headers, between which no drain may end. */
static int read_lanes(struct copy *copy, struct mu_chunk_header *scratch, struct mu_error *err) {
    int code = read_chunk_headers(copy, err);
    if (code == MU_OK) {
        keep_heads_and_nodes(copy);
        code = read_chunk_headers(copy, err);
    }
    for (uint32_t i = 0; code == MU_OK && i < copy->chunks; i++) {
        code = read_at(copy, scratch, chunk_offset(i), MU_CHUNK_HEADER_BYTES, err);
        if (code == MU_OK) {
            join_copies(copy, scratch, i);
        }
    }
    return code;
}

static uint64_t newest_epoch(const struct mu_journal_header *header) {
    uint64_t first = atomic_load(&header->commits[0].epoch);
    uint64_t second = atomic_load(&header->commits[1].epoch);
    return first > second ? first : second;
}

static bool is_same_moment(const struct mu_journal_header *before,
                           const struct mu_journal_header *after) {
    uint32_t version = atomic_load(&before->anchors_version);
    return newest_epoch(before) == newest_epoch(after) &&
           version == atomic_load(&after->anchors_version);
}

/* Reads again while the process drains or appends anchors between the first and the last byte. */
static int read_moment(struct copy *copy, struct mu_error *err) {
    struct mu_chunk_header *scratch = calloc(1, MU_CHUNK_HEADER_BYTES);
    int code = scratch == NULL ? mu_error_no_memory(err, "journal header") : MU_OK;
    copy->steady = false;
    for (int i = 0; code == MU_OK && !copy->steady && i < READ_TRIES; i++) {
        code = read_header(copy, err);
        if (code == MU_OK) {
            code = read_lanes(copy, scratch, err);
        }
        if (code == MU_OK) {
            code = read_at(copy, scratch, 0, MU_JOURNAL_HEADER_BYTES, err);
        }
        copy->steady = is_same_moment((const void *)copy->bytes, (const void *)scratch);
    }
    free(scratch);
    return code;
}

/* The strings in use; the table and the bytes behind them are mostly empty. */
static int read_strings(struct copy *copy, struct mu_error *err) {
    struct mu_journal_header *header = (void *)copy->bytes;
    struct mu_string_entry *entries = (void *)(copy->bytes + MU_STRINGS_OFFSET);
    size_t offset = offsetof(struct mu_journal_header, string_count), used = 0;
    int code = read_at(copy, &header->string_count, offset, sizeof(header->string_count), err);
    uint32_t count = atomic_load(&header->string_count);
    count = count < MU_STRINGS_MAX ? count : MU_STRINGS_MAX;
    if (code == MU_OK) {
        code = read_at(copy, entries, MU_STRINGS_OFFSET, count * sizeof(*entries), err);
    }
    for (uint32_t i = 0; code == MU_OK && i < count; i++) {
        size_t end = (size_t)entries[i].offset + entries[i].length;
        used = end > used && end <= MU_STRING_BLOB_BYTES ? end : used;
    }
    return code == MU_OK ? read_at(copy, copy->bytes + MU_BLOB_OFFSET, MU_BLOB_OFFSET, used, err)
                         : code;
}

/* Rings and strings hold all that the headers speak of, unless a ring was overrun since. */
static int read_contents(struct copy *copy, struct mu_error *err) {
    int code = MU_OK;
    for (uint32_t i = 0; code == MU_OK && i < copy->chunks; i++) {
        size_t offset = chunk_offset(i) + MU_CHUNK_HEADER_BYTES;
        code = read_at(copy, copy->bytes + offset, offset, MU_CHUNK_BYTES - MU_CHUNK_HEADER_BYTES,
                       err);
    }
    return code == MU_OK ? read_strings(copy, err) : code;
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

/* The oldest slot that rows are made of. */
static uint64_t first_needed(const struct mu_chunk_commit *commit) {
    uint16_t held = 0;
    if (commit == NULL) {
        return 0;
    }
    for (uint64_t i = 0; i < commit->held_count && i < MU_HELD_MAX; i++) {
        held = commit->held[i] > held ? commit->held[i] : held;
    }
    return held < commit->drained ? commit->drained - held : 0;
}

static int look_for_overrun(const struct copy *copy, struct mu_journal_image *image,
                            struct mu_error *err) {
    int code = MU_OK;
    image->overrun = !copy->steady;
    for (uint32_t i = 0; code == MU_OK && i < image->chunk_count; i++) {
        uint64_t needed = first_needed(lane_commit(image, chunk_at(image, i))), head;
        code = read_at(copy, &head, chunk_offset(i) + offsetof(struct mu_chunk_header, head),
                       sizeof(head), err);
        image->overrun = image->overrun || (head > copy->positions[i] && head > needed &&
                                            head - needed > MU_RING_SLOTS - SLOTS_BEING_WRITTEN);
    }
    return code;
}

static int read_image(struct copy *copy, struct mu_journal_image *image, struct mu_error *err) {
    int code = MU_OK;
    for (int i = 0; code == MU_OK && i < READ_TRIES; i++) {
        code = read_moment(copy, err);
        if (code == MU_OK) {
            code = read_contents(copy, err);
        }
        if (code == MU_OK) {
            code = mu_journal_image_open(image, copy->bytes, copy->size, err);
        }
        if (code == MU_OK) {
            code = look_for_overrun(copy, image, err);
        }
        if (!image->overrun) {
            break;
        }
    }
    return code;
}

static int allocate_copy(struct copy *copy, struct mu_error *err) {
    copy->bytes = calloc(1, MU_JOURNAL_HEADER_BYTES);
    copy->positions = calloc(MU_CHUNKS_MAX, sizeof(*copy->positions));
    copy->nodes = calloc((size_t)MU_CHUNKS_MAX * MU_OPEN_MAX, sizeof(*copy->nodes));
    if (copy->bytes == NULL || copy->positions == NULL || copy->nodes == NULL) {
        return mu_error_no_memory(err, "journal");
    }
    return MU_OK;
}

/* Does not wait for a writer when the path names a FIFO. */
static int open_file(const char *path) {
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

int mu_journal_image_read(struct mu_journal_image *image, const char *path, struct mu_error *err) {
    memset(image, 0, sizeof(*image));
    struct copy copy = {.fd = open_file(path), .path = path};
    if (copy.fd < 0) {
        return mu_error_sys(err, "open journal", path);
    }
    struct stat status;
    int code = MU_OK;
    if (fstat(copy.fd, &status) != 0) {
        code = mu_error_sys(err, "stat journal", path);
    } else if (!S_ISREG(status.st_mode) || status.st_size < MU_JOURNAL_HEADER_BYTES) {
        code = mu_error_set(err, MU_ERR_FORMAT, "not a journal: %s", path);
    } else {
        copy.file_bytes = (size_t)status.st_size;
        code = allocate_copy(&copy, err);
    }
    if (code == MU_OK) {
        code = read_image(&copy, image, err);
    }
    close(copy.fd);
    free(copy.nodes);
    if (code != MU_OK) {
        free(copy.bytes);
        free(copy.positions);
        memset(image, 0, sizeof(*image));
        return code;
    }
    image->owned = copy.bytes;
    image->later_heads = copy.positions;
    return MU_OK;
}

bool mu_journal_is_held(const char *path) {
    int fd = open_file(path);
    if (fd < 0) {
        return false;
    }
    bool held = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return held;
}

static uint32_t kept_depth(const struct mu_chunk_header *chunk) {
    uint32_t depth = atomic_load_explicit(&chunk->depth, memory_order_acquire);
    return depth < MU_OPEN_MAX ? depth : MU_OPEN_MAX;
}

/* False for a slot that changes under the reader: the deeper ones are newer still. */
static bool load_open(const struct mu_open_stage *stage, struct mu_open_view *open) {
    struct mu_open_view seen = {
        .node = atomic_load_explicit(&stage->node, memory_order_acquire),
        .parent = atomic_load_explicit(&stage->parent, memory_order_acquire),
        .step = atomic_load_explicit(&stage->step, memory_order_acquire),
        .start = atomic_load_explicit(&stage->start, memory_order_acquire),
        .name = atomic_load_explicit(&stage->name, memory_order_acquire),
    };
    if (seen.node == 0 || atomic_load_explicit(&stage->node, memory_order_relaxed) != seen.node) {
        return false;
    }
    *open = seen;
    return true;
}

static void copy_open(const struct mu_chunk_header *chunk, struct mu_lane_view *view) {
    if (atomic_load(&chunk->state) != MU_CHUNK_OWNED) {
        return;
    }
    for (uint32_t i = 0; i < kept_depth(chunk); i++) {
        if (!load_open(&chunk->open[i], &view->open[i])) {
            return;
        }
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
            .offset_ns = mu_clock_add(image->real_offset_ns, image->user_offset_ns),
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
    uint64_t later = image->later_heads == NULL ? head : image->later_heads[index];
    if (view->to == head && later > head && later - view->from <= MU_RING_SLOTS) {
        mu_lane_view_cut_open(view, later);
    }
    size_t length = 0;
    const char *tag = mu_strings_get(&image->strings, atomic_load(&chunk->tag), &length);
    view->track_length =
        mu_csv_track_text(view->track, atomic_load(&chunk->tid), tag, tag == NULL ? 0 : length);
}

uint64_t mu_journal_image_dropped(const struct mu_journal_image *image) {
    uint64_t dropped = atomic_load(&image->header->dropped);
    for (uint32_t i = 0; i < image->chunk_count; i++) {
        dropped += atomic_load(&chunk_at(image, i)->dropped);
    }
    return dropped;
}

static uint64_t count_rows(const struct mu_csv_writer *writer) {
    uint64_t rows = 0;
    for (size_t i = 0; i < writer->length; i++) {
        rows += writer->buffer[i] == '\n';
    }
    return rows;
}

/* Of views that were written: those that ended are not among the open ones any more. */
static uint64_t count_open(const struct mu_lane_view *views, uint32_t view_count) {
    uint64_t open = 0;
    for (uint32_t i = 0; i < view_count; i++) {
        for (int depth = 0; depth < MU_OPEN_MAX; depth++) {
            open += views[i].open[depth].node != 0;
        }
    }
    return open;
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
    recovered->open_stages = count_open(views, image->chunk_count);
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
    if (stem <= 0 || strcmp(name + stem, ".csv") != 0 || strchr(name, '/') != NULL) {
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

static int read_csv(int fd, char *to, size_t bytes, uint64_t offset, size_t *got,
                    struct mu_error *err) {
    ssize_t n;
    do {
        n = pread(fd, to, bytes, (off_t)offset);
    } while (n < 0 && errno == EINTR);
    *got = n < 0 ? 0 : (size_t)n;
    return n < 0 ? mu_error_sys(err, "read", "the profile CSV") : MU_OK;
}

/* Whether a process has begun to write at or after `offset`: its first row says so. */
static int finds_process_row(int fd, uint64_t offset, bool *found, struct mu_error *err) {
    static const char row[] = ",my_utils.process,INSTANT,";
    enum { BLOCK = 64 * 1024, LAP = sizeof(row) - 2 };
    char *block = malloc(BLOCK);
    if (block == NULL) {
        return mu_error_no_memory(err, "block of the CSV");
    }
    *found = false;
    int code;
    size_t got;
    do {
        code = read_csv(fd, block, BLOCK, offset, &got, err);
        *found = memmem(block, got, row, sizeof(row) - 1) != NULL;
        offset += got > LAP ? got - LAP : got;
    } while (code == MU_OK && !*found && got > LAP);
    free(block);
    return code;
}

int mu_journal_image_csv_prefix(const struct mu_journal_image *image, int csv_fd, uint64_t *bytes,
                                struct mu_error *err) {
    struct stat status;
    char last = '\0';
    size_t got;
    bool other = false;
    if (fstat(csv_fd, &status) != 0) {
        return mu_error_sys(err, "stat", "the profile CSV");
    }
    *bytes = (uint64_t)status.st_size;
    if (image->csv_bytes < mu_csv_header_length || image->csv_bytes > *bytes) {
        return MU_OK;
    }
    int code = read_csv(csv_fd, &last, 1, image->csv_bytes - 1, &got, err);
    if (code == MU_OK && last == '\n') {
        code = finds_process_row(csv_fd, image->csv_bytes, &other, err);
    }
    if (code == MU_OK && last == '\n' && !other) {
        *bytes = image->csv_bytes;
    }
    return code;
}

static int64_t unix_ns(struct mu_journal_image *image, uint64_t ticks) {
    int64_t mono = mu_timeline_mono_ns(&image->timeline, ticks);
    return mu_clock_add(mu_clock_add(mono, image->real_offset_ns), image->user_offset_ns);
}

static void see_open(struct mu_journal_image *image, const struct mu_chunk_header *chunk,
                     struct mu_seen_lane *lane) {
    for (uint32_t i = 0; i < kept_depth(chunk); i++) {
        struct mu_open_view open;
        if (!load_open(&chunk->open[i], &open)) {
            return;
        }
        struct mu_seen_stage *seen = &lane->open[lane->depth++];
        seen->name = mu_strings_get(&image->strings, open.name, &seen->name_length);
        seen->node = open.node;
        seen->step = open.step;
        seen->start_ns = unix_ns(image, open.start);
    }
}

/* Goes back from the newest slot, also over those that are in the CSV already. Lengths lead only
 * forward, so a slot counts when it looks like the record of a stage. */
static void see_last(struct mu_journal_image *image, const struct mu_chunk_header *chunk,
                     struct mu_seen_lane *lane) {
    const struct mu_record *ring = ring_of(chunk);
    uint64_t head = atomic_load_explicit(&chunk->head, memory_order_acquire);
    uint64_t lowest = head > LAST_SEARCH_SLOTS ? head - LAST_SEARCH_SLOTS : 0;
    for (uint64_t position = head; position > lowest && lane->last_count < MU_SEEN_LAST_MAX;) {
        const struct mu_record *record = &ring[--position & (MU_RING_SLOTS - 1)];
        if (record->kind != MU_RECORD_STAGE || record->slots != 1 || record->event != 0 ||
            record->node == 0 || record->end < record->start) {
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
