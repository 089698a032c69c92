#include "profile_files/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/file_lock.h"
#include "base/read_at.h"
#include "csv/csv_writer.h"
#include "journal/csv_parts.h"
#include "profile_files/claim.h"

enum { WORKERS_MAX = 4096, NAME_TRIES = 2500 };

void mu_output_init(struct mu_output *output) {
    memset(output, 0, sizeof(*output));
    output->fd = -1;
}

void mu_output_drop_csv(struct mu_output *output) {
    if (output->fd >= 0) {
        mu_close_file(output->fd, output->file);
        output->fd = -1;
    }
    if (output->claimed) {
        mu_claim_release(output->csv_path);
        output->claimed = false;
    }
    output->csv_bytes = output->head_bytes = 0;
    output->part = 0;
    output->csv_path[0] = '\0';
}

void mu_output_free(struct mu_output *output) {
    mu_output_drop_csv(output);
    free(output->memory);
    output->memory = NULL;
    output->memory_bytes = output->memory_allocated = 0;
}

MU_MUST_CHECK static int make_directories(const char *path, struct mu_error *err) {
    char partial[1024];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof(partial)) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "log_dir must have 1 to %zu bytes, got %zu",
                            sizeof(partial) - 1, length);
    }
    memcpy(partial, path, length + 1);
    int rc = 0;
    for (size_t i = 1; i <= length; i++) {
        if (partial[i] == '/' || partial[i] == '\0') {
            partial[i] = '\0';
            rc = mkdir(partial, 0777);
            partial[i] = path[i];
        }
    }
    struct stat status;
    if (rc != 0 && (errno != EEXIST || stat(path, &status) != 0 || !S_ISDIR(status.st_mode))) {
        return mu_error_sys(err, "create directory", path);
    }
    return MU_OK;
}

/* The file may have been renamed or removed between open and lock. */
static bool is_named(const struct stat *held, const char *path) {
    struct stat named;
    return stat(path, &named) == 0 && held->st_ino == named.st_ino && held->st_dev == named.st_dev;
}

bool mu_output_is_in_place(const struct mu_output *output) {
    struct stat held;
    return output->fd < 0 || (fstat(output->fd, &held) == 0 && is_named(&held, output->csv_path));
}

/* What is there and is not ours to write to. errno stays. */
static bool is_foreign(const char *path, int open_errno) {
    bool foreign = mu_is_of_others(open_errno) || (open_errno == EACCES && access(path, F_OK) == 0);
    errno = open_errno;
    return foreign;
}

/* Locks the open file, or claims it; *mine is false when another process holds it. */
MU_MUST_CHECK static int lock_or_claim(const char *path, int fd, bool *claimed, bool *mine,
                                       struct mu_error *err) {
    enum mu_file_lock lock = mu_file_lock_take(fd);
    *mine = lock == MU_LOCK_TAKEN;
    *claimed = false;
    if (lock != MU_LOCK_UNKNOWN) {
        return MU_OK;
    }
    int code = mu_claim_take(path, mine, err);
    *claimed = code == MU_OK && *mine;
    return code;
}

static void part_path(const struct mu_output *output, uint64_t part, char path[MU_PATH_BYTES]) {
    mu_csv_part_path(output->directory, output->stem, part, path, MU_PATH_BYTES);
}

struct parts {
    uint64_t oldest, newest, bytes;
};

static void survey_parts(const struct mu_output *output, struct parts *parts) {
    memset(parts, 0, sizeof(*parts));
    DIR *directory = opendir(output->directory);
    if (directory == NULL) {
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        uint64_t number = mu_csv_part_number(output->stem, entry->d_name);
        struct stat status;
        if (number == 0 || fstatat(dirfd(directory), entry->d_name, &status, 0) != 0) {
            continue;
        }
        parts->bytes += (uint64_t)status.st_size;
        parts->oldest = parts->oldest == 0 || number < parts->oldest ? number : parts->oldest;
        parts->newest = number > parts->newest ? number : parts->newest;
    }
    closedir(directory);
}

/* Whether another process has renamed its CSV and is about to make the next. It holds the newest
 * part until then, and the name is its own. */
static bool is_being_rotated(const struct mu_output *output) {
    struct parts parts;
    char newest[MU_PATH_BYTES];
    survey_parts(output, &parts);
    if (parts.newest == 0) {
        return false;
    }
    part_path(output, parts.newest, newest);
    int fd = mu_open_regular(newest, O_RDONLY, 0);
    bool held = fd >= 0 && mu_file_lock_state(fd) == MU_LOCK_HELD;
    if (fd >= 0) {
        close(fd);
    }
    return held;
}

/* Opens and locks `path`. *fd is -1 when a living process holds it, or another user. */
MU_MUST_CHECK static int open_locked(struct mu_output *output, const char *path, int *fd,
                                     bool *claimed, struct mu_error *err) {
    for (;;) {
        *fd = mu_open_own(path, O_RDWR | O_CREAT, 0644, output->user);
        if (*fd < 0 && is_foreign(path, errno)) {
            output->foreign = true;
            return MU_OK;
        }
        if (*fd < 0) {
            return mu_error_sys(err, "open", path);
        }
        bool mine;
        int code = lock_or_claim(path, *fd, claimed, &mine, err);
        if (code != MU_OK || !mine) {
            close(*fd);
            *fd = -1;
            return code;
        }
        struct stat held;
        if (fstat(*fd, &held) != 0) {
            code = mu_error_sys(err, "stat", path);
            close(*fd);
            *fd = -1;
            return code;
        }
        if (is_named(&held, path)) {
            return MU_OK;
        }
        close(*fd);
    }
}

/* Takes output->csv_path, or leaves output->fd at -1: others hold that name. */
MU_MUST_CHECK static int take_name(struct mu_output *output, struct mu_error *err) {
    struct stat status;
    int code = open_locked(output, output->csv_path, &output->fd, &output->claimed, err);
    if (code != MU_OK || output->fd < 0) {
        return code;
    }
    output->file = mu_file_id(output->fd);
    if (fstat(output->fd, &status) == 0 && status.st_size == 0 && is_being_rotated(output)) {
        mu_output_drop_csv(output);
    }
    return MU_OK;
}

MU_MUST_CHECK static int write_all(int fd, const char *bytes, size_t length, uint64_t offset,
                                   struct mu_error *err) {
    while (length > 0) {
        ssize_t done = pwrite(fd, bytes, length, (off_t)offset);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            errno = done == 0 ? ENOSPC : errno;
            return mu_error_sys(err, "write", "the profile CSV");
        }
        bytes += done;
        offset += (uint64_t)done;
        length -= (size_t)done;
    }
    return MU_OK;
}

/* A header that is not `whole` may be cut anywhere. */
MU_MUST_CHECK static int check_header(int fd, const char *path, bool whole, struct mu_error *err) {
    char found[160];
    ssize_t got = mu_read_at(fd, found, mu_csv_header_length, 0);
    if (got < (whole ? (ssize_t)mu_csv_header_length : 1) ||
        memcmp(found, mu_csv_header, (size_t)got) != 0) {
        return mu_error_set(err, MU_ERR_FORMAT,
                            "%s exists and does not begin with the header of a profile CSV", path);
    }
    return MU_OK;
}

/* A power loss may leave zeros in place of the pages that were written last, or first: these get
 * the header back, and `size` becomes 0 where nothing follows. Readers pass over the zeros before a
 * row. */
MU_MUST_CHECK static int repair_beginning(const struct mu_output *output, uint64_t *size,
                                          struct mu_error *err) {
    char found[160];
    ssize_t got = mu_read_at(output->fd, found, mu_csv_header_length, 0);
    for (ssize_t i = 0; i < got; i++) {
        if (found[i] != '\0') {
            return MU_OK;
        }
    }
    uint64_t rows = 0;
    int code = got <= 0 ? MU_OK : mu_csv_whole_bytes(output->fd, *size, &rows, err);
    if (got <= 0 || code != MU_OK) {
        return code;
    }
    if (rows > 0) {
        return write_all(output->fd, mu_csv_header, mu_csv_header_length, 0, err);
    }
    *size = 0;
    return ftruncate(output->fd, 0) == 0 ? MU_OK : mu_error_sys(err, "cut", output->csv_path);
}

/* Makes the file end with a whole row and begin with the header. */
MU_MUST_CHECK static int prepare_file(struct mu_output *output, struct mu_error *err) {
    struct stat status;
    if (fstat(output->fd, &status) != 0) {
        return mu_error_sys(err, "stat", output->csv_path);
    }
    uint64_t size = S_ISREG(status.st_mode) ? (uint64_t)status.st_size : 0;
    int code = size > 0 ? repair_beginning(output, &size, err) : MU_OK;
    if (code != MU_OK) {
        return code;
    }
    if (size > 0) {
        uint64_t end = 0;
        code = mu_csv_whole_bytes(output->fd, size, &end, err);
        if (code == MU_OK) {
            code = check_header(output->fd, output->csv_path, end > 0, err);
        }
        if (code == MU_OK && end < size && ftruncate(output->fd, (off_t)end) != 0) {
            code = mu_error_sys(err, "cut the torn last row of", output->csv_path);
        }
        if (code != MU_OK) {
            return code;
        }
        size = end;
    }
    output->csv_bytes = size;
    return size > 0 ? MU_OK : mu_output_write(output, mu_csv_header, mu_csv_header_length, err);
}

int mu_output_take_csv(struct mu_output *output, const char *directory, int rank, int *worker,
                       struct mu_error *err) {
    int code = make_directories(directory, err);
    if (code != MU_OK) {
        return code;
    }
    snprintf(output->directory, sizeof(output->directory), "%s", directory);
    output->user = mu_own_user(directory);
    for (*worker = 0; *worker < WORKERS_MAX; ++*worker) {
        int length = snprintf(output->stem, sizeof(output->stem), "profile_rank_%d", rank);
        if (*worker > 0) {
            snprintf(output->stem + length, sizeof(output->stem) - (size_t)length, ".w%d", *worker);
        }
        snprintf(output->csv_path, sizeof(output->csv_path), "%s/%s.csv", directory, output->stem);
        code = take_name(output, err);
        if (code != MU_OK) {
            return code;
        }
        if (output->fd >= 0) {
            struct parts parts;
            survey_parts(output, &parts);
            output->part = parts.newest;
            code = prepare_file(output, err);
            if (code != MU_OK) {
                mu_output_drop_csv(output);
            }
            return code;
        }
    }
    return mu_error_set(err, MU_ERR_LIMIT, "%d processes of rank %d write to %s already",
                        WORKERS_MAX, rank, directory);
}

/* Drops the older half, at a row's end. */
static void forget_oldest(struct mu_output *output) {
    char *half = output->memory + output->memory_bytes / 2;
    char *end = output->memory + output->memory_bytes;
    char *newline = memchr(half, '\n', (size_t)(end - half));
    char *keep = newline == NULL ? end : newline + 1;
    mu_lost_rows_add_text(&output->memory_lost, output->memory, (size_t)(keep - output->memory));
    output->memory_bytes = (size_t)(end - keep);
    memmove(output->memory, keep, output->memory_bytes);
}

MU_MUST_CHECK static int keep_in_memory(struct mu_output *output, const char *rows, size_t bytes,
                                        struct mu_error *err) {
    while (output->memory_bytes > 0 && output->memory_bytes + bytes > MU_MEMORY_OUTPUT_BYTES) {
        forget_oldest(output);
    }
    size_t wanted = output->memory_bytes + bytes;
    if (wanted > output->memory_allocated) {
        size_t size = output->memory_allocated == 0 ? 65536 : output->memory_allocated;
        while (size < wanted) {
            size *= 2;
        }
        char *memory = realloc(output->memory, size);
        if (memory == NULL) {
            return mu_error_no_memory(err, "rows in memory");
        }
        output->memory = memory;
        output->memory_allocated = size;
    }
    memcpy(output->memory + output->memory_bytes, rows, bytes);
    output->memory_bytes = wanted;
    return MU_OK;
}

int mu_output_write(struct mu_output *output, const char *rows, size_t bytes,
                    struct mu_error *err) {
    if (output->kind == MU_OUTPUT_NULL || bytes == 0) {
        return MU_OK;
    }
    if (output->fd < 0) {
        return keep_in_memory(output, rows, bytes, err);
    }
    if (!mu_is_file(output->fd, output->file)) {
        return mu_error_sys(err, "write", "the profile CSV");
    }
    int code = write_all(output->fd, rows, bytes, output->csv_bytes, err);
    if (code == MU_OK) {
        output->csv_bytes += bytes;
        return MU_OK;
    }
    /* A later, shorter write would leave torn rows behind it. */
    int cut = ftruncate(output->fd, (off_t)output->csv_bytes);
    (void)cut; /* the write's error is the one to report */
    return code;
}

bool mu_output_is_full(const struct mu_output *output) {
    return output->fd >= 0 && output->max_csv_bytes > 0 &&
           output->csv_bytes - output->head_bytes >= output->max_csv_bytes;
}

static void remove_oldest_parts(struct mu_output *output) {
    struct parts parts;
    survey_parts(output, &parts);
    while (output->keep_csv_bytes > 0 && parts.oldest != 0 &&
           parts.bytes + output->head_bytes + output->max_csv_bytes > output->keep_csv_bytes) {
        char path[MU_PATH_BYTES];
        part_path(output, parts.oldest, path);
        if (unlink(path) != 0) {
            return;
        }
        output->removed_parts++;
        survey_parts(output, &parts);
    }
}

/* Never over a file of another process. What has no such rename, as NFS, has links. */
MU_MUST_CHECK static int rename_to_new(const char *from, const char *to, struct mu_error *err) {
    long rc = syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
    if (rc != 0 && (errno == EINVAL || errno == ENOSYS)) {
        rc = link(from, to) == 0 ? unlink(from) : -1;
    }
    if (rc != 0 && (errno == EPERM || errno == EOPNOTSUPP) && access(to, F_OK) != 0) {
        rc = rename(from, to); /* a file system without either */
    }
    return rc == 0 ? MU_OK : mu_error_sys(err, "rename", from);
}

/* After a rotation that failed, the rows go on into the same file. Where another process has taken
 * its name meanwhile, it stays a part, and there are no more. */
static void take_back(struct mu_output *output, const char *old) {
    if (rename_to_new(old, output->csv_path, NULL) != MU_OK) {
        memcpy(output->csv_path, old, strlen(old) + 1);
        output->max_csv_bytes = 0;
    }
}

/* Another process may have found the name free: it holds the file, empty, until it knows better. */
MU_MUST_CHECK static int make_next(struct mu_output *output, int *fd, bool *claimed,
                                   struct mu_error *err) {
    static const struct timespec pause = {.tv_nsec = 200000};
    for (int i = 0; i < NAME_TRIES; i++) {
        int code = open_locked(output, output->csv_path, fd, claimed, err);
        if (code != MU_OK || *fd >= 0) {
            return code;
        }
        nanosleep(&pause, NULL);
    }
    return mu_error_set(err, MU_ERR_STATE, "another process took %s", output->csv_path);
}

int mu_output_rotate(struct mu_output *output, const char *head, size_t head_bytes,
                     struct mu_error *err) {
    char old[MU_PATH_BYTES];
    part_path(output, output->part + 1, old);
    int code = rename_to_new(output->csv_path, old, err);
    if (code != MU_OK) {
        return code;
    }
    int fd = -1;
    bool claimed = false;
    code = make_next(output, &fd, &claimed, err);
    if (code == MU_OK) {
        code = write_all(fd, mu_csv_header, mu_csv_header_length, 0, err);
    }
    if (code == MU_OK) {
        code = write_all(fd, head, head_bytes, mu_csv_header_length, err);
    }
    if (code != MU_OK) {
        if (fd >= 0) {
            unlink(output->csv_path); /* nobody else has it, for it is locked */
            close(fd);
        }
        take_back(output, old);
        return code;
    }
    mu_close_file(output->fd, output->file);
    output->fd = fd;
    output->file = mu_file_id(fd);
    output->claimed = claimed;
    output->csv_bytes = mu_csv_header_length + head_bytes;
    output->head_bytes = head_bytes;
    output->part++;
    remove_oldest_parts(output);
    return MU_OK;
}
