#include "marks.h"

#include "cuda_timing.h"
#include "recorder.h"

void mu_lane_start_marked(struct mu_lane *lane, const char *name, size_t length, uint64_t hash,
                          const struct mu_marks *marks) {
    struct mu_cuda_pool *pool = lane->recorder->gpu;
    uint32_t depth = lane->depth;
    mu_nvtx_push(marks->range);
    uint32_t span = marks->gpu ? mu_cuda_span_begin(pool) : 0;
    mu_lane_start(lane, name, length, hash);
    if (lane->depth == depth) { /* too deep to be recorded */
        mu_cuda_span_cancel(pool, span);
        mu_nvtx_pop(marks->range);
        return;
    }
    struct mu_frame *frame = &lane->frames[depth];
    frame->range = marks->range;
    frame->span = span;
    mu_cuda_span_label(pool, span, mu_timer_gpu_label(lane->timer, frame->path));
}

void mu_frame_end_marks(struct mu_lane *lane, struct mu_frame *frame) {
    mu_cuda_span_end(lane->recorder->gpu, frame->span);
    mu_nvtx_pop(frame->range);
}

void mu_frame_cancel_span(struct mu_lane *lane, struct mu_frame *frame) {
    mu_cuda_span_cancel(lane->recorder->gpu, frame->span);
    frame->span = 0;
}
