/* Durations of one name: all of them up to the limit, and an aggregate of all beyond it. */
#include "timing/samples.h"

#include "tests/check.h"

static void test_below_the_limit(void) {
    struct mu_samples samples;
    mu_samples_init(&samples, 1000);
    for (uint64_t i = 0; i < 1000; i++) {
        mu_samples_add(&samples, i * 3);
    }
    CHECK_INT(samples.count, 1000);
    CHECK(samples.rest == NULL);
    for (uint64_t i = 0; i < 1000; i++) {
        CHECK_INT(samples.ns[i], i * 3);
    }
    CHECK_INT(mu_samples_total(&samples), 1000);
    mu_samples_clear(&samples);
    CHECK_INT(mu_samples_total(&samples), 0);
    mu_samples_add(&samples, 7);
    CHECK_INT(samples.ns[0], 7);
    mu_samples_free(&samples);
}

static void test_above_the_limit(size_t limit) {
    struct mu_samples samples;
    struct mu_aggregate all;
    uint64_t sum = 0;
    mu_samples_init(&samples, limit);
    for (uint64_t i = 0; i < 300; i++) {
        uint64_t ns = 1000000 + i * i * 77;
        mu_samples_add(&samples, ns);
        sum += ns;
    }
    CHECK_INT(samples.count, limit < 300 ? limit : 300);
    CHECK((samples.rest != NULL) == (limit < 300));
    CHECK_INT(mu_samples_total(&samples), 300);
    CHECK_INT(mu_samples_sum(&samples), sum);
    mu_aggregate_init(&all);
    mu_samples_summarise(&samples, &all);
    CHECK_INT(all.count, 300);
    CHECK_INT(all.sum, sum);
    CHECK_INT(all.min, 1000000);
    CHECK_INT(all.max, 1000000 + 299 * 299 * 77);
    uint64_t in_buckets = 0;
    for (int i = 0; i < MU_HISTOGRAM_BUCKETS; i++) {
        in_buckets += all.buckets[i];
    }
    CHECK_INT(in_buckets, 300);
    mu_samples_clear(&samples);
    CHECK_INT(mu_samples_total(&samples), 0);
    CHECK_INT(mu_samples_sum(&samples), 0);
    CHECK(samples.rest == NULL);
    mu_samples_free(&samples);
}

int main(void) {
    test_below_the_limit();
    for (size_t limit = 0; limit <= 128; limit += 64) {
        test_above_the_limit(limit);
    }
    test_above_the_limit(300);
    test_above_the_limit(299);
    return check_report();
}
