#include "profile_files/adopt.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "journal/journal_reader.h"

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

/* The journal's path that a pointer file holds; its name must be the pointer's own, so that no
 * pointer leads to a file that is no journal of this label. */
static bool read_pointer(const char *pointer, char *path, size_t size) {
    FILE *file = fopen(pointer, "re");
    if (file == NULL) {
        return false;
    }
    bool read = fgets(path, (int)size, file) != NULL;
    fclose(file);
    if (!read || path[0] != '/') {
        return false;
    }
    path[strcspn(path, "\n")] = '\0';
    const char *name = strrchr(path, '/') + 1, *own = strrchr(pointer, '/') + 1;
    return strlen(name) + strlen("-ref") == strlen(own) && strncmp(name, own, strlen(name)) == 0;
}

/* Cuts the CSV to the bytes that the commit counts, when the commit is about the current part and
 * nobody has written after it. */
static int cut_to_commit(struct mu_output *output, const struct mu_journal_image *image,
                         struct mu_error *err) {
    uint64_t prefix;
    if (image->csv_part < output->part) {
        return MU_OK; /* a lower number of parts here means that the oldest were removed */
    }
    int code = mu_journal_image_csv_prefix(image, output->fd, &prefix, err);
    if (code != MU_OK || prefix >= output->csv_bytes) {
        return code;
    }
    if (ftruncate(output->fd, (off_t)prefix) != 0) {
        return mu_error_sys(err, "cut", output->csv_path);
    }
    output->csv_bytes = prefix;
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
        if (image.header->attempt > adopted->last_attempt) {
            adopted->last_attempt = image.header->attempt;
        }
        unlink(path);
    }
    mu_csv_writer_free(&writer);
    mu_journal_image_close(&image);
    return code;
}

/* A process that is killed while it makes its journal leaves a file without a header. */
static bool never_began(const char *path) {
    static const char nothing[sizeof(((struct mu_journal_header *)NULL)->magic)];
    char magic[sizeof(nothing)];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t got = pread(fd, magic, sizeof(magic), 0);
    close(fd);
    return got == 0 ||
           (got == (ssize_t)sizeof(magic) && memcmp(magic, nothing, sizeof(magic)) == 0);
}

/* A journal that cannot be read is renamed and never deleted, unless it was always empty. */
static void put_aside(const char *path) {
    char aside[MU_PATH_BYTES + 16];
    if (never_began(path)) {
        unlink(path);
        return;
    }
    snprintf(aside, sizeof(aside), "%s.unreadable", path);
    rename(path, aside);
}

struct dead_journal {
    char path[MU_PATH_BYTES];
    char pointer[MU_PATH_BYTES];  /* that led there, empty for none */
    uint64_t csv_part, csv_bytes; /* of its last commit */
};

struct dead_journals {
    struct dead_journal *list; /* owned */
    size_t count;
};

/* Checks one entry of the directory. */
static bool is_dead_journal(const struct mu_output *output, const char *label, const char *name,
                            struct dead_journal *found) {
    bool pointer = belongs_to(name, label, ".journal-ref");
    if (!pointer && !belongs_to(name, label, ".journal")) {
        return false;
    }
    memset(found, 0, sizeof(*found));
    snprintf(found->path, sizeof(found->path), "%s/%s", output->directory, name);
    if (pointer) {
        memcpy(found->pointer, found->path, sizeof(found->pointer));
        /* A missing journal is on another host, or a reboot removed it. */
        if (!read_pointer(found->pointer, found->path, sizeof(found->path)) ||
            access(found->path, F_OK) != 0) {
            return false;
        }
    }
    return !mu_journal_is_held(found->path);
}

static int add_journal(struct dead_journals *journals, struct dead_journal *found,
                       struct mu_error *err) {
    struct mu_journal_image image;
    int code = mu_journal_image_read(&image, found->path, err);
    if (code == MU_ERR_FORMAT || code == MU_ERR_VERSION) {
        put_aside(found->path);
        return MU_OK;
    }
    if (code != MU_OK) {
        return code == MU_ERR_IO ? MU_OK : code; /* it stays for users who may read it */
    }
    found->csv_part = image.csv_part;
    found->csv_bytes = image.csv_bytes;
    mu_journal_image_close(&image);
    struct dead_journal *list =
        realloc(journals->list, (journals->count + 1) * sizeof(*journals->list));
    if (list == NULL) {
        return mu_error_no_memory(err, "list of journals");
    }
    journals->list = list;
    list[journals->count++] = *found;
    return MU_OK;
}

/* Journals whose commits end furthest in the CSV come first. Their rows are cut off and written
 * again before rows of older processes are appended. */
static int compare_journals(const void *a, const void *b) {
    const struct dead_journal *left = a, *right = b;
    if (left->csv_part != right->csv_part) {
        return left->csv_part > right->csv_part ? -1 : 1;
    }
    return (left->csv_bytes < right->csv_bytes) - (left->csv_bytes > right->csv_bytes);
}

static int find_journals(const struct mu_output *output, const char *label,
                         struct dead_journals *journals, struct mu_error *err) {
    DIR *directory = opendir(output->directory);
    if (directory == NULL) {
        return mu_error_sys(err, "open directory", output->directory);
    }
    int code = MU_OK;
    struct dead_journal found;
    for (struct dirent *entry; code == MU_OK && (entry = readdir(directory)) != NULL;) {
        if (is_dead_journal(output, label, entry->d_name, &found)) {
            code = add_journal(journals, &found, err);
        }
    }
    closedir(directory);
    if (journals->count > 0) {
        qsort(journals->list, journals->count, sizeof(*journals->list), compare_journals);
    }
    return code;
}

int mu_adopt_journals(struct mu_output *output, const char *label, struct mu_adopted *adopted,
                      struct mu_error *err) {
    struct dead_journals journals = {NULL, 0};
    memset(adopted, 0, sizeof(*adopted));
    int code = find_journals(output, label, &journals, err);
    for (size_t i = 0; code == MU_OK && i < journals.count; i++) {
        code = adopt_one(output, journals.list[i].path, adopted, err);
        if (code == MU_OK && journals.list[i].pointer[0] != '\0') {
            unlink(journals.list[i].pointer);
        }
    }
    free(journals.list);
    return code;
}
