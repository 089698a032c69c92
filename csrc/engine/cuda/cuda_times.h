/* What a pool of spans returns, and what it asks of its caller. cuda_timing.h says when. */
#ifndef MU_CUDA_TIMES_H
#define MU_CUDA_TIMES_H

#include <stdint.h>

#include "cuda/cuda_driver.h"

/* Contexts one after another or side by side; one is usual. */
enum { MU_CUDA_CONTEXTS_MAX = 16 };

/* Writes the current stream of a device, or returns -1. Called with that device's context current.
 */
typedef int (*mu_cuda_current_stream)(void *owner, int32_t device, void **stream);

struct mu_cuda_times {
    int64_t duration_ns; /* by the GPU's clock */
    int64_t start_ns;    /* by the host's clock `now_ns` */
    int64_t error_ns;    /* the true start is within start_ns +- error_ns */
    int64_t device_ns;   /* the start by the GPU's clock, from a moment of the device's own */
    uint64_t stream;     /* the driver's id of the stream; its address before CUDA 12 */
    int32_t device;
    uint32_t label; /* from mu_cuda_span_label */
};

struct mu_cuda_stats {
    uint64_t spans;     /* begun */
    uint64_t exhausted; /* not begun: the pool was empty */
    uint64_t no_stream; /* not begun: `current_stream` did not know */
    uint64_t captured;  /* not begun, or given up at the end: the stream was being captured */
    uint64_t late;      /* released before the GPU was done */
    uint64_t failed;    /* failed with an error */
    uint64_t errors;    /* contexts given up */
    uint64_t axis_resets;
    int first_error;        /* CUresult; 0: none */
    const char *first_call; /* static text: which function failed first; NULL: none */
};

#endif
