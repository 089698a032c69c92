/* The drain turns complete records into rows, writes the rows to the output, and publishes a
 * commit.
 *
 * The order of a drain makes a kill at any moment lose no row and write no row twice. First come
 * the chunks' commits of the next epoch, then the rows in one write, then the commit of the epoch.
 * Only then the ring's slots are free again. Whoever drains holds recorder->drain_lock.
 */
#ifndef MU_DRAIN_H
#define MU_DRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "csv/csv_writer.h"
#include "journal/rows.h"
#include "stages/drain_windows.h"

struct mu_recorder;

struct mu_drain {
    struct mu_rows rows;
    struct mu_csv_writer writer;
    struct mu_buffer_view views[MU_CHUNKS_MAX]; /* by chunk; `from`, `started`, `held` persist */
    bool cut[MU_CHUNKS_MAX];  /* the view ended early: too many rows wait for GPU times */
    bool finish;              /* no row is held back for its GPU times */
    char process_row[1024];   /* metadata of the my_utils.process row */
    bool process_due;         /* the part has no such row */
    struct mu_lost_rows lost; /* that were not written, and that no row reports */
    bool head_due;            /* what a part begins with may be among them */
    bool beat_due;            /* the heartbeat does not have them */
    struct mu_once_rows once; /* rows of events that each part begins with */
    struct mu_drain_windows windows;
    uint32_t named_threads[MU_CHUNKS_MAX]; /* thread name (string) that the CSV has, by chunk */
};

MU_MUST_CHECK int mu_drain_create(struct mu_drain **out, struct mu_error *err);
void mu_drain_free(struct mu_drain *drain);

/* Drains all that was recorded before the call. A failed write loses its rows; they are counted,
 * and the drain goes on. Once writing works again, rows say what was lost. */
void mu_drain_run_lock_held(struct mu_recorder *recorder);

/* Appends an anchor for readers and improves the rate. */
void mu_drain_take_anchor_lock_held(struct mu_recorder *recorder);

/* The same where nothing is drained for long. Writes a step of the system's clock, so that readers
 * know on which axis the journal's times are. */
void mu_drain_follow_clock_lock_held(struct mu_recorder *recorder);

/* Drains, and also writes the rows that wait for GPU times. Waits a second for the times at
 * most. */
void mu_drain_finish_lock_held(struct mu_recorder *recorder);

/* Publishes the output's state without rows, as after a change of files. */
void mu_drain_commit_lock_held(struct mu_recorder *recorder);

/* Writes a row of the project's own: an INSTANT named `name` at the present time. */
void mu_drain_write_own_row(struct mu_recorder *recorder, const char *name, const char *metadata);

/* Writes a row with the offset that is added to timestamps from here on. */
void mu_drain_write_offset(struct mu_recorder *recorder);

/* Writes the beginning of a CSV to the output: the process row, and the offset unless it is 0.
 * Where that fails, a later drain does it. */
void mu_drain_begin_part(struct mu_recorder *recorder);

/* Counts rows that were not written. `sys_errno`: why. */
void mu_drain_lose_rows(struct mu_recorder *recorder, const struct mu_lost_rows *lost,
                        int sys_errno);

/* Writes the rows once more that are written once, and the STARTs of open stages. */
void mu_drain_repeat_rows(struct mu_recorder *recorder);

/* Writes the STARTs of open stages once more: a file has the START of whatever ends in it, and not
 * after its END where times were set back. */
void mu_drain_repeat_starts(struct mu_recorder *recorder);

/* Writes the rows that were formatted so far to the output. */
void mu_drain_flush_lock_held(struct mu_recorder *recorder);

#endif
