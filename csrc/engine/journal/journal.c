#include "journal/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/file_lock.h"
#include "base/invariant.h"
#include "journal/page_guard.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum { BLOB_STEP = 64 * 1024, PAGE = 4096 };

/* Copies of what a drain needs beside the records: a page of the file that is gone begins with
 * them. */
struct mu_journal_copies {
    uint8_t before_chunks[MU_CHUNKS_OFFSET];
    uint8_t chunks[MU_CHUNKS_MAX][offsetof(struct mu_chunk_header, reserved)];
    char path[sizeof(((struct mu_journal *)NULL)->path)]; /* of the file */
};

static void fill_header(struct mu_journal *journal, bool counter_clock) {
    struct mu_journal_header *header = mu_journal_header(journal);
    memcpy(header->magic, MU_JOURNAL_MAGIC, sizeof(header->magic));
    header->version = MU_JOURNAL_VERSION;
    header->byte_order = MU_JOURNAL_BYTE_ORDER;
    header->header_bytes = MU_JOURNAL_HEADER_BYTES;
    header->chunk_bytes = MU_CHUNK_BYTES;
    header->chunks_max = MU_CHUNKS_MAX;
    header->counter_clock = counter_clock;
    header->strings_offset = MU_STRINGS_OFFSET;
    header->blob_offset = MU_BLOB_OFFSET;
    header->chunks_offset = MU_CHUNKS_OFFSET;
    header->file_bytes = MU_JOURNAL_BYTES;
    header->pid = (int32_t)getpid();
    atomic_init(&header->string_count, 1);
}

static void *map_anonymous(void) {
    return mmap(NULL, MU_JOURNAL_BYTES, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

int mu_journal_init_memory(struct mu_journal *journal, bool counter_clock, struct mu_error *err) {
    memset(journal, 0, sizeof(*journal));
    journal->fd = -1;
    journal->guard = MU_GUARD_NONE;
    void *base = map_anonymous();
    if (base == MAP_FAILED) {
        return mu_error_sys(err, "map memory for the journal", NULL);
    }
    journal->base = base;
    journal->blob_backed = MU_STRING_BLOB_BYTES;
    fill_header(journal, counter_clock);
    return MU_OK;
}

static void stop_guard(struct mu_journal *journal) {
    mu_page_guard_remove(journal->guard);
    journal->guard = MU_GUARD_NONE;
    free(journal->copies);
    journal->copies = NULL;
}

void mu_journal_release(struct mu_journal *journal) {
    stop_guard(journal);
    if (journal->base != NULL) {
        munmap(journal->base, MU_JOURNAL_BYTES);
        journal->base = NULL;
    }
    if (journal->fd >= 0) {
        mu_close_file(journal->fd, journal->file);
        journal->fd = -1;
    }
}

/* Reserves blocks with the raw system call: glibc's posix_fallocate silently writes zeros instead
 * when the file system does not support it. For such a file system the zeros are written here on
 * purpose. */
MU_MUST_CHECK static int reserve(int fd, off_t offset, size_t bytes, struct mu_error *err) {
    long rc;
    do {
        rc = syscall(SYS_fallocate, fd, 0, offset, (off_t)bytes);
    } while (rc != 0 && errno == EINTR);
    if (rc == 0) {
        return MU_OK;
    }
    if (errno != EOPNOTSUPP && errno != ENOSYS) {
        return mu_error_sys(err, "reserve room for the journal", NULL);
    }
    static const uint8_t zeros[PAGE];
    for (size_t done = 0; done < bytes; done += PAGE) {
        if (pwrite(fd, zeros, PAGE, offset + (off_t)done) != PAGE) {
            return mu_error_sys(err, "write room for the journal", NULL);
        }
    }
    return MU_OK;
}

/* Faults pages in for writing, so that the first lap of a ring does not stall. */
static void populate(uint8_t *at, size_t bytes) {
    if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0) {
        return;
    }
    for (size_t i = 0; i < bytes; i += PAGE) {
        volatile uint8_t *byte = at + i;
        *byte = *byte;
    }
}

static uint32_t chunk_count(const struct mu_journal *journal) {
    return atomic_load_explicit(&mu_journal_header(journal)->chunk_count, memory_order_relaxed);
}

/* Where the last string ends. The strings follow one another. */
static size_t strings_end(const struct mu_journal *journal) {
    size_t length;
    uint32_t count = atomic_load(&mu_journal_header(journal)->string_count);
    const char *last = mu_journal_string(journal, count - 1, &length);
    return (size_t)(last - (const char *)(journal->base + MU_BLOB_OFFSET)) + length;
}

/* What holds between two calls. Nobody else writes these fields. */
static void check(const struct mu_journal *journal) {
    const struct mu_journal_header *header = mu_journal_header(journal);
    MU_INVARIANT(memcmp(header->magic, MU_JOURNAL_MAGIC, sizeof(header->magic)) == 0);
    MU_INVARIANT(header->header_bytes == MU_JOURNAL_HEADER_BYTES);
    MU_INVARIANT(header->strings_offset == MU_STRINGS_OFFSET);
    MU_INVARIANT(header->blob_offset == MU_BLOB_OFFSET);
    MU_INVARIANT(header->chunks_offset == MU_CHUNKS_OFFSET);
    MU_INVARIANT(header->chunk_bytes == MU_CHUNK_BYTES);
    MU_INVARIANT(header->file_bytes == MU_JOURNAL_BYTES);
    MU_INVARIANT(chunk_count(journal) <= MU_CHUNKS_MAX);
    MU_INVARIANT(atomic_load(&header->string_count) > 0);
    MU_INVARIANT(atomic_load(&header->string_count) <= MU_STRINGS_MAX);
    MU_INVARIANT(strings_end(journal) == journal->blob_used);
    MU_INVARIANT(journal->blob_used <= journal->blob_backed);
    MU_INVARIANT(journal->blob_backed <= MU_STRING_BLOB_BYTES);
    MU_INVARIANT((journal->fd >= 0) == (journal->path[0] != '\0'));
}

static size_t round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

struct range {
    size_t offset, bytes;
};

/* The parts of the mapping that are in use: all up to the strings, and the chunks. */
static void used_ranges(const struct mu_journal *journal, struct range ranges[2]) {
    ranges[0].offset = 0;
    ranges[0].bytes = MU_BLOB_OFFSET + round_up(journal->blob_used + 1, BLOB_STEP);
    ranges[1].offset = MU_CHUNKS_OFFSET;
    ranges[1].bytes = (size_t)chunk_count(journal) * MU_CHUNK_BYTES;
}

/* The file is ours. A reader that checks whether a process holds it takes the lock for a moment,
 * and may be descheduled meanwhile. */
MU_MUST_CHECK static bool lock_new(int fd) {
    enum { TRIES = 5000 };
    static const struct timespec pause = {.tv_nsec = 1000000};
    enum mu_file_lock lock = mu_file_lock_take(fd);
    for (int i = 0; i < TRIES && lock == MU_LOCK_HELD; i++) {
        nanosleep(&pause, NULL);
        lock = mu_file_lock_take(fd);
    }
    return lock != MU_LOCK_HELD;
}

/* Blocks that were reserved on btrfs are not the ones that a store goes to, unless the file is not
 * copied on write. Only an empty file can be made so; other file systems refuse, or ignore it. */
static void write_in_place(int fd) {
    int flags;
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0) {
        flags |= FS_NOCOW_FL;
        ioctl(fd, FS_IOC_SETFLAGS, &flags);
    }
}

MU_MUST_CHECK static int create_locked(const char *path, int *fd, struct mu_error *err) {
    *fd = mu_above_streams(open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (*fd < 0) {
        return mu_error_sys(err, "create journal", path);
    }
    if (!lock_new(*fd)) {
        return mu_error_sys(err, "lock journal", path);
    }
    write_in_place(*fd);
    if (ftruncate(*fd, MU_JOURNAL_BYTES) != 0) {
        return mu_error_sys(err, "size journal", path);
    }
    return MU_OK;
}

MU_MUST_CHECK static int reserve_ranges(int fd, const struct range ranges[2],
                                        struct mu_error *err) {
    for (int i = 0; i < 2; i++) {
        if (ranges[i].bytes == 0) {
            continue;
        }
        int code = reserve(fd, (off_t)ranges[i].offset, ranges[i].bytes, err);
        if (code != MU_OK) {
            return code;
        }
    }
    return MU_OK;
}

static void begin_alone(const struct mu_journal *journal) {
    if (journal->alone != NULL) {
        journal->alone->begin(journal->alone->owner);
    }
}

static void end_alone(const struct mu_journal *journal) {
    if (journal->alone != NULL) {
        journal->alone->end(journal->alone->owner);
    }
}

/* Where a journal goes on: in memory, or in a file. */
struct next_place {
    int guard;                              /* of the new mapping */
    bool from_file;                         /* it goes from one file into another one */
    const char *path;                       /* of the file; NULL in memory */
    const struct mu_journal_change *change; /* NULL: none */
};

static void say_where_from(const struct mu_journal *journal, uint8_t *fresh) {
    struct mu_journal_header *header = (struct mu_journal_header *)(void *)fresh;
    memset(header->moved_to, 0, sizeof(header->moved_to));
    memcpy(header->moved_from, journal->path, sizeof(header->moved_from));
}

/* Copies the parts in use to the new mapping, which then replaces the old one. The magic is written
 * last. So a process that is killed in the middle leaves a file that is not a journal, and not a
 * journal with records but without their commits. From then on an old file is not a journal, for it
 * says where the new one is. So nobody finds the records twice. */
MU_MUST_CHECK static int move_to_alone(struct mu_journal *journal, uint8_t *fresh,
                                       const struct next_place *next, struct mu_error *err) {
    enum { MAGIC_BYTES = sizeof(mu_journal_header(journal)->magic) };
    struct range ranges[2];
    uint8_t magic[MAGIC_BYTES];
    used_ranges(journal, ranges);
    if (next->from_file) {
        memcpy(mu_journal_header(journal)->moved_to, next->path, strlen(next->path) + 1);
    }
    for (int i = 0; i < 2; i++) {
        size_t skip = i == 0 ? MAGIC_BYTES : 0;
        memcpy(fresh + ranges[i].offset + skip, journal->base + ranges[i].offset + skip,
               ranges[i].bytes - (ranges[i].bytes == 0 ? 0 : skip));
    }
    say_where_from(journal, fresh);
    if (next->change != NULL) {
        next->change->apply(next->change->owner, (struct mu_journal_header *)(void *)fresh);
    }
    if (mu_page_guard_replaced(next->guard) > 0) {
        errno = ENOSPC;
        return mu_error_sys(err, "fill the journal", NULL);
    }
    memcpy(magic, journal->base, MAGIC_BYTES);
    atomic_thread_fence(memory_order_seq_cst);
    memcpy(fresh, magic, MAGIC_BYTES);
    if (next->from_file) {
        atomic_thread_fence(memory_order_seq_cst);
        memset(journal->base, 0, MAGIC_BYTES);
    }
    void *moved = mremap(fresh, MU_JOURNAL_BYTES, MU_JOURNAL_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED,
                         journal->base);
    if (moved == MAP_FAILED) {
        memcpy(journal->base, magic, MAGIC_BYTES);
        return mu_error_sys(err, "move the journal", NULL);
    }
    return MU_OK;
}

static void copy_overlap(uint8_t *to, size_t to_offset, size_t to_bytes, const uint8_t *from,
                         size_t from_offset, size_t from_bytes) {
    size_t begin = to_offset > from_offset ? to_offset : from_offset;
    size_t to_end = to_offset + to_bytes, from_end = from_offset + from_bytes;
    size_t end = to_end < from_end ? to_end : from_end;
    if (begin < end) {
        memcpy(to + (begin - to_offset), from + (begin - from_offset), end - begin);
    }
}

/* A mu_guard_fill. The records of such a page are lost. */
static void fill_lost_page(const void *owner, size_t offset, uint8_t *page, size_t bytes) {
    const struct mu_journal_copies *copies = owner;
    copy_overlap(page, offset, bytes, copies->before_chunks, 0, sizeof(copies->before_chunks));
    for (int i = 0; i < MU_CHUNKS_MAX; i++) {
        copy_overlap(page, offset, bytes, copies->chunks[i],
                     MU_CHUNKS_OFFSET + (size_t)i * MU_CHUNK_BYTES, sizeof(copies->chunks[i]));
    }
}

void mu_journal_keep_chunk(struct mu_journal *journal, uint32_t index) {
    if (journal->copies != NULL) {
        memcpy(journal->copies->chunks[index], mu_journal_chunk(journal, index),
               sizeof(journal->copies->chunks[index]));
    }
}

bool mu_journal_is_lost(const struct mu_journal *journal) {
    return mu_page_guard_replaced(journal->guard) > 0;
}

static size_t used_bytes(const struct mu_journal *journal) {
    return MU_CHUNKS_OFFSET + (size_t)chunk_count(journal) * MU_CHUNK_BYTES;
}

static void keep_copies(struct mu_journal *journal) {
    struct range ranges[2];
    used_ranges(journal, ranges);
    memcpy(journal->copies->before_chunks, journal->base, ranges[0].bytes);
    for (uint32_t i = 0; i < chunk_count(journal); i++) {
        mu_journal_keep_chunk(journal, i);
    }
}

/* A file that the journal is about to move into. */
struct new_file {
    int fd;
    int guard;
    uint8_t *fresh;                   /* its mapping; NULL before */
    struct mu_journal_copies *copies; /* owned */
    struct range ranges[2];           /* reserved on the disk */
};

MU_MUST_CHECK static int map_file(struct new_file *file, const char *path, struct mu_error *err) {
    file->copies = calloc(1, sizeof(*file->copies));
    if (file->copies == NULL) {
        return mu_error_no_memory(err, "copies of the journal's header");
    }
    memcpy(file->copies->path, path, strlen(path) + 1);
    void *fresh = mmap(NULL, MU_JOURNAL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
    if (fresh == MAP_FAILED) {
        return mu_error_sys(err, "map journal", path);
    }
    file->fresh = fresh;
    struct mu_guarded mapping = {.base = fresh,
                                 .bytes = MU_JOURNAL_BYTES,
                                 .fd = file->fd,
                                 .path = file->copies->path,
                                 .fill = fill_lost_page,
                                 .owner = file->copies};
    return mu_page_guard_add(&mapping, &file->guard, err);
}

MU_MUST_CHECK static int back_ranges(const struct new_file *file, struct mu_error *err) {
    MU_INVARIANT(file->fresh != NULL);
    int code = reserve_ranges(file->fd, file->ranges, err);
    for (int i = 0; code == MU_OK && i < 2; i++) {
        populate(file->fresh + file->ranges[i].offset, file->ranges[i].bytes);
    }
    return code;
}

/* The journal may grow while space is reserved for what it had. */
MU_MUST_CHECK static int move_to_file(struct mu_journal *journal, struct new_file *file,
                                      const struct mu_journal_change *change,
                                      struct mu_error *err) {
    const struct next_place next = {file->guard, journal->fd >= 0, file->copies->path, change};
    for (;;) {
        int code = back_ranges(file, err);
        if (code != MU_OK) {
            return code;
        }
        struct range now[2];
        begin_alone(journal);
        used_ranges(journal, now);
        bool fits = now[0].bytes <= file->ranges[0].bytes && now[1].bytes <= file->ranges[1].bytes;
        if (fits) {
            code = move_to_alone(journal, file->fresh, &next, err);
        }
        if (fits && code == MU_OK) {
            stop_guard(journal);
            journal->fd = file->fd;
            journal->file = mu_file_id(file->fd);
            journal->guard = file->guard;
            journal->copies = file->copies;
            journal->blob_backed = (uint32_t)(file->ranges[0].bytes - MU_BLOB_OFFSET);
            memcpy(journal->path, file->copies->path, sizeof(journal->path));
            keep_copies(journal);
            mu_page_guard_move(journal->guard, journal->base);
            mu_page_guard_use(journal->guard, used_bytes(journal));
        }
        end_alone(journal);
        if (fits) {
            return code;
        }
        memcpy(file->ranges, now, sizeof(now));
    }
}

static void give_up_file(const struct new_file *file, const char *path) {
    mu_page_guard_remove(file->guard);
    if (file->fresh != NULL) {
        munmap(file->fresh, MU_JOURNAL_BYTES);
    }
    free(file->copies);
    if (file->fd >= 0) {
        close(file->fd);
        unlink(path);
    }
}

MU_MUST_CHECK static int move_into(struct mu_journal *journal, const char *path,
                                   const struct mu_journal_change *change, struct mu_error *err) {
    struct new_file file = {.fd = -1, .guard = MU_GUARD_NONE};
    if (strlen(path) >= sizeof(journal->path)) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "journal path too long: %s", path);
    }
    begin_alone(journal);
    check(journal);
    used_ranges(journal, file.ranges);
    end_alone(journal);
    int code = create_locked(path, &file.fd, err);
    if (code == MU_OK) {
        code = map_file(&file, path, err);
    }
    if (code == MU_OK) {
        code = move_to_file(journal, &file, change, err);
    }
    if (code != MU_OK) {
        give_up_file(&file, path);
        return code;
    }
    madvise(journal->base, MU_JOURNAL_BYTES, MADV_DONTFORK);
    return MU_OK;
}

int mu_journal_attach(struct mu_journal *journal, const char *path, struct mu_error *err) {
    return move_into(journal, path, NULL, err);
}

/* The path may be another file's by now: its directory was removed, and is there again. */
static void remove_left(const char *path, int fd, struct mu_file_id file) {
    struct stat there;
    if (lstat(path, &there) == 0 && file.inode == there.st_ino && file.device == there.st_dev) {
        unlink(path);
    }
    mu_close_file(fd, file);
}

int mu_journal_move(struct mu_journal *journal, const char *path,
                    const struct mu_journal_change *change, struct mu_error *err) {
    char left[sizeof(journal->path)];
    int fd = journal->fd;
    struct mu_file_id file = journal->file;
    memcpy(left, journal->path, sizeof(left));
    int code = move_into(journal, path, change, err);
    if (code == MU_OK && fd >= 0) {
        remove_left(left, fd, file);
    }
    return code;
}

int mu_journal_detach(struct mu_journal *journal, struct mu_error *err) {
    if (journal->fd < 0) {
        return MU_OK;
    }
    uint8_t *fresh = map_anonymous();
    if (fresh == MAP_FAILED) {
        return mu_error_sys(err, "map memory for the journal", NULL);
    }
    char path[sizeof(journal->path)];
    int fd = journal->fd;
    memcpy(path, journal->path, sizeof(path));
    begin_alone(journal);
    check(journal);
    int code = move_to_alone(journal, fresh, &(struct next_place){.guard = MU_GUARD_NONE}, err);
    if (code == MU_OK) {
        stop_guard(journal);
        journal->fd = -1;
        journal->path[0] = '\0';
        journal->blob_backed = MU_STRING_BLOB_BYTES;
    }
    end_alone(journal);
    if (code != MU_OK) {
        munmap(fresh, MU_JOURNAL_BYTES);
        return code;
    }
    unlink(path);
    mu_close_file(fd, journal->file);
    return MU_OK;
}

/* Reserves space in a whole file. In one that was cut it would bring pages of zeros back. */
MU_MUST_CHECK static int reserve_more(const struct mu_journal *journal, size_t offset, size_t bytes,
                                      struct mu_error *err) {
    struct stat status;
    if (mu_journal_is_lost(journal) || !mu_is_file(journal->fd, journal->file) ||
        fstat(journal->fd, &status) != 0 || status.st_size < MU_JOURNAL_BYTES) {
        return mu_error_set(err, MU_ERR_STATE, "the journal was cut: %s", journal->path);
    }
    return reserve(journal->fd, (off_t)offset, bytes, err);
}

MU_MUST_CHECK static int back_new_chunk(struct mu_journal *journal, uint32_t index,
                                        struct mu_error *err) {
    size_t offset = MU_CHUNKS_OFFSET + (size_t)index * MU_CHUNK_BYTES;
    if (journal->fd >= 0) {
        int code = reserve_more(journal, offset, MU_CHUNK_BYTES, err);
        if (code != MU_OK) {
            return code;
        }
    }
    populate(journal->base + offset, MU_CHUNK_BYTES);
    if (mu_journal_is_lost(journal)) {
        return mu_error_set(err, MU_ERR_STATE, "the journal found no room: %s", journal->path);
    }
    return MU_OK;
}

/* Makes what was added count, in the copies as well. */
static void publish_count(struct mu_journal *journal, _Atomic uint32_t *count, uint32_t value) {
    if (journal->copies != NULL) {
        size_t offset = (size_t)((uint8_t *)count - journal->base);
        memcpy(journal->copies->before_chunks + offset, &value, sizeof(value));
    }
    atomic_store_explicit(count, value, memory_order_release);
}

int mu_journal_claim_chunk(struct mu_journal *journal, uint32_t *index, struct mu_error *err) {
    uint32_t count = chunk_count(journal);
    check(journal);
    for (uint32_t i = 0; i < count; i++) {
        struct mu_chunk_header *chunk = mu_journal_chunk(journal, i);
        if (atomic_load_explicit(&chunk->state, memory_order_acquire) == MU_CHUNK_FREE) {
            atomic_store_explicit(&chunk->state, MU_CHUNK_OWNED, memory_order_release);
            *index = i;
            return MU_OK;
        }
    }
    if (count == MU_CHUNKS_MAX) {
        return mu_error_set(err, MU_ERR_LIMIT, "all %d chunks of the journal are in use",
                            MU_CHUNKS_MAX);
    }
    int code = back_new_chunk(journal, count, err);
    if (code != MU_OK) {
        return code;
    }
    atomic_store_explicit(&mu_journal_chunk(journal, count)->state, MU_CHUNK_OWNED,
                          memory_order_release);
    mu_journal_keep_chunk(journal, count);
    publish_count(journal, &mu_journal_header(journal)->chunk_count, count + 1);
    if (journal->guard != MU_GUARD_NONE) {
        mu_page_guard_use(journal->guard, used_bytes(journal));
    }
    *index = count;
    return MU_OK;
}

MU_MUST_CHECK static int back_blob(struct mu_journal *journal, size_t bytes, struct mu_error *err) {
    if (bytes <= journal->blob_backed) {
        return MU_OK;
    }
    size_t more = round_up(bytes - journal->blob_backed, BLOB_STEP);
    int code = reserve_more(journal, MU_BLOB_OFFSET + journal->blob_backed, more, err);
    if (code == MU_OK) {
        journal->blob_backed += (uint32_t)more;
    }
    return code;
}

static void keep_string(struct mu_journal *journal, const struct mu_string_entry *entry) {
    if (journal->copies != NULL) {
        size_t blob = MU_BLOB_OFFSET + entry->offset;
        size_t offset = (size_t)((const uint8_t *)entry - journal->base);
        memcpy(journal->copies->before_chunks + blob, journal->base + blob, entry->length);
        memcpy(journal->copies->before_chunks + offset, entry, sizeof(*entry));
    }
}

int mu_journal_add_string(struct mu_journal *journal, const char *bytes, size_t length,
                          uint32_t *index, struct mu_error *err) {
    struct mu_journal_header *header = mu_journal_header(journal);
    uint32_t count = atomic_load_explicit(&header->string_count, memory_order_relaxed);
    check(journal);
    if (length > MU_STRING_BYTES_MAX) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "a string of %zu bytes is too long", length);
    }
    if (count == MU_STRINGS_MAX) {
        return mu_error_set(err, MU_ERR_LIMIT, "the journal holds %d names already", count);
    }
    int code = back_blob(journal, journal->blob_used + length, err);
    if (code != MU_OK) {
        return code;
    }
    struct mu_string_entry *entries =
        (struct mu_string_entry *)(void *)(journal->base + MU_STRINGS_OFFSET);
    memcpy(journal->base + MU_BLOB_OFFSET + journal->blob_used, bytes, length);
    entries[count].offset = journal->blob_used;
    entries[count].length = (uint32_t)length;
    keep_string(journal, &entries[count]);
    journal->blob_used += (uint32_t)length;
    publish_count(journal, &header->string_count, count + 1);
    *index = count;
    return MU_OK;
}

void mu_journal_publish_anchors(struct mu_journal *journal, const struct mu_timeline *timeline) {
    struct mu_journal_header *header = mu_journal_header(journal);
    uint32_t version = atomic_load_explicit(&header->anchors_version, memory_order_relaxed);
    MU_INVARIANT(timeline->count <= MU_TIMELINE_ANCHORS);
    struct mu_anchor_set *set = &header->anchor_sets[(version + 1) & 1];
    set->count = (uint32_t)timeline->count;
    memcpy(set->anchors, timeline->anchors, sizeof(set->anchors));
    atomic_store_explicit(&header->anchors_version, version + 1, memory_order_release);
}
