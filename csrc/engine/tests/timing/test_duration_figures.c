/* The figures of durations against those of a sorted list, exact and from the histogram. */
#include "timing/duration_figures.h"

#include "tests/check.h"

#include <math.h>

enum { LIMIT = 100 };

/* The durations base, base + 1000, ... in an order that is not sorted; no multiple of 7. */
static void fill(struct mu_samples *samples, uint64_t base, uint64_t count) {
    mu_samples_init(samples, LIMIT);
    for (uint64_t i = 0; i < count; i++) {
        mu_samples_add(samples, base + 1000 * ((i * 7 + 3) % count));
    }
}

static void test_exact(void) {
    struct mu_samples samples;
    struct mu_duration_figures found;
    struct mu_error err;
    fill(&samples, 5000000, LIMIT);
    CHECK_INT(mu_duration_figures(&samples, &found, &err), MU_OK);
    CHECK_INT(found.count, LIMIT);
    CHECK_INT(found.sum, 5000000LL * LIMIT + 1000LL * LIMIT * (LIMIT - 1) / 2);
    CHECK_INT(found.min, 5000000);
    CHECK_INT(found.max, 5099000);
    CHECK(found.p50 == 5049000 && found.p90 == 5089000 && found.p99 == 5098000);
    CHECK(fabs(found.std - 1000 * sqrt((LIMIT * LIMIT - 1) / 12.0)) < 1e-6);
    mu_samples_free(&samples);
}

static void test_from_the_histogram(void) {
    struct mu_samples samples;
    struct mu_duration_figures found;
    struct mu_error err;
    fill(&samples, 5000000, 10 * LIMIT + 9);
    CHECK(samples.rest != NULL);
    CHECK_INT(mu_duration_figures(&samples, &found, &err), MU_OK);
    CHECK_INT(found.count, 10 * LIMIT + 9);
    CHECK_INT(found.min, 5000000);
    CHECK_INT(found.max, 6008000);
    CHECK(fabs(found.p50 / 5504000 - 1) < 0.01);
    CHECK(fabs(found.p99 / 5998000 - 1) < 0.01);
    mu_samples_free(&samples);
}

static void test_none_and_merged(void) {
    struct mu_samples one, other;
    struct mu_duration_figures found;
    struct mu_error err;
    mu_samples_init(&one, LIMIT);
    CHECK_INT(mu_duration_figures(&one, &found, &err), MU_OK);
    CHECK(found.count == 0 && found.p99 == 0 && found.std == 0);
    fill(&other, 9, 3);
    CHECK_INT(mu_samples_merge(&one, &other, &err), MU_OK);
    CHECK_INT(mu_samples_merge(&one, &one, &err), MU_OK);
    CHECK_INT(mu_duration_figures(&one, &found, &err), MU_OK);
    CHECK_INT(found.count, 6);
    CHECK_INT(found.sum, 6054);
    mu_samples_free(&other);
    fill(&other, 9, 2 * LIMIT);
    CHECK_INT(mu_samples_merge(&one, &other, &err), MU_OK);
    CHECK_INT(mu_samples_total(&one), 6 + 2 * LIMIT);
    CHECK(one.rest != NULL);
    CHECK_INT(mu_duration_figures(&one, &found, &err), MU_OK);
    CHECK_INT(found.max, 9 + 1000 * (2 * LIMIT - 1));
    mu_samples_free(&one);
    mu_samples_free(&other);
}

int main(void) {
    test_exact();
    test_from_the_histogram();
    test_none_and_merged();
    return check_report();
}
