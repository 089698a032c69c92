#include "timing/aggregate.h"

#include <math.h>

uint64_t mu_histogram_bucket_floor(unsigned bucket) {
    const unsigned sub = MU_HISTOGRAM_SUB_BITS;
    if (bucket < (1u << sub)) {
        return bucket;
    }
    unsigned octave = (bucket >> sub) + sub - 1;
    uint64_t mantissa = (UINT64_C(1) << sub) + (bucket & ((1u << sub) - 1));
    return mantissa << (octave - sub);
}

double mu_histogram_bucket_middle(unsigned bucket) {
    double floor = (double)mu_histogram_bucket_floor(bucket);
    double width = (double)mu_histogram_bucket_floor(bucket + 1) - floor;
    return width <= 1.0 ? floor : floor + width / 2; /* a nanosecond wide: it holds just that one */
}

void mu_aggregate_init(struct mu_aggregate *aggregate) {
    atomic_init(&aggregate->count, 0);
    atomic_init(&aggregate->sum, 0);
    atomic_init(&aggregate->min, UINT64_MAX);
    atomic_init(&aggregate->max, 0);
    atomic_init(&aggregate->shift, 0);
    atomic_init(&aggregate->sum_squares, 0.0);
    for (int i = 0; i < MU_HISTOGRAM_BUCKETS; i++) {
        atomic_init(&aggregate->buckets[i], 0);
    }
}

static uint64_t load(const _Atomic uint64_t *field) {
    return atomic_load_explicit(field, memory_order_relaxed);
}

/* The sum of squares of `from` around another point. */
static double squares_around(const struct mu_aggregate *from, uint64_t point) {
    double n = (double)load(&from->count);
    double apart = (double)(int64_t)(load(&from->shift) - point);
    double sum = (double)(int64_t)(load(&from->sum) - load(&from->count) * load(&from->shift));
    double squares = atomic_load_explicit(&from->sum_squares, memory_order_relaxed);
    return squares + 2 * apart * sum + n * apart * apart;
}

void mu_aggregate_merge(struct mu_aggregate *into, const struct mu_aggregate *from) {
    if (load(&from->count) == 0) {
        return;
    }
    if (load(&into->count) == 0) {
        atomic_store_explicit(&into->shift, load(&from->shift), memory_order_relaxed);
    }
    MU_RELAXED_ADD(into->sum_squares, squares_around(from, load(&into->shift)));
    MU_RELAXED_ADD(into->count, load(&from->count));
    MU_RELAXED_ADD(into->sum, load(&from->sum));
    if (load(&from->min) < load(&into->min)) {
        atomic_store_explicit(&into->min, load(&from->min), memory_order_relaxed);
    }
    if (load(&from->max) > load(&into->max)) {
        atomic_store_explicit(&into->max, load(&from->max), memory_order_relaxed);
    }
    for (int i = 0; i < MU_HISTOGRAM_BUCKETS; i++) {
        uint32_t n = atomic_load_explicit(&from->buckets[i], memory_order_relaxed);
        if (n != 0) {
            MU_RELAXED_ADD(into->buckets[i], n);
        }
    }
}

static double clamp(double value, double low, double high) {
    return value < low ? low : value > high ? high : value;
}

double mu_aggregate_quantile(const struct mu_aggregate *aggregate, double q) {
    uint64_t total = 0;
    for (unsigned i = 0; i < MU_HISTOGRAM_BUCKETS; i++) {
        total += atomic_load_explicit(&aggregate->buckets[i], memory_order_relaxed);
    }
    if (total == 0) {
        return 0.0;
    }
    double wanted = clamp(q, 0.0, 1.0) * (double)total;
    uint64_t below = 0;
    unsigned bucket = 0;
    for (; bucket < MU_HISTOGRAM_BUCKETS - 1; bucket++) {
        uint32_t n = atomic_load_explicit(&aggregate->buckets[bucket], memory_order_relaxed);
        if (n != 0 && (double)(below + n) >= wanted) {
            break;
        }
        below += n;
    }
    double middle = mu_histogram_bucket_middle(bucket);
    return clamp(middle, (double)load(&aggregate->min), (double)load(&aggregate->max));
}

double mu_aggregate_std(const struct mu_aggregate *aggregate) {
    uint64_t count = load(&aggregate->count);
    if (count == 0) {
        return 0.0;
    }
    double n = (double)count;
    double offset = (double)(int64_t)(load(&aggregate->sum) - count * load(&aggregate->shift)) / n;
    double squares = atomic_load_explicit(&aggregate->sum_squares, memory_order_relaxed) / n;
    double variance = squares - offset * offset;
    return variance > 0 ? sqrt(variance) : 0.0;
}
