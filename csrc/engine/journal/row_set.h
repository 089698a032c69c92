/* Rows as text, and which of them are in the CSV files already.
 *
 * A START or END is known by the node id of its stage, another row by all that it says but its
 * time and its thread. Times are compared with a tolerance, for whoever wrote the row may have
 * known the clock better. One thread at a time.
 */
#ifndef MU_ROW_SET_H
#define MU_ROW_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/hash_table.h"
#include "csv/csv_reader.h"
#include "csv/csv_writer.h"

/* The metadata of rows that a recovery added and that are not certain. */
#define MU_DOUBTFUL_MARK ",doubtful=1"

struct mu_set_row {
    uint64_t key;
    int64_t at_ns;
    size_t begin, end; /* in the text, with the row that opens it */
    uint32_t next;     /* the number of the next row with the key; 0: none */
    bool is_stage;
    bool is_unproven; /* it has no name, or is of a record that may not be whole */
    bool is_there;    /* in a CSV */
};

struct mu_row_set {
    struct mu_set_row *rows; /* owned */
    size_t count, allocated;
    struct mu_hash_table first; /* the number of the first row with a key, from 1 */
    int64_t first_ns;           /* of the oldest row */
};

/* The rows of a writer's buffer. */
MU_MUST_CHECK int mu_row_set_init(struct mu_row_set *set, const struct mu_csv_writer *writer,
                                  struct mu_error *err);
void mu_row_set_reset(struct mu_row_set *set);

/* The rows from that byte of the text on are unproven. */
void mu_row_set_unproven_from(struct mu_row_set *set, size_t begin);

enum { MU_ANY_TIME = -1 };

/* How a row of a CSV is recognised. */
struct mu_row_rule {
    int64_t stage_ns;  /* how far the times of a stage's rows may differ; MU_ANY_TIME */
    int64_t event_ns;  /* the same of other rows */
    bool takes_events; /* otherwise only stages are compared */
    int32_t pid;       /* whose lost records are counted */
};

/* What a CSV says. */
struct mu_rows_there {
    uint64_t found; /* rows of the set, stages only */
    int64_t oldest_ns, newest_ns;
    uint64_t reported_drops, reported_unplaced;
    uint32_t last_attempt;
    bool clock_changed;
    bool has_offset; /* a row of the process says its time offset */
    int64_t offset_ns;
};

void mu_rows_there_init(struct mu_rows_there *there);

/* Reads a piece of a CSV, which begins with a row or the header. `set` may be NULL. */
MU_MUST_CHECK int mu_row_set_compare(struct mu_row_set *set, const struct mu_csv_input *piece,
                                     const struct mu_row_rule *rule, struct mu_rows_there *there,
                                     struct mu_error *err);

/* What becomes of the rows that are in no CSV. */
struct mu_rows_kept {
    const char *mark; /* more metadata for each, with a leading comma; NULL: none */
    bool needs_proof; /* rows that are unproven are left out */
    uint64_t rows, unproven;
};

/* Leaves in the writer's buffer only these rows. */
MU_MUST_CHECK int mu_row_set_keep(const struct mu_row_set *set, struct mu_csv_writer *writer,
                                  struct mu_rows_kept *kept, struct mu_error *err);

#endif
