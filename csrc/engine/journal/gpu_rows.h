/* Puts GPU times into END rows.
 *
 * A record has the id of its span. When the span's times are known, they become metadata of the END
 * row. Until then the row is held back, for MU_GPU_HELD_STEPS steps at most. Used under the drain's
 * lock.
 */
#ifndef MU_GPU_ROWS_H
#define MU_GPU_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/cuda_timing.h"

enum {
    MU_GPU_HELD_STEPS = 64,
    MU_GPU_TEXT_MAX = 160, /* ",cuda_ms=...,cuda_ts=...,cuda_err_ms=...,stream=..." */
};

/* Adds the GPU time of one stage to the figures that `label` identifies. */
typedef void (*mu_gpu_add)(void *owner, uint32_t label, int64_t duration_ns);

struct mu_gpu_rows {
    struct mu_cuda_pool *pool; /* borrowed */
    uint64_t step;             /* steps of the pool so far */
    bool finish;               /* hold back no row any more: the files are about to change */
    mu_gpu_add add;
    void *owner;
};

enum mu_gpu_rows_status {
    MU_GPU_ROWS_DONE, /* the text is complete, perhaps empty, and the span is released */
    MU_GPU_ROWS_WAIT,
};

/* Requests the times of a span. `age` is the number of steps of the pool since the span's end.
 * `offset_ns` is added to the host's monotonic time to give Unix time. */
enum mu_gpu_rows_status mu_gpu_rows_request(const struct mu_gpu_rows *gpu, uint32_t span,
                                            uint64_t age, int64_t offset_ns,
                                            char text[MU_GPU_TEXT_MAX], size_t *length);

#endif
