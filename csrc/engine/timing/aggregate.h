/* The figures of a path over the whole run: count, sum, min, max, spread and a histogram of
 * durations. A bucket is at most 1/64 of its value wide, so its middle is within 0.8 % of every
 * duration in it. Aggregates of threads, processes or ranks can be added.
 *
 * One thread writes an aggregate; others may read it at the same time (relaxed atomics), and see
 * each field as it was at some moment of the last call.
 */
#ifndef MU_AGGREGATE_H
#define MU_AGGREGATE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MU_HISTOGRAM_SUB_BITS = 6,
    MU_HISTOGRAM_OCTAVES = 44, /* up to 2^50 ns, which is 13 days */
    MU_HISTOGRAM_BUCKETS = (MU_HISTOGRAM_OCTAVES + 1) << MU_HISTOGRAM_SUB_BITS,
};

/* Durations in ns. */
struct mu_aggregate {
    _Atomic uint64_t count;
    _Atomic uint64_t sum;
    _Atomic uint64_t min;
    _Atomic uint64_t max;
    _Atomic uint64_t shift;     /* the first duration; squares around 0 would cancel */
    _Atomic double sum_squares; /* of (duration - shift) */
    _Atomic uint32_t buckets[MU_HISTOGRAM_BUCKETS];
};

static inline unsigned mu_histogram_bucket(uint64_t ns) {
    const unsigned sub = MU_HISTOGRAM_SUB_BITS;
    if (ns < (UINT64_C(1) << sub)) {
        return (unsigned)ns;
    }
    unsigned octave = 63u - (unsigned)__builtin_clzll(ns);
    unsigned bucket =
        ((octave - sub + 1) << sub) + (unsigned)((ns >> (octave - sub)) & ((1u << sub) - 1));
    return bucket < MU_HISTOGRAM_BUCKETS ? bucket : MU_HISTOGRAM_BUCKETS - 1;
}

/* The lowest duration of the bucket; of the next bucket: where it ends. */
uint64_t mu_histogram_bucket_floor(unsigned bucket);

/* The middle of the bucket: within 0.8 % of each of its durations. */
double mu_histogram_bucket_middle(unsigned bucket);

void mu_aggregate_init(struct mu_aggregate *aggregate);

#define MU_RELAXED_ADD(field, value)                                                               \
    atomic_store_explicit(&(field),                                                                \
                          atomic_load_explicit(&(field), memory_order_relaxed) + (value),          \
                          memory_order_relaxed)

static inline void mu_aggregate_add(struct mu_aggregate *aggregate, uint64_t ns) {
    if (atomic_load_explicit(&aggregate->count, memory_order_relaxed) == 0) {
        atomic_store_explicit(&aggregate->shift, ns, memory_order_relaxed);
    }
    double distance =
        (double)(int64_t)(ns - atomic_load_explicit(&aggregate->shift, memory_order_relaxed));
    MU_RELAXED_ADD(aggregate->count, 1);
    MU_RELAXED_ADD(aggregate->sum, ns);
    MU_RELAXED_ADD(aggregate->sum_squares, distance * distance);
    MU_RELAXED_ADD(aggregate->buckets[mu_histogram_bucket(ns)], 1);
    if (ns < atomic_load_explicit(&aggregate->min, memory_order_relaxed)) {
        atomic_store_explicit(&aggregate->min, ns, memory_order_relaxed);
    }
    if (ns > atomic_load_explicit(&aggregate->max, memory_order_relaxed)) {
        atomic_store_explicit(&aggregate->max, ns, memory_order_relaxed);
    }
}

/* Adds `from` to `into`, which nobody else writes meanwhile. */
void mu_aggregate_merge(struct mu_aggregate *into, const struct mu_aggregate *from);

/* The duration below which the share `q` (0 to 1) of the durations is, in ns; 0 when empty. */
double mu_aggregate_quantile(const struct mu_aggregate *aggregate, double q);

/* Standard deviation of the population in ns. */
double mu_aggregate_std(const struct mu_aggregate *aggregate);

#endif
