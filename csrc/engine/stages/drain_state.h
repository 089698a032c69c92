/* What a drain keeps from one run to the next, for the files that write what it has. Whoever reads
 * or changes it holds recorder->drain_lock. */
#ifndef MU_DRAIN_STATE_H
#define MU_DRAIN_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "csv/csv_writer.h"
#include "csv/lost_rows.h"
#include "journal/journal_format.h"
#include "journal/rows.h"

struct mu_step_windows;

struct mu_drain_windows {
    struct mu_step_windows *tracks[MU_CHUNKS_MAX]; /* owned, by chunk; NULL: none yet */
    uint32_t live;                                 /* tracks that there are */
    uint32_t made;                                 /* since the files were begun */
};

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

#endif
