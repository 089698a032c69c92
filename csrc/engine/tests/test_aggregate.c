/* Aggregates against figures computed from all durations. */
#include "../aggregate.h"

#include <math.h>
#include <stdlib.h>

#include "check.h"

enum { COUNT = 20000 };

static uint64_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static int ascending(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static double exact_std(const uint64_t *values, double mean) {
    double squares = 0;
    for (int i = 0; i < COUNT; i++) {
        squares += ((double)values[i] - mean) * ((double)values[i] - mean);
    }
    return sqrt(squares / COUNT);
}

static void check_figures(const struct mu_aggregate *aggregate, uint64_t *values) {
    uint64_t sum = 0;
    for (int i = 0; i < COUNT; i++) {
        sum += values[i];
    }
    qsort(values, COUNT, sizeof(values[0]), ascending);
    double std = exact_std(values, (double)sum / COUNT);
    CHECK_INT(atomic_load(&aggregate->count), COUNT);
    CHECK_INT(atomic_load(&aggregate->sum), sum);
    CHECK_INT(atomic_load(&aggregate->min), values[0]);
    CHECK_INT(atomic_load(&aggregate->max), values[COUNT - 1]);
    CHECK(fabs(mu_aggregate_std(aggregate) - std) <= 1e-9 * std);
    const double quantiles[] = {0.01, 0.5, 0.9, 0.99, 0.999};
    for (int i = 0; i < 5; i++) {
        double exact = (double)values[(int)ceil(quantiles[i] * COUNT) - 1];
        double got = mu_aggregate_quantile(aggregate, quantiles[i]);
        CHECK(fabs(got - exact) <= 0.01 * exact);
    }
}

static void test_spread(uint64_t base, uint64_t range) {
    struct mu_aggregate *aggregate = malloc(sizeof(*aggregate));
    uint64_t *values = malloc(COUNT * sizeof(*values)), state = 1;
    mu_aggregate_init(aggregate);
    for (int i = 0; i < COUNT; i++) {
        values[i] = base + next_random(&state) % range;
        mu_aggregate_add(aggregate, values[i]);
    }
    check_figures(aggregate, values);
    free(values);
    free(aggregate);
}

static void test_merge_is_the_same_as_one(void) {
    enum { PARTS = 7 };
    struct mu_aggregate *parts = malloc((PARTS + 1) * sizeof(*parts));
    uint64_t *values = malloc(COUNT * sizeof(*values)), state = 5;
    for (int i = 0; i <= PARTS; i++) {
        mu_aggregate_init(&parts[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        values[i] = 1000000 + next_random(&state) % 50000000;
        mu_aggregate_add(&parts[i % PARTS], values[i]);
    }
    for (int i = 0; i < PARTS; i++) {
        mu_aggregate_merge(&parts[PARTS], &parts[i]);
    }
    check_figures(&parts[PARTS], values);
    free(values);
    free(parts);
}

static void test_buckets(void) {
    unsigned last = 0;
    for (uint64_t ns = 0; ns < UINT64_C(1) << 50; ns += 1 + ns / 300) {
        unsigned bucket = mu_histogram_bucket(ns);
        uint64_t floor = mu_histogram_bucket_floor(bucket);
        uint64_t ceiling = mu_histogram_bucket_floor(bucket + 1);
        CHECK(floor <= ns && ns < ceiling && bucket >= last);
        CHECK(ceiling - floor <= 1 || (ceiling - floor) * 64 <= floor);
        last = bucket;
    }
    CHECK_INT(mu_histogram_bucket(UINT64_MAX), MU_HISTOGRAM_BUCKETS - 1);
}

static void test_empty(void) {
    struct mu_aggregate *aggregate = malloc(sizeof(*aggregate));
    mu_aggregate_init(aggregate);
    CHECK(mu_aggregate_std(aggregate) == 0.0);
    CHECK(mu_aggregate_quantile(aggregate, 0.5) == 0.0);
    free(aggregate);
}

int main(void) {
    test_spread(0, 50);
    test_spread(100, 1000000);
    test_spread(1, 2000000000);
    test_spread(UINT64_C(10000000000000), 10000); /* a naive sum of squares cancels here */
    test_merge_is_the_same_as_one();
    test_buckets();
    test_empty();
    return check_report();
}
