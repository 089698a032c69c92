#include "profile_files/window_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/read_at.h"

enum { TAIL_BYTES = 8 * MU_WINDOW_BLOCK_MAX, SHARES = 16 };

/* Of the bytes of all: the finest windows have most of them, and the coarsest last longest. */
static const uint64_t shares[MU_WINDOW_LEVELS] = {12, 3, 1};

void mu_window_files_init(struct mu_window_files *files) {
    memset(files, 0, sizeof(*files));
    for (int level = 0; level < MU_WINDOW_LEVELS; level++) {
        files->levels[level].fd = -1;
    }
}

static void window_path(const struct mu_window_files *files, int level, const char *age,
                        char path[MU_PATH_BYTES]) {
    snprintf(path, MU_PATH_BYTES, "%s/%s.%u%s.windows", files->directory, files->label,
             mu_window_widths[level], age);
}

void mu_window_files_begin(struct mu_window_files *files, const struct mu_output *output,
                           const char *label, uint64_t most_bytes) {
    char path[MU_PATH_BYTES];
    uint64_t failed = files->failed;
    mu_window_files_end(files);
    files->failed = failed;
    if (most_bytes == 0) {
        return;
    }
    snprintf(files->directory, sizeof(files->directory), "%s", output->directory);
    snprintf(files->label, sizeof(files->label), "%s", label);
    files->user = output->user;
    for (int level = 0; level < MU_WINDOW_LEVELS; level++) {
        window_path(files, level, "", path);
        files->levels[level].most_bytes = most_bytes / 2 / SHARES * shares[level];
        files->levels[level].exists = access(path, F_OK) == 0;
    }
}

static void close_file(struct mu_window_file *file) {
    if (file->fd >= 0) {
        mu_close_file(file->fd, file->file);
        file->fd = -1;
    }
}

void mu_window_files_end(struct mu_window_files *files) {
    for (int level = 0; level < MU_WINDOW_LEVELS; level++) {
        close_file(&files->levels[level]);
    }
    mu_window_files_init(files);
}

/* Where the last whole block ends; a kill may leave a torn one behind it. What has none in its last
 * bytes is left as it is, and readers find the next block. */
static uint64_t end_of_blocks(int fd, uint64_t size) {
    uint64_t from = size > TAIL_BYTES ? size - TAIL_BYTES : 0, end = size;
    char *tail = malloc(TAIL_BYTES);
    ssize_t got = tail == NULL ? -1 : mu_read_at(fd, tail, (size_t)(size - from), from);
    struct mu_window_head head;
    size_t at = 0;
    while (got > 0 && mu_window_block_next(tail, (size_t)got, &at, &head) != NULL) {
        end = from + at;
    }
    free(tail);
    return end;
}

static bool open_level(struct mu_window_files *files, int level) {
    struct mu_window_file *file = &files->levels[level];
    char path[MU_PATH_BYTES];
    struct stat status;
    window_path(files, level, "", path);
    file->fd = mu_open_own(path, O_RDWR | O_CREAT, 0644, files->user);
    if (file->fd < 0) {
        return false;
    }
    file->file = mu_file_id(file->fd);
    if (fstat(file->fd, &status) != 0) {
        close_file(file);
        return false;
    }
    file->bytes = end_of_blocks(file->fd, (uint64_t)status.st_size);
    if (file->bytes < (uint64_t)status.st_size && ftruncate(file->fd, (off_t)file->bytes) != 0) {
        close_file(file);
        return false;
    }
    file->exists = true;
    file->number++;
    return true;
}

/* Where the rename fails, the file grows on. */
static void rotate(struct mu_window_files *files, int level) {
    char path[MU_PATH_BYTES], old[MU_PATH_BYTES];
    window_path(files, level, "", path);
    window_path(files, level, ".old", old);
    if (rename(path, old) == 0) {
        close_file(&files->levels[level]);
    }
}

static uint32_t begin(void *owner, int level) {
    struct mu_window_files *files = owner;
    struct mu_window_file *file = &files->levels[level];
    if (files->directory[0] == '\0') {
        return 0;
    }
    if (file->fd >= 0 && file->bytes >= file->most_bytes) {
        rotate(files, level);
    }
    if (file->fd < 0 && !open_level(files, level)) {
        files->failed++;
        return 0;
    }
    return file->number;
}

static bool write_block(void *owner, int level, const char *block, size_t bytes) {
    struct mu_window_files *files = owner;
    struct mu_window_file *file = &files->levels[level];
    ssize_t done = -1;
    if (mu_is_file(file->fd, file->file)) {
        do {
            done = pwrite(file->fd, block, bytes, (off_t)file->bytes);
        } while (done < 0 && errno == EINTR);
    }
    if (done == (ssize_t)bytes) {
        file->bytes += bytes;
        return true;
    }
    int cut = done > 0 ? ftruncate(file->fd, (off_t)file->bytes) : 0;
    (void)cut; /* the next block is written over it */
    files->failed++;
    return false;
}

static bool has_file(void *owner, int level) {
    return ((const struct mu_window_files *)owner)->levels[level].exists;
}

struct mu_window_sink mu_window_files_sink(struct mu_window_files *files) {
    return (struct mu_window_sink){begin, write_block, has_file, files};
}
