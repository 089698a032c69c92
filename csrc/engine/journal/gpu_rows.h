/* GPU times on their way into END rows.
 *
 * A record names its span. When its times are there they become metadata of the END row; until
 * then the row is held back, at most MU_GPU_HELD_STEPS steps. Used under the drain's lock.
 */
#ifndef MU_GPU_ROWS_H
#define MU_GPU_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/cuda_timing.h"

enum {
    MU_GPU_HELD_STEPS = 2,
    MU_GPU_TEXT_MAX = 160, /* ",cuda_ms=...,cuda_ts=...,cuda_err_ms=...,stream=..." */
};

/* Takes the GPU time of one stage into the figures that `label` belongs to. */
typedef void (*mu_gpu_add)(void *owner, uint32_t label, int64_t duration_ns);

struct mu_gpu_rows {
    struct mu_cuda_pool *pool; /* borrowed */
    uint64_t step;             /* steps of the pool so far */
    bool finish;               /* nothing is held back any more: the files are about to change */
    mu_gpu_add add;
    void *owner;
};

enum mu_gpu_answer {
    MU_GPU_ANSWERED, /* the text is complete, perhaps empty, and the span is given back */
    MU_GPU_WAIT,
};

/* Asks for the times of a span since whose end the pool has seen `age` steps; `offset_ns` leads
 * from the host's monotonic clock to Unix time. */
enum mu_gpu_answer mu_gpu_rows_ask(const struct mu_gpu_rows *gpu, uint32_t span, uint64_t age,
                                   int64_t offset_ns, char text[MU_GPU_TEXT_MAX], size_t *length);

#endif
