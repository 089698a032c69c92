/* Reads the rows of stages in one part of a profile CSV, one after the other, in bounded memory. It
 * is for readers that do not keep all rows, or that need other columns than a stage table has.
 *
 * Only the fields that the row's kind needs are parsed. Texts point into the reader's buffer, and
 * are valid until the next call. One thread at a time.
 */
#ifndef MU_STAGE_ROWS_H
#define MU_STAGE_ROWS_H

#include "base/error.h"
#include "csv/clock_steps.h"
#include "csv/csv_fields.h"

#include <stdint.h>

enum mu_stage_row_kind {
    MU_STAGE_ROW_NONE,    /* the part has no more */
    MU_STAGE_ROW_START,   /* name, node, parent, tid, tag */
    MU_STAGE_ROW_END,     /* all but attempt */
    MU_STAGE_ROW_PROCESS, /* attempt: the row in which the recording process describes itself */
    MU_STAGE_ROW_BAD,     /* problem: a row that is torn, or has too few columns or too many */
    MU_STAGE_ROW_FAILED,  /* the error is filled */
};

/* The fields of an END row that are not valid; their values are then 0. */
enum mu_stage_row_bad {
    MU_BAD_STEP = 1,
    MU_BAD_DURATION = 2,
    MU_BAD_CUDA = 4,
    MU_BAD_TIME = 8,
    MU_BAD_COMBINATIONS = 16,
};

/* The problem of a row that its process may still be writing. */
#define MU_STAGE_ROW_UNFINISHED "the last row is not finished"

struct mu_stage_row {
    enum mu_stage_row_kind kind;
    unsigned bad;          /* enum mu_stage_row_bad */
    int has_duration;      /* 0: the column is empty */
    int has_cuda;          /* 0: no GPU time was taken */
    uint64_t line;         /* where the row starts, from 1 */
    const char *problem;   /* static text */
    struct mu_span name;   /* UTF-8, as it came */
    struct mu_span tag;    /* percent-encoded; length 0 for none */
    int64_t step, attempt; /* attempt: -1 when the row has none */
    int64_t node, parent;  /* -1 when absent */
    int64_t tid;           /* -1 when absent */
    int64_t end_ns;        /* since the Unix epoch, without steps of the system's clock */
    int64_t duration_ns;   /* not negative */
    int64_t cuda_ns;       /* with has_cuda */
};

struct mu_stage_rows {
    struct mu_csv_reader reader;
    struct mu_second second;
    struct mu_clock_steps clock_steps;
};

/* MU_ERR_FORMAT: the part has no header of a profile CSV. Needs mu_stage_rows_reset after a
 * failure, too. */
MU_MUST_CHECK int mu_stage_rows_init(struct mu_stage_rows *rows, const struct mu_csv_input *input,
                                     struct mu_error *err);
void mu_stage_rows_reset(struct mu_stage_rows *rows);

/* Rows of other kinds are skipped. */
void mu_stage_rows_next(struct mu_stage_rows *rows, struct mu_stage_row *row, struct mu_error *err);

/* A guess whether the next row is in memory already, so that reading it does not wait for a
 * file. */
int mu_stage_rows_at_hand(const struct mu_stage_rows *rows);

#endif
