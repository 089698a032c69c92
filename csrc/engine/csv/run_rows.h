/* What a process records beside its stages: values of counters, and rows about the run itself.
 *
 * Counters become columns. Of the rows about the run (`my_utils.run`, `.process`, `.sync`,
 * `.workload`, `.bucket`, `.group`, `.launch`, `.file`, `.ready`, `.clock_step`, `.run_end`,
 * `.dropped`) the pairs are kept as they are. Both are bounded.
 *
 * All memory is owned. One thread at a time.
 */
#ifndef MU_RUN_ROWS_H
#define MU_RUN_ROWS_H

#include "base/error.h"
#include "base/hash_table.h"
#include "csv/name_list.h"

#include <stddef.h>
#include <stdint.h>

enum {
    MU_RUN_NOTES_MAX = 1 << 16,      /* of those of each step; twice as many of all */
    MU_COUNTER_VALUES_MAX = 1 << 26, /* a rank's; what comes after them is left out */
};

struct mu_run_note {
    int64_t attempt, at_ns;
    int64_t tid; /* -1 where the row has none */
    char *text;  /* the row's name, a space and its pairs, percent-encoded as in the row; owned */
};

struct mu_run_rows {
    size_t count, capacity; /* of the values of counters */
    int64_t *step;
    double *value;
    uint32_t *name;
    int32_t *attempt;
    struct mu_name_list names; /* "memory.rss_bytes", "loss" */
    size_t note_count, note_capacity;
    struct mu_run_note *notes;
    struct mu_hash_table note_by_text; /* their places and 1; of those that are written once */
};

void mu_run_rows_init(struct mu_run_rows *rows);
void mu_run_rows_reset(struct mu_run_rows *rows);

/* `pairs`: of the row's user part. Values that are not numbers are ignored. */
MU_MUST_CHECK int mu_run_rows_counter(struct mu_run_rows *rows, struct mu_span name,
                                      struct mu_span pairs, int64_t step, int64_t attempt,
                                      struct mu_error *err);

/* Whether a row of that name is about the run. */
int mu_run_rows_is_note(struct mu_span name);

/* Keeps the row. A copy of one that is there, as each part has it, is left out. */
MU_MUST_CHECK int mu_run_rows_note(struct mu_run_rows *rows, struct mu_span name,
                                   const struct mu_metadata *metadata, int64_t at_ns,
                                   int64_t attempt, struct mu_error *err);

#endif
