/* The destination of a process's rows: a profile CSV that rotates, memory for the newest rows while
 * no directory is known, or nothing.
 *
 * One process at a time holds a CSV: by a lock, or where the file system has none by a claim file.
 * Writes go to the committed end of the file, so they
 * overwrite what a failed or interrupted write left behind it. One caller at a time.
 */
#ifndef MU_OUTPUT_H
#define MU_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/own_files.h"
#include "csv/lost_rows.h"

enum {
    MU_LABEL_BYTES = 64,
    MU_MEMORY_OUTPUT_BYTES = 8 * 1024 * 1024,
};

enum mu_output_kind {
    MU_OUTPUT_MEMORY = 0,
    MU_OUTPUT_NULL = 1,
    MU_OUTPUT_FILE = 2,
};

struct mu_output {
    int kind;
    int fd;                  /* of the CSV; owned, locked, -1 for none */
    struct mu_file_id file;  /* what fd was opened for */
    bool claimed;            /* by a file, for the file system locks nothing */
    uint64_t csv_bytes;      /* committed */
    uint64_t head_bytes;     /* of them, rows of an older part that the part begins with */
    uint64_t part;           /* parts rotated away before the current one */
    uint64_t max_csv_bytes;  /* a part's size; 0 never rotates */
    uint64_t keep_csv_bytes; /* of all parts; 0 keeps all */
    uint64_t removed_parts;  /* so far */
    uid_t user;              /* the owner of our files in the directory */
    bool foreign;            /* an earlier name is a file that is not ours to write to */
    char directory[1024];
    char stem[128]; /* profile_rank_<R>[.wK] */
    char csv_path[MU_PATH_BYTES];

    char *memory; /* owned: rows in text while no file is open */
    size_t memory_bytes;
    size_t memory_allocated;
    struct mu_lost_rows memory_lost; /* the oldest, to stay within MU_MEMORY_OUTPUT_BYTES */
};

void mu_output_init(struct mu_output *output);

/* Closes and frees; the files stay. */
void mu_output_free(struct mu_output *output);

/* Takes the first of `profile_rank_<rank>.csv`, `profile_rank_<rank>.w1.csv`, ... that no living
 * process holds and that this one may write, creates the directory and the file where missing, and
 * cuts a torn last row. `worker` is the number of the name that was taken; 0 is the plain one. A
 * file that is not a profile CSV is an error. */
MU_MUST_CHECK int mu_output_take_csv(struct mu_output *output, const char *directory, int rank,
                                     int *worker, struct mu_error *err);

/* Writes whole rows at the committed end, and advances it. On failure it stays, and the written
 * part of the rows is cut off again. */
MU_MUST_CHECK int mu_output_write(struct mu_output *output, const char *rows, size_t bytes,
                                  struct mu_error *err);

/* Whether the current part has grown beyond max_csv_bytes, without what it begins with. */
bool mu_output_is_full(const struct mu_output *output);

/* Renames the current part to `<stem>.part<NNNN>.csv`, begins a new one with the header and the
 * rows `head`, and then removes the oldest parts above keep_csv_bytes. */
MU_MUST_CHECK int mu_output_rotate(struct mu_output *output, const char *head, size_t head_bytes,
                                   struct mu_error *err);

/* Whether the CSV still exists under its name. */
bool mu_output_is_in_place(const struct mu_output *output);

/* Closes the file and releases its lock. */
void mu_output_drop_csv(struct mu_output *output);

#endif
