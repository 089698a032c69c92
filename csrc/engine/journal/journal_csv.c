/* The CSV that a journal's rows belong to. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/read_at.h"
#include "journal/journal_reader.h"

/* A string of the header, which need not end within its field. */
static void header_text(const char *field, size_t size, char *out) {
    size_t length = strnlen(field, size);
    memcpy(out, field, length);
    out[length] = '\0';
}

void mu_journal_image_csv_stem(const struct mu_journal_image *image, char stem[MU_CSV_STEM_BYTES]) {
    static const char suffix[] = ".csv";
    header_text(image->header->csv_name, sizeof(image->header->csv_name), stem);
    size_t length = strlen(stem), tail = sizeof(suffix) - 1;
    bool is_csv = length > tail && strcmp(stem + length - tail, suffix) == 0;
    stem[is_csv && strchr(stem, '/') == NULL ? length - tail : 0] = '\0';
}

static bool exists(const char *path) {
    return access(path, F_OK) == 0;
}

void mu_journal_image_csv_path(const struct mu_journal_image *image, const char *journal_path,
                               char *path, size_t size) {
    char stem[MU_CSV_STEM_BYTES], directory[sizeof(image->header->log_dir) + 1];
    mu_journal_image_csv_stem(image, stem);
    header_text(image->header->log_dir, sizeof(image->header->log_dir), directory);
    const char *slash = strrchr(journal_path, '/');
    int beside = slash == NULL ? 0 : (int)(slash - journal_path) + 1;
    if (stem[0] == '\0') {
        path[0] = '\0';
        return;
    }
    /* A part that was renamed after the commit keeps the bytes that the commit counts. */
    snprintf(path, size, "%.*s%s.part%04llu.csv", beside, journal_path, stem,
             (unsigned long long)image->csv_part + 1);
    if (!exists(path)) {
        snprintf(path, size, "%.*s%s.csv", beside, journal_path, stem);
    }
    if (!exists(path) && directory[0] != '\0') {
        snprintf(path, size, "%s/%s.part%04llu.csv", directory, stem,
                 (unsigned long long)image->csv_part + 1);
        if (!exists(path)) {
            snprintf(path, size, "%s/%s.csv", directory, stem);
        }
    }
}

int mu_journal_image_csv_prefix(const struct mu_journal_image *image, int csv_fd, uint64_t *bytes,
                                struct mu_error *err) {
    struct stat status;
    char last = '\0';
    if (fstat(csv_fd, &status) != 0) {
        return mu_error_sys(err, "stat", "the profile CSV");
    }
    *bytes = (uint64_t)status.st_size;
    if (image->csv_bytes < mu_csv_header_length || image->csv_bytes > *bytes) {
        return MU_OK;
    }
    if (mu_read_at(csv_fd, &last, 1, image->csv_bytes - 1) < 0) {
        return mu_error_sys(err, "read", "the profile CSV");
    }
    *bytes = last == '\n' ? image->csv_bytes : *bytes;
    return MU_OK;
}
