/* A thread that asks NVIDIA's management library (NVML) once a second how a GPU is.
 *
 * It is a separate thread, as calls of that library may take long, and never return where a GPU is
 * lost.
 */
#ifndef MU_GPU_HEALTH_H
#define MU_GPU_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

enum mu_gpu_figure {
    MU_GPU_SM_MHZ,
    MU_GPU_REASONS, /* why the clock is below its highest: bits of nvmlClocksEventReasons */
    MU_GPU_MILLIWATTS,
    MU_GPU_CELSIUS,
    MU_GPU_PCIE_WIDTH, /* lanes of the link, as it is now */
    MU_GPU_ECC_ERRORS, /* uncorrected since the driver was loaded */
    MU_GPU_XIDS,       /* critical errors of the GPU since it is watched */
    MU_GPU_LAST_XID,   /* the number of the last one; known once there was one */
    MU_GPU_FIGURES,
};

struct mu_gpu_health;

struct mu_gpu_reading {
    uint64_t number; /* of readings so far; 0: there was none, and the rest means nothing */
    int64_t figures[MU_GPU_FIGURES];
    bool known[MU_GPU_FIGURES]; /* false: not measured */
};

/* uuid: as NVML has it, "GPU-...". NULL without memory or thread. A library or a GPU that is not
 * there is found by the thread, which then ends. Released by mu_gpu_health_stop. */
struct mu_gpu_health *mu_gpu_health_start(const char *uuid);

/* Waits for nothing: the thread ends when its call returns. For a forked child, too, in which there
 * is no thread. NULL is allowed. */
void mu_gpu_health_stop(struct mu_gpu_health *health);

/* Any thread. */
void mu_gpu_health_read(struct mu_gpu_health *health, struct mu_gpu_reading *out);

#endif
