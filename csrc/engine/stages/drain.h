/* The drain: complete records become rows, rows go to the output, and a commit says so.
 *
 * Order of a drain, so that a kill at any moment loses nothing and doubles nothing: the chunks'
 * commits of the coming epoch, the rows in one write, the commit of the epoch, and only then the
 * ring's slots are free again. Whoever drains holds recorder->drain_lock.
 */
#ifndef MU_DRAIN_H
#define MU_DRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "csv/csv_writer.h"
#include "journal/rows.h"

struct mu_recorder;

struct mu_drain {
    struct mu_rows rows;
    struct mu_csv_writer writer;
    struct mu_buffer_view views[MU_CHUNKS_MAX]; /* by chunk; `from`, `started`, `held` live on */
    bool finish;                                /* no row is held back for its GPU times */
    char process_row[1024];                     /* metadata of the my_utils.process row */
    uint32_t named_threads[MU_CHUNKS_MAX]; /* thread name (string) that the CSV has, by chunk */
};

MU_MUST_CHECK int mu_drain_create(struct mu_drain **out, struct mu_error *err);
void mu_drain_free(struct mu_drain *drain);

/* Drains all that was recorded before the call. A failed write loses its rows; they are counted
 * in recorder->troubles, and the drain goes on. */
void mu_drain_run_lock_held(struct mu_recorder *recorder);

/* Appends an anchor for readers and betters the rate. */
void mu_drain_take_anchor_lock_held(struct mu_recorder *recorder);

/* Drains, and writes what waits for GPU times: waits a second for them at most. */
void mu_drain_finish_lock_held(struct mu_recorder *recorder);

/* Publishes the output's state without rows, as after a change of files. */
void mu_drain_commit_lock_held(struct mu_recorder *recorder);

/* Writes a row of the tool's own, an INSTANT named `name`, at the time of now. */
void mu_drain_write_own_row(struct mu_recorder *recorder, const char *name, const char *metadata);

/* Says which offset is added to timestamps from here on. */
void mu_drain_write_offset(struct mu_recorder *recorder);

/* What every part of a CSV begins with: the process row, and the offset unless it is 0. */
void mu_drain_write_beginning(struct mu_recorder *recorder);

/* Hands the rows that were formatted so far to the output. */
void mu_drain_flush_lock_held(struct mu_recorder *recorder);

#endif
