/* The drain turns complete records into rows, writes the rows to the output, and publishes a
 * commit.
 *
 * The order of a drain makes a kill at any moment lose no row and write no row twice. First come
 * the chunks' commits of the next epoch, then the rows in one write, then the commit of the epoch.
 * Only then the ring's slots are free again. Whoever drains holds recorder->drain_lock.
 */
#ifndef MU_DRAIN_H
#define MU_DRAIN_H

#include "base/error.h"
#include "csv/lost_rows.h"

struct mu_recorder;

struct mu_drain;

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
