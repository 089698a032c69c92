/* Turns records into CSV rows in the order of time.
 *
 * The drain of a living process and the recovery of a dead one use the same code. Both fill views
 * of thread buffers; neither the numbers nor the texts in them are trusted. Not thread-safe.
 */
#ifndef MU_ROWS_H
#define MU_ROWS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "csv/csv_writer.h"
#include "csv/lost_rows.h"
#include "csv/once_rows.h"
#include "journal/gpu_rows.h"
#include "journal/journal_format.h"
#include "journal/strings.h"

/* A stage whose START may be due before its END is known. */
struct mu_open_view {
    uint64_t node; /* 0: none at this depth */
    uint64_t parent;
    int64_t step;
    uint64_t start;
    uint32_t name;
};

/* False, with `open` untouched, when the slot is empty or changes during the read. Then the record
 * of the stage that was there is in the ring, and the one that comes is newer than the read. */
bool mu_open_view_load(struct mu_open_view *open, const struct mu_open_stage *stage);

/* A record whose END row waits for its GPU time. Its slots are kept. */
struct mu_held_row {
    uint64_t position;
    int64_t began_ns;  /* monotonic, as in its START row */
    int64_t offset_ns; /* from monotonic to the rows' time, when its START row was written */
    uint64_t step;     /* of the pool, at the first request */
};

struct mu_step_windows;

/* The part of a thread buffer that becomes rows now: the slots [from, to), and the stages that were
 * open then. */
struct mu_buffer_view {
    const struct mu_record *ring; /* borrowed: MU_RING_SLOTS */
    uint64_t from;
    uint64_t to;
    struct mu_open_view open[MU_OPEN_MAX];  /* by slot */
    struct mu_started started[MU_OPEN_MAX]; /* by slot; in and out */
    uint32_t held_count;                    /* in and out, as `held`, oldest first */
    struct mu_held_row held[MU_HELD_MAX];
    char track[MU_CSV_TRACK_MAX];
    size_t track_length;
    bool changed;                    /* out: rows were written or started stages changed */
    struct mu_step_windows *windows; /* borrowed: adds its stages up; NULL: nobody does */
};

struct mu_row_ref;
struct mu_quoted_name {
    char *text; /* owned, but for `unkept` */
    uint32_t length;
};

struct mu_rows {
    struct mu_row_ref *refs; /* owned scratch */
    size_t refs_allocated;
    uint64_t *positions; /* owned scratch */
    size_t positions_allocated;
    char *scratch; /* owned: a payload in one piece */
    size_t scratch_allocated;
    struct mu_quoted_name names[MU_STRINGS_MAX];
    struct mu_quoted_name unkept; /* the last one for which there was no memory */
    char unkept_text[2 * MU_STRING_BYTES_MAX + 2];
    uint64_t bad_records;     /* that were not valid and were skipped */
    uint64_t unnamed;         /* whose names are not among the strings: written without */
    struct mu_lost_rows lost; /* that were not written for want of memory */
};

void mu_rows_init(struct mu_rows *rows);
void mu_rows_free(struct mu_rows *rows);

struct mu_row_context {
    struct mu_strings strings;
    struct mu_timeline *timeline;
    int64_t real_offset_ns;        /* added to monotonic times */
    int64_t user_offset_ns;        /* added to everything */
    const struct mu_gpu_rows *gpu; /* NULL: there are no GPU times, and nothing is held back */
    struct mu_once_rows *once;     /* takes rows that are written once; NULL: nobody does */
};

/* Writes the rows of all views, merged by time. After MU_ERR_NO_MEMORY the remaining rows are
 * missing, and counted in `lost`. */
MU_MUST_CHECK int mu_rows_write(struct mu_rows *rows, const struct mu_row_context *context,
                                struct mu_buffer_view *views, size_t view_count,
                                struct mu_csv_writer *writer, struct mu_error *err);

/* Writes the STARTs of stages that are still open after the rows of the view once more: each part
 * of a CSV has the START of whatever ends in it. */
void mu_rows_repeat_starts(struct mu_rows *rows, const struct mu_row_context *context,
                           const struct mu_buffer_view *view, struct mu_csv_writer *writer);

/* Adapts the open stages of a view to the records in [view->to, end), which a later view writes.
 * Rows of one thread buffer must not overtake each other. */
void mu_buffer_view_cut_open(struct mu_buffer_view *view, uint64_t end);

/* Why records were lost. */
#define MU_DROPPED_RING_FULL "ring_full"
#define MU_DROPPED_NO_ROOM "no_room"
#define MU_DROPPED_JOURNAL_LOST "journal_lost"
#define MU_DROPPED_NOT_WRITTEN "not_written"

/* The row that says how many records the process lost, and why. */
void mu_rows_write_drops(struct mu_csv_writer *writer, int64_t real_ns, int32_t pid, uint64_t count,
                         const char *reason);

#endif
