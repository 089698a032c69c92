/* How the training's GPU is: a row a second, beside those of the host. */
#ifndef MU_PY_GPU_HEALTH_H
#define MU_PY_GPU_HEALTH_H

#include "host/gpu_health.h"
#include "stages/thread_buffer.h"

/* Used by the training thread alone. */
struct mu_py_gpu_health {
    struct mu_gpu_health *health; /* owned; NULL: none is watched */
    uint64_t written;             /* the number of the reading that the last row has */
};

/* Watches the GPU of this UUID from now on, in place of the one before; NULL watches none. */
void mu_py_gpu_health_watch(struct mu_py_gpu_health *self, const char *uuid);

/* Writes the row `gpu` of the iteration, if there is a new reading. */
void mu_py_gpu_health_write(struct mu_py_gpu_health *self, struct mu_thread_buffer *buffer,
                            int64_t iteration);

#endif
