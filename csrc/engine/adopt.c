#include "adopt.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "journal_reader.h"

static bool ends_with(const char *name, const char *suffix) {
    size_t length = strlen(name), tail = strlen(suffix);
    return length >= tail && strcmp(name + length - tail, suffix) == 0;
}

/* `<label>.<pid>.<start>.journal` and the like, but not of `<label>.w1`. */
static bool belongs_to(const char *name, const char *label, const char *suffix) {
    size_t length = strlen(label);
    return strncmp(name, label, length) == 0 && name[length] == '.' && name[length + 1] >= '0' &&
           name[length + 1] <= '9' && ends_with(name, suffix);
}

/* The journal's path that a pointer file holds. */
static bool read_pointer(const char *pointer, char *path, size_t size) {
    FILE *file = fopen(pointer, "re");
    if (file == NULL) {
        return false;
    }
    bool read = fgets(path, (int)size, file) != NULL;
    fclose(file);
    path[strcspn(path, "\n")] = '\0';
    return read && path[0] == '/';
}

/* Cuts the CSV to what the commit counts, when the commit speaks of the current part. */
static int cut_to_commit(struct mu_output *output, const struct mu_journal_image *image,
                         struct mu_error *err) {
    if (image->csv_part != output->part || image->csv_bytes > output->csv_bytes) {
        return MU_OK;
    }
    if (ftruncate(output->fd, (off_t)image->csv_bytes) != 0) {
        return mu_error_sys(err, "cut", output->csv_path);
    }
    output->csv_bytes = image->csv_bytes;
    return MU_OK;
}

static int adopt_one(struct mu_output *output, const char *path, struct mu_adopted *adopted,
                     struct mu_error *err) {
    struct mu_journal_image image;
    int code = mu_journal_image_read(&image, path, err);
    if (code != MU_OK) {
        return code;
    }
    struct mu_csv_writer writer;
    struct mu_recovered recovered;
    mu_csv_writer_init(&writer);
    code = cut_to_commit(output, &image, err);
    if (code == MU_OK) {
        code = mu_journal_image_rows(&image, &writer, &recovered, err);
    }
    if (code == MU_OK) {
        code = mu_output_write(output, writer.buffer, writer.length, err);
    }
    if (code == MU_OK) {
        adopted->journals++;
        adopted->rows += recovered.rows;
        adopted->last_attempt = image.header->attempt;
        unlink(path);
    }
    mu_csv_writer_free(&writer);
    mu_journal_image_close(&image);
    return code;
}

/* A journal that cannot be read is put aside, never deleted. */
static void put_aside(const char *path) {
    char aside[MU_PATH_BYTES + 16];
    snprintf(aside, sizeof(aside), "%s.unreadable", path);
    rename(path, aside);
}

int mu_adopt_journals(struct mu_output *output, const char *label, struct mu_adopted *adopted,
                      struct mu_error *err) {
    memset(adopted, 0, sizeof(*adopted));
    DIR *directory = opendir(output->directory);
    if (directory == NULL) {
        return mu_error_sys(err, "open directory", output->directory);
    }
    int code = MU_OK;
    for (struct dirent *entry; code == MU_OK && (entry = readdir(directory)) != NULL;) {
        char path[MU_PATH_BYTES], journal[MU_PATH_BYTES];
        bool pointer = belongs_to(entry->d_name, label, ".journal-ref");
        if (!pointer && !belongs_to(entry->d_name, label, ".journal")) {
            continue;
        }
        snprintf(path, sizeof(path), "%s/%s", output->directory, entry->d_name);
        snprintf(journal, sizeof(journal), "%s", path);
        if (pointer && !read_pointer(path, journal, sizeof(journal))) {
            continue;
        }
        if (pointer && access(journal, F_OK) != 0) {
            continue; /* on another host, or gone with a reboot */
        }
        if (mu_journal_is_held(journal)) {
            continue;
        }
        int result = adopt_one(output, journal, adopted, err);
        if (result == MU_ERR_FORMAT || result == MU_ERR_VERSION) {
            put_aside(journal);
        } else {
            code = result;
        }
        if (pointer && result == MU_OK) {
            unlink(path);
        }
    }
    closedir(directory);
    return code;
}
