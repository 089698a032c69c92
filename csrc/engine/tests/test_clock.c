/* Ticks to nanoseconds: the timeline between, before and after its anchors. */
#include "../clock.h"

#include <stdlib.h>

#include "check.h"

/* A counter of 2.5 GHz that runs 40 ppm fast after a while. */
static uint64_t ticks_at(int64_t ns) {
    return 1000 + (uint64_t)(ns * 5 / 2) +
           (ns > 1000000000 ? (uint64_t)(ns - 1000000000) / 10000 : 0);
}

static struct mu_anchor anchor_at(int64_t ns) {
    struct mu_anchor anchor = {ticks_at(ns), ns + 7, ns + 7 + 1750000000000000000};
    return anchor;
}

static void test_between_anchors(void) {
    struct mu_timeline timeline;
    mu_timeline_reset(&timeline);
    for (int i = 0; i < 40; i++) {
        mu_timeline_add(&timeline, anchor_at(i * 500000000LL));
    }
    for (int64_t ns = 1; ns < 19000000000; ns += 12345678) {
        int64_t got = mu_timeline_mono_ns(&timeline, ticks_at(ns));
        CHECK(llabs(got - (ns + 7)) <= 2);
    }
}

static void test_anchors_beyond_the_room(void) {
    enum { ANCHORS = 1000 };
    struct mu_timeline timeline;
    mu_timeline_reset(&timeline);
    for (int i = 0; i < ANCHORS; i++) {
        mu_timeline_add(&timeline, anchor_at(i * 1000000LL));
    }
    CHECK_INT(timeline.count, MU_TIMELINE_ANCHORS);
    CHECK_INT(timeline.anchors[0].mono_ns, 7);
    CHECK(llabs(mu_timeline_mono_ns(&timeline, ticks_at(500)) - 507) <= 2);
    int64_t after = 1500000000;
    CHECK(llabs(mu_timeline_mono_ns(&timeline, ticks_at(after)) - (after + 7)) <= 60000);
}

static void test_anchor_that_does_not_advance(void) {
    struct mu_timeline timeline;
    mu_timeline_reset(&timeline);
    mu_timeline_add(&timeline, anchor_at(1000));
    mu_timeline_add(&timeline, anchor_at(1000));
    mu_timeline_add(&timeline, anchor_at(500));
    CHECK_INT(timeline.count, 1);
    CHECK_INT(mu_timeline_rate(&timeline), INT64_C(1) << MU_CLOCK_RATE_SHIFT);
}

static void test_empty_timeline_takes_ticks_for_ns(void) {
    struct mu_timeline timeline;
    mu_timeline_reset(&timeline);
    CHECK_INT(mu_timeline_mono_ns(&timeline, 12345), 12345);
}

static void test_real_clocks(bool counter) {
    struct mu_timeline timeline;
    mu_timeline_reset(&timeline);
    mu_timeline_add(&timeline, mu_clock_anchor(counter));
    int64_t began = mu_clock_ns(CLOCK_MONOTONIC);
    while (mu_clock_ns(CLOCK_MONOTONIC) < began + 5000000) {
    }
    int64_t before = mu_clock_ns(CLOCK_MONOTONIC);
    uint64_t ticks = mu_clock_ticks(counter);
    int64_t after = mu_clock_ns(CLOCK_MONOTONIC);
    mu_timeline_add(&timeline, mu_clock_anchor(counter));
    int64_t got = mu_timeline_mono_ns(&timeline, ticks);
    CHECK(got >= before - 2000 && got <= after + 2000);
}

int main(void) {
    test_between_anchors();
    test_anchors_beyond_the_room();
    test_anchor_that_does_not_advance();
    test_empty_timeline_takes_ticks_for_ns();
    test_real_clocks(false);
    if (mu_clock_counter_is_kernel_clock()) {
        test_real_clocks(true);
    }
    return check_report();
}
