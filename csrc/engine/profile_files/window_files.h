/* The files with a process's windows of steps: of each width `<label>.<width>.windows`, and the one
 * before it, `<label>.<width>.old.windows`.
 *
 * A block is appended by one write. A file that has half of its share is renamed to the one before,
 * over an older one of that name: so the finest windows of old times go first, and the coarser ones
 * have their steps. One process at a time: the one that holds the CSV. One caller at a time.
 */
#ifndef MU_WINDOW_FILES_H
#define MU_WINDOW_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/own_files.h"
#include "journal/step_windows.h"
#include "profile_files/output.h"

struct mu_window_file {
    int fd; /* owned; -1: not open */
    struct mu_file_id file;
    uint64_t bytes;      /* up to the end of the last whole block */
    uint64_t most_bytes; /* from which on it is renamed */
    uint32_t number;     /* of files that were opened, from 1 */
    bool exists;
};

struct mu_window_files {
    struct mu_window_file levels[MU_WINDOW_LEVELS];
    char directory[1024]; /* empty: nothing is written */
    char label[MU_LABEL_BYTES];
    uid_t user;
    uint64_t failed; /* blocks that could not be written */
};

void mu_window_files_init(struct mu_window_files *files);

/* Where blocks go from here on, beside the CSV of `output`. most_bytes: of all files together; 0:
 * none is written. No file is opened before its first block. */
void mu_window_files_begin(struct mu_window_files *files, const struct mu_output *output,
                           const char *label, uint64_t most_bytes);

/* Closes the files. */
void mu_window_files_end(struct mu_window_files *files);

/* What writes to these files; `files` is borrowed. */
struct mu_window_sink mu_window_files_sink(struct mu_window_files *files);

#endif
