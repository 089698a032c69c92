#include "timing/samples.h"

#include <stdlib.h>

enum { FIRST_ALLOCATION = 64 };

void mu_samples_init(struct mu_samples *samples, size_t limit) {
    *samples = (struct mu_samples){.limit = limit};
}

void mu_samples_free(struct mu_samples *samples) {
    free(samples->ns);
    free(samples->rest);
    mu_samples_init(samples, samples->limit);
}

void mu_samples_clear(struct mu_samples *samples) {
    samples->cleared += mu_samples_total(samples);
    samples->cleared_ns += mu_samples_sum(samples);
    free(samples->rest);
    samples->rest = NULL;
    samples->count = 0;
    samples->lost = 0;
}

/* Makes room for one more below the limit; false when there is none. */
MU_MUST_CHECK static int grow(struct mu_samples *samples) {
    if (samples->count >= samples->limit) {
        return 0;
    }
    size_t wanted = samples->allocated == 0 ? FIRST_ALLOCATION : samples->allocated * 2;
    wanted = wanted < samples->limit ? wanted : samples->limit;
    uint64_t *ns = realloc(samples->ns, wanted * sizeof(*ns));
    if (ns == NULL) {
        return 0;
    }
    samples->ns = ns;
    samples->allocated = wanted;
    return 1;
}

static struct mu_aggregate *rest_of(struct mu_samples *samples) {
    if (samples->rest == NULL) {
        samples->rest = malloc(sizeof(*samples->rest));
        if (samples->rest != NULL) {
            mu_aggregate_init(samples->rest);
        }
    }
    return samples->rest;
}

void mu_samples_add_slowly(struct mu_samples *samples, uint64_t ns) {
    /* Once there is a rest, all further durations go there, so that the first ones are kept one by
     * one. */
    if (samples->rest == NULL && grow(samples)) {
        samples->ns[samples->count++] = ns;
        return;
    }
    struct mu_aggregate *rest = rest_of(samples);
    if (rest != NULL) {
        mu_aggregate_add(rest, ns);
    } else {
        samples->lost++;
    }
}

/* A histogram for `into` to get, or NULL when it needs none; MU_OK, or no memory. */
MU_MUST_CHECK static int spare_rest(const struct mu_samples *into, const struct mu_samples *from,
                                    struct mu_aggregate **spare, struct mu_error *err) {
    *spare = NULL;
    if (from->rest == NULL || into->rest != NULL) {
        return MU_OK;
    }
    *spare = malloc(sizeof(**spare));
    if (*spare == NULL) {
        return mu_error_no_memory(err, "a histogram of durations");
    }
    mu_aggregate_init(*spare);
    return MU_OK;
}

int mu_samples_merge(struct mu_samples *into, const struct mu_samples *from, struct mu_error *err) {
    size_t count = from->count; /* it and the rest grow meanwhile when both are the same */
    const struct mu_aggregate *rest = from->rest;
    struct mu_aggregate *spare;
    int rc = spare_rest(into, from, &spare, err);
    if (rc != MU_OK) {
        return rc;
    }
    if (rest != NULL && into->rest != NULL) {
        mu_aggregate_merge(into->rest, rest);
        rest = NULL;
    }
    for (size_t i = 0; i < count; i++) {
        mu_samples_add(into, from->ns[i]);
    }
    if (rest != NULL) {
        if (into->rest == NULL) {
            into->rest = spare;
            spare = NULL;
        }
        mu_aggregate_merge(into->rest, rest);
    }
    free(spare);
    return MU_OK;
}

uint64_t mu_samples_total(const struct mu_samples *samples) {
    uint64_t rest = samples->rest == NULL ? 0 : samples->rest->count;
    return samples->count + rest;
}

uint64_t mu_samples_sum(const struct mu_samples *samples) {
    uint64_t sum = samples->rest == NULL ? 0 : samples->rest->sum;
    for (size_t i = 0; i < samples->count; i++) {
        sum += samples->ns[i];
    }
    return sum;
}

void mu_samples_summarise(const struct mu_samples *samples, struct mu_aggregate *into) {
    for (size_t i = 0; i < samples->count; i++) {
        mu_aggregate_add(into, samples->ns[i]);
    }
    if (samples->rest != NULL) {
        mu_aggregate_merge(into, samples->rest);
    }
}
