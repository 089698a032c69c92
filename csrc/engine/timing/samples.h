/* The durations of one name, one by one up to a bound; those that come later go into an aggregate,
 * so that memory does not grow with the length of a run.
 *
 * Durations in ns. One caller at a time.
 */
#ifndef MU_SAMPLES_H
#define MU_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "timing/aggregate.h"

struct mu_samples {
    uint64_t *ns; /* owned: the first `limit` durations in their order */
    size_t count;
    size_t allocated;
    size_t limit;
    struct mu_aggregate *rest; /* owned: the later ones; NULL while there are none */
    uint64_t lost;             /* durations that found no memory */
    uint64_t cleared;          /* durations that were forgotten */
    uint64_t cleared_ns;       /* their sum */
};

void mu_samples_init(struct mu_samples *samples, size_t limit);
void mu_samples_free(struct mu_samples *samples);

/* Forgets the durations, but not their number and sum. */
void mu_samples_clear(struct mu_samples *samples);

void mu_samples_add_slowly(struct mu_samples *samples, uint64_t ns);

static inline void mu_samples_add(struct mu_samples *samples, uint64_t ns) {
    if (__builtin_expect(samples->count < samples->allocated, 1)) {
        samples->ns[samples->count++] = ns;
    } else {
        mu_samples_add_slowly(samples, ns);
    }
}

/* The number of durations that were added and found memory. */
uint64_t mu_samples_total(const struct mu_samples *samples);

/* The sum of the durations. The time grows with the number kept one by one. */
uint64_t mu_samples_sum(const struct mu_samples *samples);

/* Adds the durations of `from`, which may be `into` itself. Those that `from` keeps one by one are
 * added one by one. A duration that finds no memory is counted in `lost`. After an error `into` is
 * unchanged. */
MU_MUST_CHECK int mu_samples_merge(struct mu_samples *into, const struct mu_samples *from,
                                   struct mu_error *err);

/* Adds all of them to `into`, which the caller initialised. */
void mu_samples_summarise(const struct mu_samples *samples, struct mu_aggregate *into);

#endif
