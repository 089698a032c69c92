#include "profile_files/adopt.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/own_files.h"
#include "journal/journal_reader.h"
#include "profile_files/placement.h"

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

struct dead_journal {
    char path[MU_PATH_BYTES];
    char pointer[MU_PATH_BYTES];  /* that led there, empty for none */
    uid_t user;                   /* its owner, also that of our files there */
    uint64_t csv_part, csv_bytes; /* of its last commit */
};

/* What a pointer file holds. */
struct pointer {
    char path[MU_PATH_BYTES];   /* of the journal */
    char place[MU_PLACE_BYTES]; /* where that is; empty when an old version wrote it */
};

static bool read_line(FILE *file, char *line, int size) {
    bool read = fgets(line, size, file) != NULL;
    line[read ? strcspn(line, "\n") : 0] = '\0';
    return read;
}

/* The journal's name must be the pointer's own, so that no pointer leads to a file that is no
 * journal of this label. */
MU_MUST_CHECK static bool read_pointer(const char *path, struct pointer *pointer) {
    int fd = mu_open_regular(path, O_RDONLY, 0);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (file == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return false;
    }
    bool read = read_line(file, pointer->path, sizeof(pointer->path));
    if (!read || !read_line(file, pointer->place, sizeof(pointer->place))) {
        pointer->place[0] = '\0';
    }
    fclose(file);
    if (!read || pointer->path[0] != '/') {
        return false;
    }
    const char *name = strrchr(pointer->path, '/') + 1, *own = strrchr(path, '/') + 1;
    return strlen(name) + strlen("-ref") == strlen(own) && strncmp(name, own, strlen(name)) == 0;
}

/* Its process was killed before it wrote the pointer, and made no journal yet. */
static bool is_empty_file(const char *path, uid_t user) {
    struct stat status;
    return lstat(path, &status) == 0 && S_ISREG(status.st_mode) && status.st_size == 0 &&
           status.st_uid == user;
}

/* Whether the journal is gone from the very directory where it was: a process was killed between
 * the two. */
static bool leads_nowhere(const struct pointer *pointer) {
    char place[MU_PLACE_BYTES];
    mu_placement_of(pointer->path, place);
    return place[0] != '\0' && strcmp(pointer->place, place) == 0 &&
           access(pointer->path, F_OK) != 0 && errno == ENOENT;
}

/* Cuts the CSV to the bytes that the commit counts, when the commit is about the current part and
 * nobody has written after it. */
MU_MUST_CHECK static int cut_to_commit(struct mu_output *output,
                                       const struct mu_journal_image *image, struct mu_error *err) {
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

/* Lets the journal say where its rows are about to be written, when that is not where its process
 * would have written them: in another part, or after the rows of another process. */
MU_MUST_CHECK static int say_where(const struct mu_output *output, const struct dead_journal *dead,
                                   const struct mu_journal_image *image, struct mu_error *err) {
    if (image->csv_part == output->part && image->csv_bytes == output->csv_bytes) {
        return MU_OK;
    }
    return mu_journal_move_commit(dead->path, dead->user, image, output->part, output->csv_bytes,
                                  err);
}

/* One that cannot be removed is emptied: its rows are in the CSV, and the next process would write
 * them once more. */
static void remove_adopted(const struct dead_journal *dead) {
    if (unlink(dead->path) == 0 || errno == ENOENT) {
        return;
    }
    int fd = mu_open_own(dead->path, O_WRONLY, 0, dead->user);
    if (fd >= 0) {
        int emptied = ftruncate(fd, 0);
        (void)emptied; /* nothing more can be done */
        close(fd);
    }
}

static uid_t own_user_beside(const char *path) {
    char directory[MU_PATH_BYTES];
    snprintf(directory, sizeof(directory), "%s", path);
    char *slash = strrchr(directory, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    return mu_own_user(directory);
}

MU_MUST_CHECK static int adopt_one(struct mu_output *output, const struct dead_journal *dead,
                                   struct mu_adopted *adopted, struct mu_error *err) {
    struct mu_journal_image image;
    int code = mu_journal_image_read_own(&image, dead->path, dead->user, err);
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
        code = say_where(output, dead, &image, err);
    }
    if (code == MU_OK) {
        mu_journal_remove_left(&image, dead->path, own_user_beside);
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
        remove_adopted(dead);
    }
    mu_csv_writer_free(&writer);
    mu_journal_image_close(&image);
    return code;
}

/* A process that is killed while it makes its journal leaves a file without a header. */
static bool never_began(const char *path) {
    static const char nothing[sizeof(((struct mu_journal_header *)NULL)->magic)];
    char magic[sizeof(nothing)];
    int fd = mu_open_regular(path, O_RDONLY, 0);
    if (fd < 0) {
        return false;
    }
    ssize_t got = pread(fd, magic, sizeof(magic), 0);
    close(fd);
    return got == 0 ||
           (got == (ssize_t)sizeof(magic) && memcmp(magic, nothing, sizeof(magic)) == 0);
}

/* A journal that cannot be read is renamed and never deleted, unless it was always empty or goes on
 * in another file. What led to it leads nowhere then. */
static void put_aside(const struct dead_journal *dead) {
    char aside[MU_PATH_BYTES + 16];
    snprintf(aside, sizeof(aside), "%s.unreadable", dead->path);
    bool empty = never_began(dead->path) || mu_journal_has_moved(dead->path);
    int rc = empty ? unlink(dead->path) : rename(dead->path, aside);
    if (rc == 0 && dead->pointer[0] != '\0') {
        unlink(dead->pointer);
    }
}

struct dead_journals {
    struct dead_journal *list; /* owned */
    size_t count;
};

/* Whether nobody writes it and it is ours. One of another user is counted: it may do harm, and may
 * be wanted. */
static bool may_be_adopted(const struct dead_journal *dead, struct mu_adopted *adopted) {
    if (mu_journal_is_held(dead->path)) {
        return false;
    }
    int fd = mu_open_own(dead->path, O_RDONLY, 0, dead->user);
    if (fd >= 0) {
        close(fd);
        return true;
    }
    bool foreign = mu_is_of_others(errno) || errno == EACCES;
    adopted->foreign += foreign;
    return !foreign;
}

/* Checks one entry of the directory. */
static bool is_dead_journal(const struct mu_output *output, const char *label, const char *name,
                            struct dead_journal *found, struct mu_adopted *adopted) {
    bool pointer = belongs_to(name, label, ".journal-ref");
    if (!pointer && !belongs_to(name, label, ".journal")) {
        return false;
    }
    memset(found, 0, sizeof(*found));
    snprintf(found->path, sizeof(found->path), "%s/%s", output->directory, name);
    found->user = output->user;
    if (pointer) {
        struct pointer pointer_file;
        memcpy(found->pointer, found->path, sizeof(found->pointer));
        bool read = read_pointer(found->pointer, &pointer_file);
        bool useless =
            read ? leads_nowhere(&pointer_file) : is_empty_file(found->pointer, output->user);
        if (useless) {
            unlink(found->pointer);
        }
        if (useless || !read) {
            return false;
        }
        memcpy(found->path, pointer_file.path, sizeof(found->path));
        if (access(found->path, F_OK) != 0) { /* on another host, or a reboot removed it */
            return false;
        }
        found->user = own_user_beside(found->path);
    }
    return may_be_adopted(found, adopted);
}

MU_MUST_CHECK static int add_journal(struct dead_journals *journals, struct dead_journal *found,
                                     struct mu_error *err) {
    struct mu_journal_image image;
    int code = mu_journal_image_read_own(&image, found->path, found->user, err);
    if (code == MU_ERR_FORMAT || code == MU_ERR_VERSION) {
        put_aside(found);
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

MU_MUST_CHECK static int find_journals(const struct mu_output *output, const char *label,
                                       struct dead_journals *journals, struct mu_adopted *adopted,
                                       struct mu_error *err) {
    DIR *directory = opendir(output->directory);
    if (directory == NULL) {
        return mu_error_sys(err, "open directory", output->directory);
    }
    int code = MU_OK;
    struct dead_journal found;
    for (struct dirent *entry; code == MU_OK && (entry = readdir(directory)) != NULL;) {
        if (is_dead_journal(output, label, entry->d_name, &found, adopted)) {
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
    int code = find_journals(output, label, &journals, adopted, err);
    for (size_t i = 0; code == MU_OK && i < journals.count; i++) {
        code = adopt_one(output, &journals.list[i], adopted, err);
        if (code == MU_OK && journals.list[i].pointer[0] != '\0') {
            unlink(journals.list[i].pointer);
        }
    }
    free(journals.list);
    return code;
}
