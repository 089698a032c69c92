/* Trees of cgroups and /proc, written by hand, for the tests that read such. */
#ifndef MU_TEST_TREE_H
#define MU_TEST_TREE_H

#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/check.h"

enum { TREE_TEXT_BYTES = 4096 };

static char tree_folder[64];

static inline void tree_write(const char *name, const char *text) {
    char path[TREE_TEXT_BYTES];
    snprintf(path, sizeof(path), "%s/%s", tree_folder, name);
    for (char *at = path + strlen(tree_folder) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        CHECK(mkdir(path, 0755) == 0 || errno == EEXIST);
        *at = '/';
    }
    FILE *file = fopen(path, "we");
    if (CHECK(file != NULL)) {
        CHECK(fputs(text, file) >= 0);
        CHECK(fclose(file) == 0);
    }
}

/* `lines` with the folder for each @. */
static inline void tree_mounts(const char *lines) {
    char text[TREE_TEXT_BYTES];
    const char *from = lines;
    size_t length = 0;
    for (const char *at; (at = strchr(from, '@')) != NULL; from = at + 1) {
        length += (size_t)snprintf(text + length, sizeof(text) - length, "%.*s%s", (int)(at - from),
                                   from, tree_folder);
    }
    snprintf(text + length, sizeof(text) - length, "%s", from);
    tree_write("mountinfo", text);
}

static int tree_remove_one(const char *path, const struct stat *unused, int type,
                           struct FTW *place) {
    (void)unused, (void)type, (void)place;
    return remove(path);
}

static inline void tree_make(void) {
    snprintf(tree_folder, sizeof(tree_folder), "/tmp/mu_tree_XXXXXX");
    CHECK(mkdtemp(tree_folder) != NULL);
}

static inline void tree_remove(void) {
    CHECK(nftw(tree_folder, tree_remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
}

#endif
