#include "timing/duration_figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static double at_share(const uint64_t *sorted, size_t count, double share) {
    size_t rank = (size_t)ceil(share * (double)count);
    return (double)sorted[rank == 0 ? 0 : rank - 1];
}

/* In two passes, around the first duration, so that nothing cancels. */
static double spread(const uint64_t *ns, size_t count) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < count; i++) {
        sum += (double)(int64_t)(ns[i] - ns[0]);
    }
    double mean = sum / (double)count;
    for (size_t i = 0; i < count; i++) {
        double apart = (double)(int64_t)(ns[i] - ns[0]) - mean;
        squares += apart * apart;
    }
    return sqrt(squares / (double)count);
}

MU_MUST_CHECK static int one_by_one(const struct mu_samples *samples,
                                    struct mu_duration_figures *out, struct mu_error *err) {
    uint64_t *sorted = malloc(samples->count * sizeof(*sorted));
    if (sorted == NULL) {
        return mu_error_no_memory(err, "durations in their order");
    }
    memcpy(sorted, samples->ns, samples->count * sizeof(*sorted));
    qsort(sorted, samples->count, sizeof(*sorted), compare);
    out->count = samples->count;
    out->sum = mu_samples_sum(samples);
    out->min = sorted[0];
    out->max = sorted[samples->count - 1];
    out->std = spread(samples->ns, samples->count);
    out->p50 = at_share(sorted, samples->count, 0.5);
    out->p90 = at_share(sorted, samples->count, 0.9);
    out->p99 = at_share(sorted, samples->count, 0.99);
    free(sorted);
    return MU_OK;
}

MU_MUST_CHECK static int summarised(const struct mu_samples *samples,
                                    struct mu_duration_figures *out, struct mu_error *err) {
    struct mu_aggregate *all = malloc(sizeof(*all));
    if (all == NULL) {
        return mu_error_no_memory(err, "a histogram of durations");
    }
    mu_aggregate_init(all);
    mu_samples_summarise(samples, all);
    out->count = all->count;
    out->sum = all->sum;
    out->min = all->min;
    out->max = all->max;
    out->std = mu_aggregate_std(all);
    out->p50 = mu_aggregate_quantile(all, 0.5);
    out->p90 = mu_aggregate_quantile(all, 0.9);
    out->p99 = mu_aggregate_quantile(all, 0.99);
    free(all);
    return MU_OK;
}

int mu_duration_figures(const struct mu_samples *samples, struct mu_duration_figures *out,
                        struct mu_error *err) {
    *out = (struct mu_duration_figures){.count = 0};
    if (mu_samples_total(samples) == 0) {
        return MU_OK;
    }
    return samples->rest == NULL ? one_by_one(samples, out, err) : summarised(samples, out, err);
}
