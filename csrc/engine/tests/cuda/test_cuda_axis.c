#include "cuda/cuda_axis.h"
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>

/* A device whose clock differs from the host's, with whole nanoseconds as its timestamps. */
struct device {
    double rate;
    double offset_ns;
};

static float elapsed_ms(const struct device *device, int64_t from_host, int64_t to_host) {
    double from = floor(device->offset_ns + (double)from_host * device->rate);
    double to = floor(device->offset_ns + (double)to_host * device->rate);
    return (float)((to - from) / 1e6);
}

static uint64_t random_state;

static int64_t random_below(int64_t bound) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)bound);
}

static int holds(struct mu_cuda_instant instant, int64_t truth) {
    return llabs(instant.ns - truth) <= instant.error_ns;
}

/* `idle`: the GPU runs an event as soon as it is enqueued, and a wait sees it at once. */
static int64_t run_steps(struct device device, int steps, int idle) {
    struct mu_cuda_axis axis = {0};
    int64_t host = 1000000000;
    int64_t anchor = 0;
    int64_t last_error = 0;
    for (int step = 0; step < steps; step++) {
        int64_t delay = idle ? 5000 : 5000 + random_below(30000000);
        int64_t late = idle ? 20000 : 20000 + random_below(50000000);
        struct mu_cuda_seen seen = {host, host + delay + late};
        if (step == 0) {
            mu_cuda_axis_start(&axis, seen);
        } else {
            mu_cuda_axis_advance(&axis, elapsed_ms(&device, anchor, host + delay), seen);
        }
        anchor = host + delay;
        for (int span = 0; span < 5; span++) {
            int64_t called = host + random_below(80000000);
            int64_t truth = called + delay;
            struct mu_cuda_seen begin = {called, truth + late};
            float ms = elapsed_ms(&device, anchor, truth);
            mu_cuda_axis_tighten(&axis, ms, begin);
            struct mu_cuda_instant start = mu_cuda_axis_place(&axis, ms, begin);
            CHECK(holds(start, truth));
            CHECK(start.ns >= begin.enqueued_ns && start.ns <= begin.complete_ns);
            last_error = start.error_ns;
        }
        host += 100000000;
    }
    CHECK_INT(axis.resets, 0);
    return last_error;
}

static void test_bounds_hold(void) {
    const double ppm[] = {0.0, 30.0, -30.0, 150.0, -150.0};
    for (size_t i = 0; i < sizeof(ppm) / sizeof(ppm[0]); i++) {
        struct device device = {1.0 + ppm[i] * 1e-6, 7e12};
        CHECK(run_steps(device, 3000, 1) < 50000);
        CHECK(run_steps(device, 3000, 0) < 80000000);
    }
}

/* Steps of an hour's run are placed as well as the first, where one float would have steps of
 * 0.25 ms. */
static void test_chain_keeps_precision(void) {
    struct device device = {1.0, 0.0};
    CHECK(elapsed_ms(&device, 0, 3600000000000) == elapsed_ms(&device, 0, 3600000000000 + 100000));
    CHECK(run_steps(device, 36000, 1) < 50000);
}

/* Bounds of one width that wander with the delays: the distances on the GPU stay those of the
 * events, but for the few moves that the bounds ask for. */
static void test_place_stays_between_drains(void) {
    enum { DRAINS = 1000 };
    struct mu_cuda_axis axis = {0};
    int64_t host = 0, last_ns = 0, last_host = 0;
    int moves = 0;
    random_state = 7;
    for (int drain = 0; drain < DRAINS; drain++, host += 10000000) {
        int64_t early = 50000 + random_below(100000), late = 50000 + random_below(100000);
        struct mu_cuda_seen seen = {host - early, host + late};
        if (drain == 0) {
            mu_cuda_axis_start(&axis, seen);
        } else {
            mu_cuda_axis_advance(&axis, 10.0f, seen);
        }
        struct mu_cuda_instant start = mu_cuda_axis_place(&axis, 0.0f, seen);
        CHECK(holds(start, host));
        moves += drain > 0 && start.ns - last_ns != host - last_host;
        last_ns = start.ns;
        last_host = host;
    }
    CHECK(moves < DRAINS / 10);
}

static void test_long_spans_say_so(void) {
    struct mu_cuda_axis axis = {0};
    mu_cuda_axis_start(&axis, (struct mu_cuda_seen){0, 10000});
    struct mu_cuda_seen event = {-4000000000000, 0};
    struct mu_cuda_instant start = mu_cuda_axis_place(&axis, -3600000.0f, event);
    CHECK(start.error_ns > 100000);
    CHECK(holds(start, -3600000000000));
}

static void test_contradiction_starts_anew(void) {
    struct mu_cuda_axis axis = {0};
    mu_cuda_axis_start(&axis, (struct mu_cuda_seen){0, 10000});
    int64_t later = 5000000000; /* the GPU says that 1 ms has passed */
    mu_cuda_axis_advance(&axis, 1.0f, (struct mu_cuda_seen){later, later + 20000});
    CHECK_INT(axis.resets, 1);
    struct mu_cuda_instant start =
        mu_cuda_axis_place(&axis, 0.0f, (struct mu_cuda_seen){later, later + 20000});
    CHECK(holds(start, later + 10000));
}

static void test_clamp_wins(void) {
    struct mu_cuda_axis axis = {0};
    mu_cuda_axis_start(&axis, (struct mu_cuda_seen){0, 1000});
    struct mu_cuda_seen event = {90000000, 90001000};
    struct mu_cuda_instant start = mu_cuda_axis_place(&axis, 1.0f, event);
    CHECK(start.ns >= event.enqueued_ns && start.ns <= event.complete_ns);
}

int main(void) {
    test_bounds_hold();
    test_chain_keeps_precision();
    test_place_stays_between_drains();
    test_long_spans_say_so();
    test_contradiction_starts_anew();
    test_clamp_wins();
    return check_report();
}
