/* Reads the rows of a profile CSV from a file descriptor or from memory, in bounded memory.
 *
 * Columns are found by the names in the header, in any order; other columns are left out. Without
 * `readable_time` or `metadata` a file is read all the same: these fields are empty then. Rows are
 * pointers into the reader's buffer, valid until the next call. Quotes are removed in place. A row
 * that is cut, torn or longer than MU_CSV_ROW_MAX is reported and skipped, and reading goes on with
 * the next line. Line numbers begin at 1, for the header. One thread at a time.
 */
#ifndef MU_CSV_READER_H
#define MU_CSV_READER_H

#include "base/error.h"
#include "csv/csv_scan.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* In the order of mu_csv_header. */
enum mu_csv_column {
    MU_CSV_TIMESTAMP,
    MU_CSV_READABLE_TIME,
    MU_CSV_MACHINE_ID,
    MU_CSV_STEP,
    MU_CSV_EVENT_NAME,
    MU_CSV_EVENT_TYPE,
    MU_CSV_DURATION,
    MU_CSV_METADATA,
    MU_CSV_COLUMN_COUNT,
};

enum {
    MU_CSV_READ_SIZE = 256 * 1024, /* bytes a read(2): what the second-level cache holds */
    MU_CSV_ROW_MAX = 1024 * 1024,  /* longest row, bytes */
};

enum mu_csv_status {
    MU_CSV_END,
    MU_CSV_ROW,
    MU_CSV_SKIPPED, /* row->problem says why */
    MU_CSV_FAILED,  /* the error is filled */
};

enum mu_csv_problem {
    MU_CSV_FINE,
    MU_CSV_TOO_LONG,
    MU_CSV_CUT,         /* the file ends within the row, or its quotes do not close */
    MU_CSV_FEW_COLUMNS, /* row->column_count says how many there are */
};

struct mu_csv_row {
    const char *text[MU_CSV_COLUMN_COUNT + 1]; /* the last place takes all other columns */
    uint32_t length[MU_CSV_COLUMN_COUNT + 1];
    uint64_t line; /* where the row starts */
    int column_count;
    enum mu_csv_problem problem;
    int skipped_nul; /* NUL bytes before the row were left out */
};

struct mu_csv_input {
    const char *name;             /* for messages; borrowed */
    int fd;                       /* borrowed; -1 for memory */
    uint64_t limit;               /* bytes of the file that count */
    const char *data;             /* borrowed; with fd < 0 */
    size_t length;                /* of data */
    int has_header;               /* 0: the eight columns in their usual order */
    _Atomic uint64_t *bytes_read; /* counts up while reading; may be NULL */

    /* Asked ten times a second while a pipe has nothing to read; what is not 0 ends the reading
     * with MU_ERR_STOPPED. May be NULL. */
    int (*should_stop)(void *context);
    void *stop_context;
};

struct mu_csv_reader {
    struct mu_csv_input input;
    mu_csv_scan scan;
    char *buffer; /* owned; MU_CSV_SCAN_PADDING bytes more than capacity */
    size_t capacity, begin, end;
    uint64_t taken;   /* bytes read from the input */
    uint64_t line;    /* of the row that comes next */
    int at_end;       /* the input has no more */
    int header_count; /* columns in the header */
    int needed_count; /* the least number of columns with which a row has all of the header's */
    int is_usual;     /* the eight columns in their usual order */
    unsigned absent;  /* columns that the header does not name; bit: enum mu_csv_column */
    int8_t slot[MU_CSV_COLUMNS_MAX]; /* column of the file -> enum mu_csv_column */
};

/* Reads the header. The reader needs mu_csv_reader_reset after a failure, too. */
MU_MUST_CHECK int mu_csv_reader_init(struct mu_csv_reader *reader, const struct mu_csv_input *input,
                                     struct mu_error *err);
void mu_csv_reader_reset(struct mu_csv_reader *reader);

MU_MUST_CHECK enum mu_csv_status mu_csv_reader_next(struct mu_csv_reader *reader,
                                                    struct mu_csv_row *row, struct mu_error *err);

/* Goes on with the first whole line among the last `bytes` of a regular file or of memory, unless
 * the reader has read as far already. */
MU_MUST_CHECK int mu_csv_reader_skip_to_end(struct mu_csv_reader *reader, uint64_t bytes,
                                            struct mu_error *err);

#endif
