/* Reading a journal's file into memory while its process goes on writing. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_lock.h"
#include "base/own_files.h"
#include "base/process.h"
#include "base/read_at.h"
#include "journal/journal_image.h"
#include "journal/journal_reader.h"

enum {
    READ_TRIES = 8,
    SLOTS_BEING_WRITTEN = 640, /* beyond the head, by a record with the longest metadata */
};

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

MU_MUST_CHECK static int read_at(const struct copy *copy, void *to, size_t offset, size_t bytes,
                                 struct mu_error *err) {
    ssize_t got = mu_read_at(copy->fd, to, bytes, offset);
    if (got < 0) {
        return mu_error_sys(err, "read journal", copy->path);
    }
    return (size_t)got == bytes
               ? MU_OK
               : mu_error_set(err, MU_ERR_FORMAT, "the journal is cut short: %s", copy->path);
}

/* Does not wait for a writer when the path names a FIFO. */
static int open_file(const char *path) {
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

/* The header of a file that is a journal; NULL of any other, and of -1. The caller frees it. Closes
 * the file. */
static struct mu_journal_header *header_of(int fd) {
    if (fd < 0) {
        return NULL;
    }
    struct mu_journal_header *header = malloc(sizeof(*header));
    if (header != NULL && (mu_read_at(fd, header, sizeof(*header), 0) != (ssize_t)sizeof(*header) ||
                           mu_journal_check_header(header, NULL) != MU_OK)) {
        free(header);
        header = NULL;
    }
    close(fd);
    return header;
}

static bool is_regular(const char *path) {
    struct stat status;
    return lstat(path, &status) == 0 && S_ISREG(status.st_mode);
}

/* The same by a path that a journal gives; NULL of no path. Others may have written that journal,
 * and merely to open a device can do harm. */
static struct mu_journal_header *header_at(const char path[MU_JOURNAL_PATH_BYTES]) {
    bool given = path[0] != '\0' && memchr(path, '\0', MU_JOURNAL_PATH_BYTES) != NULL;
    return header_of(given && is_regular(path) ? mu_open_regular(path, O_RDONLY, 0) : -1);
}

static bool is_same_process(const struct mu_journal_header *a, const struct mu_journal_header *b) {
    return a->pid == b->pid && a->process_start == b->process_start &&
           memcmp(a->boot_id, b->boot_id, sizeof(a->boot_id)) == 0;
}

bool mu_journal_is_of_other_boot(const struct mu_journal_header *header) {
    char own[MU_BOOT_ID_BYTES];
    mu_boot_id(own);
    return own[0] != '\0' && header->boot_id[0] != '\0' &&
           strncmp(own, header->boot_id, sizeof(header->boot_id)) != 0;
}

static bool goes_on_elsewhere(const struct mu_journal_header *header) {
    struct mu_journal_header *next = header_at(header->moved_to);
    bool moved = next != NULL && is_same_process(header, next);
    free(next);
    return moved;
}

bool mu_journal_has_moved(const char *path) {
    struct mu_journal_header *header = header_of(open_file(path));
    bool moved = header != NULL && goes_on_elsewhere(header);
    free(header);
    return moved;
}

static bool is_same_file(const char *a, const char *b) {
    struct stat left, right;
    return stat(a, &left) == 0 && stat(b, &right) == 0 && left.st_ino == right.st_ino &&
           left.st_dev == right.st_dev;
}

void mu_journal_remove_left(const struct mu_journal_image *image, const char *path,
                            uid_t (*user_of)(const char *path)) {
    const char *from = image->header->moved_from;
    struct mu_journal_header *left = header_at(from);
    if (left != NULL && is_same_process(left, image->header) &&
        memchr(left->moved_to, '\0', sizeof(left->moved_to)) != NULL &&
        is_same_file(left->moved_to, path) && !mu_journal_is_held(from)) {
        int fd = mu_open_own(from, O_RDONLY, 0, user_of(from));
        if (fd >= 0) {
            unlink(from);
            close(fd);
        }
    }
    free(left);
}

static size_t chunk_offset(uint32_t index) {
    return MU_CHUNKS_OFFSET + (size_t)index * MU_CHUNK_BYTES;
}

MU_MUST_CHECK static int read_header(struct copy *copy, struct mu_error *err) {
    const struct mu_journal_header *header = (const void *)copy->bytes;
    int code = read_at(copy, copy->bytes, 0, MU_JOURNAL_HEADER_BYTES, err);
    if (code == MU_OK) {
        code = mu_journal_check_header(header, err);
    }
    if (code == MU_OK && goes_on_elsewhere(header)) {
        code = mu_error_set(err, MU_ERR_FORMAT, "the journal has moved to %s", header->moved_to);
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

MU_MUST_CHECK static int read_chunk_headers(struct copy *copy, struct mu_error *err) {
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

/* The middle copy is used. Its entry for an open stage is complete when the copies before and after
 * have the same stage. The ring is used up to the head of the first copy; it has reached at least
 * the head of the last one. */
static void join_copies(struct copy *copy, struct mu_chunk_header *after, uint32_t index) {
    struct mu_chunk_header *chunk = copied_chunk(copy, index);
    uint64_t before = copy->positions[index];
    for (int depth = 0; depth < MU_OPEN_MAX; depth++) {
        uint64_t node = atomic_load(&after->open[depth].node);
        bool steady = node == copy->nodes[index * MU_OPEN_MAX + depth] &&
                      node == atomic_load(&chunk->open[depth].node);
        if (!steady) {
            atomic_store(&chunk->open[depth].node, 0);
        }
    }
    atomic_store(&chunk->head, before);
    copy->positions[index] = atomic_load(&after->head);
}

/* Three copies of the chunks' headers, between which no drain may end. */
MU_MUST_CHECK static int read_chunks(struct copy *copy, struct mu_chunk_header *scratch,
                                     struct mu_error *err) {
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

/* Reads again when the process drained or appended anchors during the read. */
MU_MUST_CHECK static int read_moment(struct copy *copy, struct mu_error *err) {
    struct mu_chunk_header *scratch = calloc(1, MU_CHUNK_HEADER_BYTES);
    int code = scratch == NULL ? mu_error_no_memory(err, "journal header") : MU_OK;
    copy->steady = false;
    for (int i = 0; code == MU_OK && !copy->steady && i < READ_TRIES; i++) {
        code = read_header(copy, err);
        if (code == MU_OK) {
            code = read_chunks(copy, scratch, err);
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
MU_MUST_CHECK static int read_strings(struct copy *copy, struct mu_error *err) {
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

/* Rings and strings hold everything that the headers refer to, unless a ring was overrun since. */
MU_MUST_CHECK static int read_contents(struct copy *copy, struct mu_error *err) {
    int code = MU_OK;
    for (uint32_t i = 0; code == MU_OK && i < copy->chunks; i++) {
        size_t offset = chunk_offset(i) + MU_CHUNK_HEADER_BYTES;
        code = read_at(copy, copy->bytes + offset, offset, MU_CHUNK_BYTES - MU_CHUNK_HEADER_BYTES,
                       err);
    }
    return code == MU_OK ? read_strings(copy, err) : code;
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

MU_MUST_CHECK static int find_overrun(const struct copy *copy, struct mu_journal_image *image,
                                      struct mu_error *err) {
    int code = MU_OK;
    image->overrun = !copy->steady;
    for (uint32_t i = 0; code == MU_OK && i < image->chunk_count; i++) {
        uint64_t needed =
                     first_needed(mu_journal_chunk_commit(image, mu_journal_image_chunk(image, i))),
                 head;
        code = read_at(copy, &head, chunk_offset(i) + offsetof(struct mu_chunk_header, head),
                       sizeof(head), err);
        image->overrun = image->overrun || (head > copy->positions[i] && head > needed &&
                                            head - needed > MU_RING_SLOTS - SLOTS_BEING_WRITTEN);
    }
    return code;
}

MU_MUST_CHECK static int read_image(struct copy *copy, struct mu_journal_image *image,
                                    struct mu_error *err) {
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
            code = find_overrun(copy, image, err);
        }
        if (!image->overrun) {
            break;
        }
    }
    return code;
}

MU_MUST_CHECK static int allocate_copy(struct copy *copy, struct mu_error *err) {
    copy->bytes = calloc(1, MU_JOURNAL_HEADER_BYTES);
    copy->positions = calloc(MU_CHUNKS_MAX, sizeof(*copy->positions));
    copy->nodes = calloc((size_t)MU_CHUNKS_MAX * MU_OPEN_MAX, sizeof(*copy->nodes));
    if (copy->bytes == NULL || copy->positions == NULL || copy->nodes == NULL) {
        return mu_error_no_memory(err, "journal");
    }
    return MU_OK;
}

/* Most of the file are holes, which stay zeros in memory. */
MU_MUST_CHECK static int read_data(const struct copy *copy, struct mu_error *err) {
    int code = MU_OK;
    for (size_t at = 0; code == MU_OK && at < copy->size;) {
        off_t data = lseek(copy->fd, (off_t)at, SEEK_DATA);
        if (data < 0 && errno == ENXIO) {
            break;
        }
        size_t from = data < 0 ? at : (size_t)data;
        off_t hole = lseek(copy->fd, (off_t)from, SEEK_HOLE);
        at = hole < 0 || (size_t)hole > copy->size ? copy->size : (size_t)hole;
        code = from < at ? read_at(copy, copy->bytes + from, from, at - from, err) : MU_OK;
    }
    return code;
}

/* The file in one piece. */
MU_MUST_CHECK static int read_whole_image(struct copy *copy, struct mu_journal_image *image,
                                          struct mu_error *err) {
    int code = read_header(copy, err);
    if (code != MU_OK) {
        return code;
    }
    copy->size = copy->file_bytes < MU_JOURNAL_BYTES ? copy->file_bytes : MU_JOURNAL_BYTES;
    free(copy->bytes);
    copy->bytes = calloc(1, copy->size + 1); /* never of no bytes */
    if (copy->bytes == NULL) {
        return mu_error_no_memory(err, "journal");
    }
    code = read_data(copy, err);
    return code == MU_OK ? mu_journal_image_open(image, copy->bytes, copy->size, err) : code;
}

/* Closes the file. `whole`: of a process that has ended. */
MU_MUST_CHECK static int read_file(struct mu_journal_image *image, int fd, const char *path,
                                   bool whole, struct mu_error *err) {
    struct copy copy = {.fd = fd, .path = path};
    struct stat status;
    memset(image, 0, sizeof(*image));
    if (fd < 0) {
        return mu_error_sys(err, "open journal", path);
    }
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
        code = whole ? read_whole_image(&copy, image, err) : read_image(&copy, image, err);
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
    image->strings.may_lack_bytes = mu_journal_is_of_other_boot(image->header);
    if (whole) {
        free(copy.positions);
    } else {
        image->later_heads = copy.positions;
    }
    return MU_OK;
}

int mu_journal_image_read(struct mu_journal_image *image, const char *path, struct mu_error *err) {
    return read_file(image, open_file(path), path, false, err);
}

int mu_journal_image_read_own(struct mu_journal_image *image, const char *path, uid_t user,
                              struct mu_error *err) {
    return read_file(image, mu_open_own(path, O_RDONLY, 0, user), path, false, err);
}

int mu_journal_image_read_dead(struct mu_journal_image *image, const char *path, const uid_t *user,
                               struct mu_error *err) {
    int fd = user == NULL ? open_file(path) : mu_open_own(path, O_RDONLY, 0, *user);
    return read_file(image, fd, path, true, err);
}

/* Where nothing is locked: whether the process of the journal lives on this machine. */
static bool process_lives(int fd) {
    struct {
        int32_t pid, rank, world_size;
        uint32_t attempt;
        uint64_t process_start;
    } who;
    _Static_assert(offsetof(struct mu_journal_header, process_start) ==
                       offsetof(struct mu_journal_header, pid) + 16,
                   "read in one piece");
    ssize_t got = mu_read_at(fd, &who, sizeof(who), offsetof(struct mu_journal_header, pid));
    return got == (ssize_t)sizeof(who) && mu_process_lives(who.pid, who.process_start);
}

bool mu_journal_is_held(const char *path) {
    int fd = open_file(path);
    if (fd < 0) {
        return false;
    }
    enum mu_file_lock lock = mu_file_lock_state(fd);
    bool held = lock == MU_LOCK_HELD || (lock == MU_LOCK_UNKNOWN && process_lives(fd));
    close(fd);
    return held;
}
