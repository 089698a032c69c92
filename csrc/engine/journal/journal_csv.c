/* The CSV that a journal's rows belong to. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/own_files.h"
#include "journal/journal_reader.h"

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
    /* A part that was renamed after the commit keeps the bytes that the commit counts. */
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

MU_MUST_CHECK static int read_csv(int fd, char *to, size_t bytes, uint64_t offset, size_t *got,
                                  struct mu_error *err) {
    ssize_t n;
    do {
        n = pread(fd, to, bytes, (off_t)offset);
    } while (n < 0 && errno == EINTR);
    *got = n < 0 ? 0 : (size_t)n;
    return n < 0 ? mu_error_sys(err, "read", "the profile CSV") : MU_OK;
}

/* Whether another process has begun to write at or after `offset`. Its first row shows that. */
MU_MUST_CHECK static int finds_process_row(int fd, uint64_t offset, bool *found,
                                           struct mu_error *err) {
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

int mu_journal_move_commit(const char *path, uid_t user, const struct mu_journal_image *image,
                           uint64_t csv_part, uint64_t csv_bytes, struct mu_error *err) {
    const struct mu_commit *commits = image->header->commits;
    uint64_t place[2] = {csv_bytes, csv_part};
    _Static_assert(offsetof(struct mu_commit, csv_part) ==
                       offsetof(struct mu_commit, csv_bytes) + sizeof(uint64_t),
                   "one write changes both");
    if (image->epoch == 0) {
        return MU_OK;
    }
    int index = atomic_load(&commits[1].epoch) == image->epoch;
    size_t offset = offsetof(struct mu_journal_header, commits) + (size_t)index * sizeof(*commits) +
                    offsetof(struct mu_commit, csv_bytes);
    int fd = mu_open_own(path, O_WRONLY, 0, user);
    if (fd < 0) {
        return mu_error_sys(err, "open journal", path);
    }
    ssize_t written = pwrite(fd, place, sizeof(place), (off_t)offset);
    int code = written == (ssize_t)sizeof(place) ? MU_OK : mu_error_sys(err, "write journal", path);
    close(fd);
    return code;
}
