#include "host/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 4096, WORDS_BEFORE_OPTIONS = 5 };

/* A hierarchy of cgroups. */
struct hierarchy {
    char mount[LINE_BYTES];  /* where it is mounted; "" as long as it is not found */
    char root[LINE_BYTES];   /* which of its cgroups is there */
    char cgroup[LINE_BYTES]; /* the process's */
};

struct search {
    const char *controller;                        /* borrowed */
    struct hierarchy versions[MU_CGROUP_VERSIONS]; /* 1 and 2 */
};

/* --- lines of /proc ----------------------------------------------------------------------- */

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
static void take_cgroup(char *line, struct search *search) {
    char *controllers = strchr(line, ':');
    char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    if (path == NULL) {
        return;
    }
    *controllers++ = '\0';
    *path++ = '\0';
    struct hierarchy *one = NULL;
    if (strcmp(line, "0") == 0 && *controllers == '\0') {
        one = &search->versions[1];
    } else if (has_word(controllers, search->controller)) {
        one = &search->versions[0];
    }
    if (one != NULL) {
        snprintf(one->cgroup, sizeof(one->cgroup), "%s", path);
    }
}

static struct hierarchy *mounted(struct search *search, const char *type, const char *options) {
    if (type != NULL && strcmp(type, "cgroup2") == 0) {
        return &search->versions[1];
    }
    bool is_first = type != NULL && strcmp(type, "cgroup") == 0 && options != NULL &&
                    has_word(options, search->controller);
    return is_first ? &search->versions[0] : NULL;
}

/* A line of `mountinfo`: root and mount point are the fourth and fifth word; after " - " are the
 * type, the source and the options of the file system. */
static void take_mount(char *line, struct search *search) {
    char *type = strstr(line, " - ");
    char *words[WORDS_BEFORE_OPTIONS];
    char *rest = line;
    if (type == NULL) {
        return;
    }
    *type = '\0';
    type += strlen(" - ");
    for (int i = 0; i < WORDS_BEFORE_OPTIONS; i++) {
        words[i] = strtok_r(i == 0 ? rest : NULL, " ", &rest);
        if (words[i] == NULL) {
            return;
        }
    }
    char *after;
    const char *name = strtok_r(type, " ", &after);
    const char *source = strtok_r(NULL, " ", &after);
    const char *options = source == NULL ? NULL : strtok_r(NULL, " ", &after);
    struct hierarchy *found = mounted(search, name, options);
    if (found != NULL && found->mount[0] == '\0') {
        snprintf(found->root, sizeof(found->root), "%s", words[3]);
        snprintf(found->mount, sizeof(found->mount), "%s", words[4]);
    }
}

typedef void take_line(char *line, struct search *search);

static void read_lines(const char *proc, const char *name, take_line *take, struct search *search) {
    char path[PATH_MAX], line[LINE_BYTES];
    snprintf(path, sizeof(path), "%s/%s", proc, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return;
    }
    while (fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        take(line, search);
    }
    fclose(file);
}

/* --- places ------------------------------------------------------------------------------- */

/* The process's cgroup as a place below the mount point. */
static void locate(const struct hierarchy *one, struct mu_cgroup *out) {
    size_t root = strlen(one->root);
    const char *below = one->cgroup;
    out->folder[0] = '\0';
    out->mount = strlen(one->mount);
    if (out->mount == 0) {
        return;
    }
    if (root > 1) {
        below = strncmp(below, one->root, root) == 0 ? below + root : "";
    }
    below = strcmp(below, "/") == 0 ? "" : below;
    int length = snprintf(out->folder, sizeof(out->folder), "%s%s", one->mount, below);
    if (length >= (int)sizeof(out->folder)) {
        out->folder[0] = '\0';
    }
}

void mu_cgroup_find(const char *proc, const char *controller,
                    struct mu_cgroup found[MU_CGROUP_VERSIONS]) {
    struct search *search = calloc(1, sizeof(*search));
    for (int i = 0; i < MU_CGROUP_VERSIONS; i++) {
        found[i].folder[0] = '\0';
    }
    if (search == NULL) {
        return; /* as if there was none */
    }
    search->controller = controller;
    read_lines(proc, "cgroup", take_cgroup, search);
    read_lines(proc, "mountinfo", take_mount, search);
    for (int i = 0; i < MU_CGROUP_VERSIONS; i++) {
        locate(&search->versions[i], &found[i]);
    }
    free(search);
}

bool mu_cgroup_leave(struct mu_cgroup *cgroup) {
    char *last = strrchr(cgroup->folder, '/');
    if (last == NULL || (size_t)(last - cgroup->folder) < cgroup->mount) {
        return false;
    }
    *last = '\0';
    return true;
}

struct mu_proc_file mu_cgroup_open(const struct mu_cgroup *cgroup, const char *name) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof(path), "%s/%s", cgroup->folder, name);
    if (cgroup->folder[0] == '\0' || length >= (int)sizeof(path)) {
        errno = ENOENT;
        return MU_NO_PROC_FILE;
    }
    return mu_proc_open(path);
}
