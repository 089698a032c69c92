/* Capture windows, as C callers see them; tests/profilers/capture/test_capture_controller.py
 * compares random sequences of events with a model. */
#include "capture/capture.h"

#include "tests/check.h"

static struct mu_capture_text text(const char *bytes) {
    return (struct mu_capture_text){bytes, strlen(bytes)};
}

/* One name for all gates. */
static struct mu_capture_text names[] = {{"f", 1}, {"g", 1}};

enum { ITERS_MAX = 5 };

static struct mu_capture_spec spec_of(const char *id, enum mu_capture_policy policy) {
    return (struct mu_capture_spec){
        .id = text(id),
        .start = {.names = {names, 1}},
        .stop = {.names = {names + 1, 1}, .edge = MU_CAPTURE_EXIT},
        .policy = policy,
        .iters_max = ITERS_MAX,
    };
}

static struct mu_capture_event event_of(const char *name) {
    return (struct mu_capture_event){.name = text(name), .call = 1};
}

static struct mu_capture_event at_iter(const char *name, int64_t iter) {
    return (struct mu_capture_event){.name = text(name), .has_iter = true, .iter = iter};
}

static enum mu_capture_outcome outcome_of(const struct mu_capture *capture) {
    int index = mu_capture_next_ended(capture);
    CHECK(index >= 0);
    return capture->windows[index].outcome;
}

static void test_trigger(void) {
    struct mu_capture capture;
    struct mu_capture_spec spec = spec_of("w", MU_CAPTURE_TRIGGER_EXIT);
    struct mu_capture_event f = event_of("f");
    int index;
    mu_capture_init(&capture);
    CHECK_INT(mu_capture_arm(&capture, &spec, &index, NULL), MU_OK);
    CHECK_INT(mu_capture_enter(&capture, &f).opened, index);
    f.call = 2; /* beside it, or in it */
    CHECK_INT(mu_capture_enter(&capture, &f).opened, -1);
    CHECK_INT(mu_capture_exit(&capture, &f, false).closed, -1);
    f.call = 0; /* nobody knows */
    CHECK_INT(mu_capture_exit(&capture, &f, true).closed, -1);
    f.call = 1;
    CHECK_INT(mu_capture_exit(&capture, &f, false).closed, index);
    CHECK_INT(mu_capture_next_ended(&capture), index);
    CHECK_INT(capture.windows[index].outcome, MU_CAPTURE_DONE);
    mu_capture_forget(&capture, index);
    CHECK_INT(mu_capture_next_ended(&capture), -1);
    mu_capture_release(&capture);
}

static void test_filters(void) {
    struct mu_capture capture;
    struct mu_capture_spec spec = spec_of("w", MU_CAPTURE_MANUAL);
    struct mu_capture_event f = event_of("f");
    int64_t ranks[] = {2, 5};
    struct mu_capture_text roles[] = {{"actor", 5}};
    int index;
    spec.ranks = ranks;
    spec.rank_count = 2;
    spec.roles = (struct mu_capture_texts){roles, 1};
    mu_capture_init(&capture);
    CHECK_INT(mu_capture_arm(&capture, &spec, &index, NULL), MU_OK);
    ranks[1] = 6; /* the window has a copy */
    CHECK_INT(mu_capture_enter(&capture, &f).opened, -1);
    f.role = text("actor");
    CHECK_INT(mu_capture_enter(&capture, &f).opened, -1);
    f.has_rank = true;
    f.rank = 6;
    CHECK_INT(mu_capture_enter(&capture, &f).opened, -1);
    f.rank = 5;
    CHECK_INT(mu_capture_enter(&capture, &f).opened, index);
    mu_capture_release(&capture);
}

/* A call without a micro-batch does the work of all. */
static void test_microbatches(void) {
    struct mu_capture capture;
    struct mu_capture_spec spec = spec_of("w", MU_CAPTURE_STOP_NAME);
    struct mu_capture_event f = event_of("f"), g = event_of("g");
    int index;
    spec.start.has_microbatch = spec.stop.has_microbatch = true;
    spec.stop.microbatch = 3;
    mu_capture_init(&capture);
    CHECK_INT(mu_capture_arm(&capture, &spec, &index, NULL), MU_OK);
    f.has_microbatch = true;
    f.microbatch = 1;
    CHECK_INT(mu_capture_enter(&capture, &f).opened, -1);
    f.has_microbatch = false;
    CHECK_INT(mu_capture_enter(&capture, &f).opened, index);
    CHECK_INT(mu_capture_exit(&capture, &g, false).closed, index);
    CHECK_INT(outcome_of(&capture), MU_CAPTURE_DONE);
    mu_capture_release(&capture);
}

/* The stop function is never called: other functions show that its iteration is over. */
static void test_missed_stop(void) {
    struct mu_capture capture;
    struct mu_capture_spec spec = spec_of("w", MU_CAPTURE_STOP_NAME);
    int index;
    spec.stop.has_iter = true;
    mu_capture_init(&capture);
    for (int by_stop = 0; by_stop < 2; by_stop++) {
        struct mu_capture_event f = at_iter("f", 0), g = at_iter("g", 0);
        const struct mu_capture_event early = at_iter("h", 1), late = at_iter("h", 2);
        CHECK_INT(mu_capture_arm(&capture, &spec, &index, NULL), MU_OK);
        CHECK_INT(mu_capture_enter(&capture, &f).opened, index);
        CHECK_INT(mu_capture_enter(&capture, &early).closed, -1);
        if (by_stop) { /* it runs, and a later one overlaps it */
            CHECK_INT(mu_capture_enter(&capture, &g).closed, -1);
            g.iter = 4;
            CHECK_INT(mu_capture_exit(&capture, &g, false).closed, -1);
            g.iter = ITERS_MAX;
            CHECK_INT(mu_capture_exit(&capture, &g, false).closed, index);
        } else {
            CHECK_INT(mu_capture_enter(&capture, &late).closed, index);
        }
        CHECK_INT(outcome_of(&capture), MU_CAPTURE_OVERRUN);
        mu_capture_forget(&capture, index);
    }
    mu_capture_release(&capture);
}

/* Without a stop the window ends after so many iterations, or calls that name none. */
static void test_bounds(void) {
    struct mu_capture capture;
    int index;
    mu_capture_init(&capture);
    for (int named = 0; named < 2; named++) {
        struct mu_capture_spec spec = spec_of("w", MU_CAPTURE_MANUAL);
        struct mu_capture_event f = event_of("f");
        int calls = 0;
        CHECK_INT(mu_capture_arm(&capture, &spec, &index, NULL), MU_OK);
        f.has_iter = named;
        f.iter = INT64_MIN + 1;
        CHECK_INT(mu_capture_enter(&capture, &f).opened, index);
        for (bool open = true; open && calls < 2 * ITERS_MAX; calls++) {
            f.iter++;
            open = mu_capture_enter(&capture, &f).closed < 0;
        }
        CHECK_INT(calls, ITERS_MAX);
        CHECK_INT(outcome_of(&capture), MU_CAPTURE_OVERRUN);
        mu_capture_forget(&capture, index);
    }
    mu_capture_release(&capture);
}

static void test_limits(void) {
    struct mu_capture capture;
    struct mu_error err;
    char id[16];
    int index;
    mu_capture_init(&capture);
    for (int i = 0; i < MU_CAPTURE_WINDOWS_MAX; i++) {
        snprintf(id, sizeof(id), "w%d", i);
        struct mu_capture_spec spec = spec_of(id, MU_CAPTURE_MANUAL);
        CHECK_INT(mu_capture_arm(&capture, &spec, &index, &err), MU_OK);
    }
    struct mu_capture_spec spec = spec_of("more", MU_CAPTURE_MANUAL);
    CHECK_INT(mu_capture_arm(&capture, &spec, &index, &err), MU_ERR_LIMIT);
    mu_capture_end(&capture, 7, MU_CAPTURE_DISARMED);
    mu_capture_forget(&capture, 7);
    CHECK_INT(mu_capture_arm(&capture, &spec, &index, &err), MU_OK);
    CHECK_INT(index, 7);
    spec.rank_count = MU_CAPTURE_LIST_MAX + 1;
    CHECK_INT(mu_capture_arm(&capture, &spec, &index, &err), MU_ERR_ARGUMENT);
    mu_capture_release(&capture);
}

int main(void) {
    test_trigger();
    test_filters();
    test_microbatches();
    test_missed_stop();
    test_bounds();
    test_limits();
    return check_report();
}
