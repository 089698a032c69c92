#include "journal/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum { BLOB_STEP = 64 * 1024, PAGE = 4096 };

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
    void *base = map_anonymous();
    if (base == MAP_FAILED) {
        return mu_error_sys(err, "map memory for the journal", NULL);
    }
    journal->base = base;
    journal->blob_backed = MU_STRING_BLOB_BYTES;
    fill_header(journal, counter_clock);
    return MU_OK;
}

void mu_journal_release(struct mu_journal *journal) {
    if (journal->base != NULL) {
        munmap(journal->base, MU_JOURNAL_BYTES);
        journal->base = NULL;
    }
    if (journal->fd >= 0) {
        close(journal->fd);
        journal->fd = -1;
    }
}

/* Reserves blocks with the raw system call: glibc's posix_fallocate silently writes zeros instead
 * when the file system does not support it. For such a file system the zeros are written here on
 * purpose. */
static int reserve(int fd, off_t offset, size_t bytes, struct mu_error *err) {
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
static bool lock_new(int fd) {
    enum { TRIES = 5000 };
    static const struct timespec pause = {.tv_nsec = 1000000};
    int rc = flock(fd, LOCK_EX | LOCK_NB);
    for (int i = 0; i < TRIES && rc != 0 && (errno == EWOULDBLOCK || errno == EINTR); i++) {
        nanosleep(&pause, NULL);
        rc = flock(fd, LOCK_EX | LOCK_NB);
    }
    return rc == 0 || errno == ENOLCK || errno == EOPNOTSUPP;
}

static int create_locked(const char *path, int *fd, struct mu_error *err) {
    *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (*fd < 0) {
        return mu_error_sys(err, "create journal", path);
    }
    if (!lock_new(*fd)) {
        return mu_error_sys(err, "lock journal", path);
    }
    if (ftruncate(*fd, MU_JOURNAL_BYTES) != 0) {
        return mu_error_sys(err, "size journal", path);
    }
    return MU_OK;
}

static int reserve_ranges(int fd, const struct range ranges[2], struct mu_error *err) {
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

/* Copies the parts in use to the new mapping, which then replaces the old one. The magic is written
 * last. So a process that is killed in the middle leaves a file that is no journal, and not a
 * journal with records but without their commits. */
static int move_to(struct mu_journal *journal, uint8_t *fresh, struct mu_error *err) {
    enum { MAGIC_BYTES = sizeof(mu_journal_header(journal)->magic) };
    struct range ranges[2];
    used_ranges(journal, ranges);
    for (int i = 0; i < 2; i++) {
        size_t skip = i == 0 ? MAGIC_BYTES : 0;
        populate(fresh + ranges[i].offset, ranges[i].bytes);
        memcpy(fresh + ranges[i].offset + skip, journal->base + ranges[i].offset + skip,
               ranges[i].bytes - (ranges[i].bytes == 0 ? 0 : skip));
    }
    atomic_thread_fence(memory_order_seq_cst);
    memcpy(fresh, journal->base, MAGIC_BYTES);
    void *moved = mremap(fresh, MU_JOURNAL_BYTES, MU_JOURNAL_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED,
                         journal->base);
    if (moved == MAP_FAILED) {
        return mu_error_sys(err, "move the journal", NULL);
    }
    return MU_OK;
}

int mu_journal_attach(struct mu_journal *journal, const char *path, struct mu_error *err) {
    struct range ranges[2];
    used_ranges(journal, ranges);
    if (strlen(path) >= sizeof(journal->path)) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "journal path too long: %s", path);
    }
    int fd;
    uint8_t *fresh = MAP_FAILED;
    int code = create_locked(path, &fd, err);
    if (code == MU_OK) {
        code = reserve_ranges(fd, ranges, err);
    }
    if (code == MU_OK) {
        fresh = mmap(NULL, MU_JOURNAL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        code = fresh == MAP_FAILED ? mu_error_sys(err, "map journal", path)
                                   : move_to(journal, fresh, err);
    }
    if (code != MU_OK) {
        if (fresh != MAP_FAILED) {
            munmap(fresh, MU_JOURNAL_BYTES);
        }
        if (fd >= 0) {
            close(fd);
            unlink(path);
        }
        return code;
    }
    madvise(journal->base, MU_JOURNAL_BYTES, MADV_DONTFORK);
    journal->fd = fd;
    journal->blob_backed = (uint32_t)(ranges[0].bytes - MU_BLOB_OFFSET);
    memcpy(journal->path, path, strlen(path) + 1);
    return MU_OK;
}

int mu_journal_detach(struct mu_journal *journal, struct mu_error *err) {
    if (journal->fd < 0) {
        return MU_OK;
    }
    uint8_t *fresh = map_anonymous();
    if (fresh == MAP_FAILED) {
        return mu_error_sys(err, "map memory for the journal", NULL);
    }
    int code = move_to(journal, fresh, err);
    if (code != MU_OK) {
        munmap(fresh, MU_JOURNAL_BYTES);
        return code;
    }
    unlink(journal->path);
    close(journal->fd);
    journal->fd = -1;
    journal->path[0] = '\0';
    journal->blob_backed = MU_STRING_BLOB_BYTES;
    return MU_OK;
}

static int back_new_chunk(struct mu_journal *journal, uint32_t index, struct mu_error *err) {
    size_t offset = MU_CHUNKS_OFFSET + (size_t)index * MU_CHUNK_BYTES;
    if (journal->fd >= 0) {
        int code = reserve(journal->fd, (off_t)offset, MU_CHUNK_BYTES, err);
        if (code != MU_OK) {
            return code;
        }
    }
    populate(journal->base + offset, MU_CHUNK_BYTES);
    return MU_OK;
}

int mu_journal_claim_chunk(struct mu_journal *journal, uint32_t *index, struct mu_error *err) {
    uint32_t count = chunk_count(journal);
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
    atomic_store_explicit(&mu_journal_header(journal)->chunk_count, count + 1,
                          memory_order_release);
    *index = count;
    return MU_OK;
}

static int back_blob(struct mu_journal *journal, size_t bytes, struct mu_error *err) {
    if (bytes <= journal->blob_backed) {
        return MU_OK;
    }
    size_t more = round_up(bytes - journal->blob_backed, BLOB_STEP);
    int code = reserve(journal->fd, MU_BLOB_OFFSET + (off_t)journal->blob_backed, more, err);
    if (code == MU_OK) {
        journal->blob_backed += (uint32_t)more;
    }
    return code;
}

int mu_journal_add_string(struct mu_journal *journal, const char *bytes, size_t length,
                          uint32_t *index, struct mu_error *err) {
    struct mu_journal_header *header = mu_journal_header(journal);
    uint32_t count = atomic_load_explicit(&header->string_count, memory_order_relaxed);
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
    journal->blob_used += (uint32_t)length;
    atomic_store_explicit(&header->string_count, count + 1, memory_order_release);
    *index = count;
    return MU_OK;
}

void mu_journal_publish_anchors(struct mu_journal *journal, const struct mu_timeline *timeline) {
    struct mu_journal_header *header = mu_journal_header(journal);
    uint32_t version = atomic_load_explicit(&header->anchors_version, memory_order_relaxed);
    struct mu_anchor_set *set = &header->anchor_sets[(version + 1) & 1];
    set->count = (uint32_t)timeline->count;
    memcpy(set->anchors, timeline->anchors, sizeof(set->anchors));
    atomic_store_explicit(&header->anchors_version, version + 1, memory_order_release);
}
