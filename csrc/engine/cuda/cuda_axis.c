#include "cuda/cuda_axis.h"

#include <math.h>
#include <stdbool.h>

int64_t mu_cuda_ms_to_ns(float milliseconds) {
    return llround((double)milliseconds * 1e6);
}

int64_t mu_cuda_drift_ns(int64_t elapsed_ns) {
    return (elapsed_ns < 0 ? -elapsed_ns : elapsed_ns) / 1000000 * MU_CUDA_DRIFT_PPM;
}

/* How far an elapsed time may be from the host's: drift, and half a step of the float. */
static int64_t elapsed_error_ns(float elapsed_ms) {
    float size = fabsf(elapsed_ms);
    double drift = (double)size * 1e6 * MU_CUDA_DRIFT_PPM * 1e-6;
    double rounding = ((double)nextafterf(size, INFINITY) - (double)size) * 0.5e6;
    return (int64_t)ceil(drift + rounding);
}

static bool intersect(int64_t *low, int64_t *high, int64_t other_low, int64_t other_high) {
    int64_t new_low = other_low > *low ? other_low : *low;
    int64_t new_high = other_high < *high ? other_high : *high;
    if (new_low > new_high) {
        return false;
    }
    *low = new_low;
    *high = new_high;
    return true;
}

/* The place stays while it is in the middle half, so that stages of two drains keep their distances
 * on the stream. */
static void settle(struct mu_cuda_axis *axis) {
    int64_t quarter = (axis->high_ns - axis->low_ns) / 4;
    if (axis->place_ns < axis->low_ns + quarter || axis->place_ns > axis->high_ns - quarter) {
        axis->place_ns = axis->low_ns + (axis->high_ns - axis->low_ns) / 2;
    }
}

/* `low` and `high` are valid by themselves. When the kept bounds contradict them, these alone are
 * used: the host was suspended, or its clock ran faster than the allowance. */
static void narrow(struct mu_cuda_axis *axis, int64_t low, int64_t high) {
    if (!intersect(&axis->low_ns, &axis->high_ns, low, high)) {
        axis->low_ns = low < high ? low : high;
        axis->high_ns = low < high ? high : low;
        axis->resets++;
    }
    settle(axis);
}

void mu_cuda_axis_start(struct mu_cuda_axis *axis, struct mu_cuda_seen anchor) {
    axis->low_ns = anchor.enqueued_ns - MU_CUDA_EVENT_RESOLUTION_NS;
    axis->high_ns = anchor.complete_ns + MU_CUDA_EVENT_RESOLUTION_NS;
    axis->anchor_ns = 0;
    settle(axis);
}

void mu_cuda_axis_advance(struct mu_cuda_axis *axis, float elapsed_ms, struct mu_cuda_seen anchor) {
    int64_t elapsed = mu_cuda_ms_to_ns(elapsed_ms);
    int64_t error = elapsed_error_ns(elapsed_ms);
    axis->low_ns += elapsed - error;
    axis->high_ns += elapsed + error;
    axis->place_ns += elapsed;
    axis->anchor_ns += elapsed;
    narrow(axis, anchor.enqueued_ns - MU_CUDA_EVENT_RESOLUTION_NS,
           anchor.complete_ns + MU_CUDA_EVENT_RESOLUTION_NS);
}

void mu_cuda_axis_tighten(struct mu_cuda_axis *axis, float elapsed_ms, struct mu_cuda_seen event) {
    int64_t elapsed = mu_cuda_ms_to_ns(elapsed_ms);
    int64_t error = elapsed_error_ns(elapsed_ms) + MU_CUDA_EVENT_RESOLUTION_NS;
    narrow(axis, event.enqueued_ns - elapsed - error, event.complete_ns - elapsed + error);
}

/* All events are placed by the anchor's place, so that they keep their order and their distances.
 * The bounds of a single event move it only if it is outside them. */
struct mu_cuda_instant mu_cuda_axis_place(const struct mu_cuda_axis *axis, float elapsed_ms,
                                          struct mu_cuda_seen event) {
    int64_t elapsed = mu_cuda_ms_to_ns(elapsed_ms);
    int64_t error = elapsed_error_ns(elapsed_ms) + MU_CUDA_EVENT_RESOLUTION_NS;
    int64_t low = axis->low_ns + elapsed - error;
    int64_t high = axis->high_ns + elapsed + error;
    int64_t place = axis->place_ns + elapsed;
    if (!intersect(&low, &high, event.enqueued_ns, event.complete_ns)) {
        low = event.enqueued_ns;
        high = event.complete_ns > low ? event.complete_ns : low;
    }
    place = place < low ? low : place > high ? high : place;
    int64_t below = place - low;
    int64_t above = high - place;
    return (struct mu_cuda_instant){.ns = place, .error_ns = below > above ? below : above};
}
