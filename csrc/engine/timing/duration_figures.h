/* The figures of the durations of one name, exact where they are kept one by one. */
#ifndef MU_DURATION_FIGURES_H
#define MU_DURATION_FIGURES_H

#include "base/error.h"
#include "timing/samples.h"

#include <stdint.h>

/* Nanoseconds. A percentile is the smallest duration that this share of all does not exceed. When
 * some durations are in the histogram, it comes from there and is within 1 %. */
struct mu_duration_figures {
    uint64_t count, sum, min, max;
    double std; /* of the population */
    double p50, p90, p99;
};

/* All zero where there is no duration. */
MU_MUST_CHECK int mu_duration_figures(const struct mu_samples *samples,
                                      struct mu_duration_figures *out, struct mu_error *err);

#endif
