/* What a stage leaves on the GPU's side: an NVTX range, and a pair of CUDA events.
 *
 * A timer with neither never comes here. Called by the lane's thread.
 */
#ifndef MU_MARKS_H
#define MU_MARKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lane.h"
#include "nvtx.h"

struct mu_marks {
    const struct mu_nvtx_range *range; /* NULL: none */
    bool gpu;                          /* take GPU times */
};

/* mu_lane_start with marks. They begin before the stage and end after it was timed, so that
 * neither is counted as the stage's own time but for the recording of the end event. */
void mu_lane_start_marked(struct mu_lane *lane, const char *name, size_t length, uint64_t hash,
                          const struct mu_marks *marks);

/* For lane.c: the marks of a frame end with its stage, or are undone. */
void mu_frame_end_marks(struct mu_lane *lane, struct mu_frame *frame);
void mu_frame_cancel_span(struct mu_lane *lane, struct mu_frame *frame);

#endif
