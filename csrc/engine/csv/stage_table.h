/* The finished stages of one process of one rank, as columns. Analyses over ranks start from them.
 *
 * A table takes the parts of a file set in order. Each END row becomes a row of the table. START
 * rows show the stages around it, which make its path. Counters and rows about the run are kept
 * beside them. Memory holds the rows, the paths and the open stages. Times are nanoseconds,
 * include the clock offset of the run, as in the CSV, and leave out steps of the system's clock.
 * The table owns everything in it. One thread at a time.
 */
#ifndef MU_STAGE_TABLE_H
#define MU_STAGE_TABLE_H

#include "base/error.h"
#include "base/id_map.h"
#include "csv/clock_steps.h"
#include "csv/csv_fields.h"
#include "csv/name_list.h"
#include "csv/run_rows.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MU_PART_BEGIN_BYTES = 256 * 1024, /* and the copies of rows of older parts beyond it */
    MU_PART_END_BYTES = 64 * 1024,
    MU_STAGE_PATHS_MAX = 20000,     /* what comes after them counts as MU_STAGE_OTHER */
    MU_STAGE_FULL_NAME_MAX = 16384, /* bytes with the names around it; else MU_STAGE_OTHER */
    MU_STAGE_OPEN_MAX = 65536,      /* stages open at once; those after them have no parent */
    MU_STAGE_OTHER = 0,             /* the path "(other)" */
};

#define MU_STAGE_NO_TIME INT64_MIN

struct mu_stage_path {
    uint32_t parent; /* a path; itself when it has none */
    uint32_t length;
    uint32_t full_bytes; /* of all names around it and its own, a byte between each two */
    const char *name;    /* the stage's own name, UTF-8, not terminated; owned */
};

struct mu_process_metadata {
    char host[256];  /* of the last process row; "" when there was none */
    char label[256]; /* the same; percent-encoded as in the row */
    int64_t world_size, attempt, pid;
    size_t first_note;      /* of the last process, among those of the run */
    int64_t clock_error_ns; /* of the last clock synchronisation; -1 when there was none */
    uint64_t dropped;       /* records that the run lost, as its rows report */
};

struct mu_stage_counts {
    uint64_t rows, bad_rows; /* read and understood; not understood */
    uint64_t open;           /* stages that began and did not end, once all is read */
};

struct mu_stage_table {
    /* Set before the first part. */
    bool only_notes; /* rows about the run alone are taken */
    bool only_ends;  /* of each part the beginning and the end, with counters */
    bool is_copy;    /* the last row about the run was of an older part */
    size_t count, capacity;
    int64_t *step, *begin_ns, *end_ns, *tid; /* tid is -1 where the row has none */
    double *cuda_ms;                         /* NaN where the row has none */
    int64_t *cuda_begin_ns, *cuda_error_ns;  /* on the host's axis; MU_STAGE_NO_TIME, -1 */
    uint32_t *path, *tag;                    /* tag: a number of `tags` */
    int32_t *attempt;
    struct mu_stage_path *paths;
    uint32_t path_count, path_capacity;
    struct mu_name_list tags;
    struct mu_run_rows run_rows;
    struct mu_process_metadata process;
    struct mu_stage_counts counts;
    struct mu_hash_table path_by_name; /* by the name and the parent */
    struct mu_id_map open_by_node;
    struct mu_second second;
    struct mu_clock_steps clock_steps;
};

MU_MUST_CHECK int mu_stage_table_init(struct mu_stage_table *table, struct mu_error *err);
void mu_stage_table_reset(struct mu_stage_table *table);

/* MU_ERR_FORMAT: this part is not a profile CSV; the table can go on with the next. */
MU_MUST_CHECK int mu_stage_table_read(struct mu_stage_table *table,
                                      const struct mu_csv_input *input, struct mu_error *err);

#endif
