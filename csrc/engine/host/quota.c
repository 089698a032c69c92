#include "host/quota.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 4096, TEXT_BYTES = 2048, NS_IN_US = 1000 };

/* A hierarchy of cgroups that may have quotas. */
struct hierarchy {
    char mount[LINE_BYTES];  /* where it is mounted; "" as long as it is not found */
    char root[LINE_BYTES];   /* which of its cgroups stands there */
    char cgroup[LINE_BYTES]; /* the process's */
};

/* --- where they are ----------------------------------------------------------------------- */

static bool has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += length) {
        bool begins = at == list || at[-1] == ',';
        if (begins && (at[length] == '\0' || at[length] == ',')) {
            return true;
        }
    }
    return false;
}

/* A line of `cgroup`: number, controllers and path, with colons between; version 2 has number 0 and
 * no controllers. */
static void take_cgroup(char *line, struct hierarchy *first, struct hierarchy *second) {
    char *controllers = strchr(line, ':');
    char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    if (path == NULL) {
        return;
    }
    *controllers++ = '\0';
    *path++ = '\0';
    if (strcmp(line, "0") == 0 && *controllers == '\0') {
        snprintf(second->cgroup, sizeof(second->cgroup), "%s", path);
    } else if (has_word(controllers, "cpu")) {
        snprintf(first->cgroup, sizeof(first->cgroup), "%s", path);
    }
}

/* A line of `mountinfo`: root and mount point are the fourth and fifth word; after " - " stand the
 * type, the source and the options of the file system. */
static void take_mount(char *line, struct hierarchy *first, struct hierarchy *second) {
    char *type = strstr(line, " - ");
    char *words[5];
    char *rest = line;
    if (type == NULL) {
        return;
    }
    *type = '\0';
    type += strlen(" - ");
    for (int i = 0; i < 5; i++) {
        words[i] = strtok_r(i == 0 ? rest : NULL, " ", &rest);
        if (words[i] == NULL) {
            return;
        }
    }
    char *after;
    const char *name = strtok_r(type, " ", &after);
    const char *source = strtok_r(NULL, " ", &after);
    const char *options = source == NULL ? NULL : strtok_r(NULL, " ", &after);
    struct hierarchy *found = NULL;
    if (name != NULL && strcmp(name, "cgroup2") == 0) {
        found = second;
    } else if (name != NULL && strcmp(name, "cgroup") == 0 && options != NULL &&
               has_word(options, "cpu")) {
        found = first;
    }
    if (found != NULL && found->mount[0] == '\0') {
        snprintf(found->root, sizeof(found->root), "%s", words[3]);
        snprintf(found->mount, sizeof(found->mount), "%s", words[4]);
    }
}

typedef void take_line(char *line, struct hierarchy *first, struct hierarchy *second);

static void read_lines(const char *proc, const char *name, take_line *take, struct hierarchy *first,
                       struct hierarchy *second) {
    char path[PATH_MAX], line[LINE_BYTES];
    snprintf(path, sizeof(path), "%s/%s", proc, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return;
    }
    while (fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        take(line, first, second);
    }
    fclose(file);
}

/* --- the files ---------------------------------------------------------------------------- */

static bool read_waited(int file, uint64_t *out) {
    char text[TEXT_BYTES];
    ssize_t got = pread(file, text, sizeof(text) - 1, 0);
    if (got <= 0) {
        return false;
    }
    text[got] = '\0';
    const char *in_us = strstr(text, "throttled_usec ");
    const char *in_ns = strstr(text, "throttled_time ");
    if (in_us != NULL) {
        *out = strtoull(in_us + strlen("throttled_usec "), NULL, 10) * NS_IN_US;
    } else if (in_ns != NULL) {
        *out = strtoull(in_ns + strlen("throttled_time "), NULL, 10);
    }
    return in_us != NULL || in_ns != NULL;
}

static void add_file(struct mu_quota *quota, const char *folder) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof(path), "%s/cpu.stat", folder);
    int file = length < (int)sizeof(path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    uint64_t waited;
    if (file < 0) {
        return;
    }
    if (quota->count == MU_QUOTA_LEVELS || !read_waited(file, &waited)) {
        close(file);
        return;
    }
    quota->files[quota->count] = file;
    quota->waited_ns[quota->count++] = waited;
}

/* The process's cgroup as a place below the mount point, then those around it. */
static void add_levels(struct mu_quota *quota, const struct hierarchy *one) {
    char folder[PATH_MAX];
    size_t root = strlen(one->root);
    const char *below = one->cgroup;
    if (one->mount[0] == '\0') {
        return;
    }
    if (root > 1) {
        below = strncmp(below, one->root, root) == 0 ? below + root : "";
    }
    below = strcmp(below, "/") == 0 ? "" : below;
    size_t mount = strlen(one->mount);
    int length = snprintf(folder, sizeof(folder), "%s%s", one->mount, below);
    if (length >= (int)sizeof(folder)) {
        return;
    }
    for (;;) {
        add_file(quota, folder);
        char *last = strrchr(folder, '/');
        if (last == NULL || (size_t)(last - folder) < mount) {
            return;
        }
        *last = '\0';
    }
}

void mu_quota_open(struct mu_quota *quota, const char *proc) {
    struct hierarchy *both = calloc(2, sizeof(*both));
    quota->count = 0;
    if (both == NULL) {
        return; /* as if no cgroup said so */
    }
    read_lines(proc, "cgroup", take_cgroup, &both[0], &both[1]);
    read_lines(proc, "mountinfo", take_mount, &both[0], &both[1]);
    add_levels(quota, &both[0]);
    add_levels(quota, &both[1]);
    free(both);
}

void mu_quota_close(struct mu_quota *quota) {
    while (quota->count > 0) {
        close(quota->files[--quota->count]);
    }
}

bool mu_quota_waited(struct mu_quota *quota, uint64_t *out) {
    bool known = false;
    *out = 0;
    for (int i = 0; i < quota->count; i++) {
        uint64_t waited;
        if (!read_waited(quota->files[i], &waited)) {
            continue;
        }
        uint64_t more = waited > quota->waited_ns[i] ? waited - quota->waited_ns[i] : 0;
        quota->waited_ns[i] = waited;
        known = true;
        *out = more > *out ? more : *out;
    }
    return known;
}
