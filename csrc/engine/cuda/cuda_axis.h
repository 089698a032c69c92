/* Places GPU times on the host's clock.
 *
 * The driver gives only differences between two events. The axis keeps one event, the anchor, and
 * an interval [low, high] on the host's monotonic clock that contains its timestamp. Every
 * completed event narrows the interval: it ran after it was enqueued, and before it was seen to be
 * complete. A new anchor shifts the interval by the elapsed time between the two anchors. So no
 * difference grows long: a float of milliseconds has steps of 1 us from 16 s on. Every shift widens
 * the interval by the possible drift of the two clocks and by the rounding of the float.
 * docs/time/gpu-timing.md has the mathematics.
 *
 * All times are nanoseconds of one monotonic host clock; elapsed times are the driver's floats of
 * milliseconds. Not thread-safe: one collector owns an axis.
 */
#ifndef MU_CUDA_AXIS_H
#define MU_CUDA_AXIS_H

#include <stdint.h>

enum {
    MU_CUDA_DRIFT_PPM = 200,           /* allowance for the two clocks' rates */
    MU_CUDA_EVENT_RESOLUTION_NS = 500, /* of a timestamp; cuEventElapsedTime documents it */
};

struct mu_cuda_axis {
    int64_t low_ns;
    int64_t high_ns;
    int64_t place_ns;  /* where the anchor is placed: in the middle half of the interval */
    int64_t anchor_ns; /* of the anchor by the GPU's clock, from the first anchor on */
    uint64_t resets;   /* how often the bounds contradicted each other and were given up */
};

/* A place in time and the bound of its error: the true time is in [ns - error, ns + error]. */
struct mu_cuda_instant {
    int64_t ns;
    int64_t error_ns;
};

/* When an event was handed to the driver, and when it was first known to be complete. */
struct mu_cuda_seen {
    int64_t enqueued_ns;
    int64_t complete_ns;
};

void mu_cuda_axis_start(struct mu_cuda_axis *axis, struct mu_cuda_seen anchor);

/* Makes an event `elapsed_ms` after the anchor the new anchor. */
void mu_cuda_axis_advance(struct mu_cuda_axis *axis, float elapsed_ms, struct mu_cuda_seen anchor);

/* Narrows the interval by an event `elapsed_ms` after the anchor (before, if negative). */
void mu_cuda_axis_tighten(struct mu_cuda_axis *axis, float elapsed_ms, struct mu_cuda_seen event);

/* The time of an event `elapsed_ms` after the anchor, clamped to the host times at which it was
 * enqueued and seen complete. */
struct mu_cuda_instant mu_cuda_axis_place(const struct mu_cuda_axis *axis, float elapsed_ms,
                                          struct mu_cuda_seen event);

int64_t mu_cuda_ms_to_ns(float milliseconds);

/* By how much the two clocks may part over so long a time, which may be negative. */
int64_t mu_cuda_drift_ns(int64_t elapsed_ns);

#endif
