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
#include "base/read_at.h"
#include "journal/journal_reader.h"
#include "journal/recovery.h"
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

/* A journal that cannot be read, or holds records that nothing proves, is renamed and never
 * deleted.
 */
static bool set_aside(const struct dead_journal *dead) {
    char aside[MU_PATH_BYTES + 16];
    snprintf(aside, sizeof(aside), "%s.unreadable", dead->path);
    return rename(dead->path, aside) == 0;
}

static void count_adopted(const struct mu_recovery *recovery, struct mu_adopted *adopted) {
    adopted->journals++;
    adopted->rows += recovery->rows;
    if (recovery->doubtful) {
        adopted->doubtful++;
        adopted->doubtful_rows += recovery->rows;
        adopted->unproven += recovery->unproven;
    }
    if (recovery->last_attempt > adopted->last_attempt) {
        adopted->last_attempt = recovery->last_attempt;
    }
}

MU_MUST_CHECK static int adopt_one(struct mu_output *output, const struct dead_journal *dead,
                                   struct mu_adopted *adopted, struct mu_error *err) {
    struct mu_journal_image image;
    struct mu_recovery recovery;
    int code = mu_journal_image_read_dead(&image, dead->path, &dead->user, err);
    if (code != MU_OK) {
        return code;
    }
    code = mu_journal_recover(&image, output->directory, output->stem, &recovery, err);
    if (code == MU_OK) {
        mu_journal_remove_left(&image, dead->path, own_user_beside);
        code = mu_output_write(output, recovery.writer.buffer, recovery.writer.length, err);
    }
    if (code == MU_OK) {
        count_adopted(&recovery, adopted);
        if (recovery.unproven == 0 || !set_aside(dead)) {
            remove_adopted(dead);
        }
    }
    mu_recovery_free(&recovery);
    mu_journal_image_close(&image);
    return code;
}

/* Whether `bytes` of the file from `offset` on are zeros, as far as there are so many. */
static bool is_zero(int fd, uint64_t offset, size_t bytes) {
    char block[4096];
    while (bytes > 0) {
        size_t wanted = bytes < sizeof(block) ? bytes : sizeof(block);
        ssize_t got = mu_read_at(fd, block, wanted, offset);
        if (got <= 0) {
            return got == 0;
        }
        for (ssize_t i = 0; i < got; i++) {
            if (block[i] != '\0') {
                return false;
            }
        }
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return true;
}

/* A process that is killed while it makes its journal leaves a file without a header, or with one
 * that lacks its first bytes. After a power loss the whole first page may be missing, and pages
 * with records be there. */
static bool never_began(const char *path) {
    enum { MAGIC = sizeof(((struct mu_journal_header *)NULL)->magic), PAGE = 4096 };
    int fd = mu_open_regular(path, O_RDONLY, 0);
    if (fd < 0) {
        return false;
    }
    bool never = is_zero(fd, 0, MAGIC) &&
                 (!is_zero(fd, MAGIC, PAGE - MAGIC) || is_zero(fd, PAGE, MU_JOURNAL_BYTES - PAGE));
    close(fd);
    return never;
}

/* Unless it was always empty or goes on in another file. What led to it leads nowhere then. */
static void put_aside(const struct dead_journal *dead, struct mu_adopted *adopted) {
    bool empty = never_began(dead->path) || mu_journal_has_moved(dead->path);
    bool gone = empty ? unlink(dead->path) == 0 : set_aside(dead);
    adopted->unreadable += gone && !empty;
    if (gone && dead->pointer[0] != '\0') {
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
                                     struct mu_adopted *adopted, struct mu_error *err) {
    struct mu_journal_image image;
    int code = mu_journal_image_read_own(&image, found->path, found->user, err);
    if (code == MU_ERR_FORMAT || code == MU_ERR_VERSION) {
        put_aside(found, adopted);
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

/* In the order of their processes. */
static int compare_journals(const void *a, const void *b) {
    const struct dead_journal *left = a, *right = b;
    if (left->csv_part != right->csv_part) {
        return left->csv_part < right->csv_part ? -1 : 1;
    }
    return (left->csv_bytes > right->csv_bytes) - (left->csv_bytes < right->csv_bytes);
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
            code = add_journal(journals, &found, adopted, err);
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
