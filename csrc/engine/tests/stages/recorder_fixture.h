/* A directory that is removed afterwards, files as text, and a recorder that writes there. */
#ifndef MU_RECORDER_FIXTURE_H
#define MU_RECORDER_FIXTURE_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stages/drain_calls.h"
#include "stages/fork.h"
#include "stages/names.h"
#include "stages/new_buffer.h"
#include "stages/open_profile.h"
#include "stages/recorder.h"
#include "stages/timer.h"
#include "tests/check.h"

/* Of a drain: the drain thread may hold the lock, and be kept from running, for long. */
static const int64_t drain_wait_ns = 100000000000;

struct fixture {
    char directory[64];
    char journals[64]; /* where journals lie, empty: in the directory */
    struct mu_recorder *recorder;
    struct mu_open_report report;
};

static inline void fixture_directory(struct fixture *fixture) {
    fixture->journals[0] = '\0';
    snprintf(fixture->directory, sizeof(fixture->directory), "/tmp/mu-test-XXXXXX");
    CHECK(mkdtemp(fixture->directory) != NULL);
}

static inline void fixture_remove(struct fixture *fixture) {
    DIR *directory = opendir(fixture->directory);
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        unlinkat(dirfd(directory), entry->d_name, 0);
    }
    closedir(directory);
    CHECK_INT(rmdir(fixture->directory), 0);
}

static inline struct mu_output_config fixture_config(const struct fixture *fixture) {
    struct mu_output_config config = {
        .kind = MU_OUTPUT_FILE, .world_size = 1, .windows_bytes = 1 << 20};
    snprintf(config.log_dir, sizeof(config.log_dir), "%s", fixture->directory);
    snprintf(config.journal_dir, sizeof(config.journal_dir), "%s", fixture->journals);
    snprintf(config.machine, sizeof(config.machine), "host-a");
    return config;
}

/* Opens files in the fixture's directory. */
static inline void fixture_open(struct fixture *fixture) {
    struct mu_error err = {0};
    struct mu_output_config config = fixture_config(fixture);
    if (!CHECK_INT(mu_recorder_open(fixture->recorder, &config, &fixture->report, &err), MU_OK)) {
        fprintf(stderr, "%s\n", err.message);
    }
}

static inline void fixture_start(struct fixture *fixture) {
    struct mu_error err = {0};
    fixture_directory(fixture);
    CHECK_INT(mu_recorder_create(&fixture->recorder, &err), MU_OK);
}

static inline void fixture_end(struct fixture *fixture) {
    mu_recorder_destroy(fixture->recorder);
    fixture_remove(fixture);
}

/* Whether a child can start threads: not under an emulator, for which the Makefile gives the
 * argument; that is printed. */
static inline bool children_have_threads(int argc, char **argv) {
    bool have = argc < 2 || strcmp(argv[1], "no-threads-in-children") != 0;
    if (!have) {
        printf("(children have no threads here) ");
    }
    return have;
}

static inline void stage_start(struct mu_timer *timer, const char *name) {
    size_t length = strlen(name);
    mu_thread_buffer_start(mu_timer_thread_buffer(timer), name, length, mu_name_hash(name, length));
}

static inline enum mu_stop_result stage_stop(struct mu_timer *timer, const char *name) {
    size_t length = strlen(name);
    return mu_thread_buffer_stop(mu_timer_thread_buffer(timer), name, length,
                                 mu_name_hash(name, length));
}

/* A file as a string that the caller frees; empty when it is not there. */
static inline char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return calloc(1, 1);
    }
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    char *text = calloc(1, size + 1);
    CHECK(text != NULL && fread(text, 1, size, file) == size);
    fclose(file);
    return text;
}

static inline int count_of(const char *text, const char *part) {
    int count = 0;
    size_t length = strlen(part);
    const char *end = text + strlen(text);
    /* Not strstr: the sanitizers measure the whole text at every call. */
    for (const char *at = text; (at = memchr(at, part[0], (size_t)(end - at))) != NULL; at++) {
        count += (size_t)(end - at) >= length && memcmp(at, part, length) == 0;
    }
    return count;
}

/* How often `part` is in all CSVs of a directory. */
static inline int count_in_csvs(const char *directory, const char *part) {
    int count = 0;
    DIR *entries = opendir(directory);
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        char path[MU_PATH_BYTES];
        snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
        char *text = strstr(path, ".csv") == NULL ? calloc(1, 1) : read_text(path);
        count += count_of(text, part);
        free(text);
    }
    closedir(entries);
    return count;
}

static inline char *fixture_csv(const struct fixture *fixture) {
    return read_text(fixture->report.csv_path);
}

#endif
