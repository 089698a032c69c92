/* Capture windows, as C callers see them; tests/capture/test_capture_controller.py compares random
 * sequences of events with a model. */
#include "capture/capture.h"

#include "tests/check.h"

static struct mu_capture_text text(const char *bytes) {
    return (struct mu_capture_text){bytes, strlen(bytes)};
}

/* One name for all gates. */
static struct mu_capture_text names[] = {{"f", 1}, {"g", 1}};

static struct mu_capture_spec spec_of(const char *id, enum mu_capture_policy policy) {
    return (struct mu_capture_spec){
        .id = text(id),
        .start = {.names = {names, 1}},
        .stop = {.names = {names + 1, 1}, .edge = MU_CAPTURE_EXIT},
        .policy = policy,
    };
}

static struct mu_capture_event event_of(const char *name) {
    return (struct mu_capture_event){.name = text(name), .thread = 1};
}

static void test_trigger(void) {
    struct mu_capture capture;
    struct mu_capture_spec spec = spec_of("w", MU_CAPTURE_TRIGGER_EXIT);
    struct mu_capture_event f = event_of("f");
    int index;
    mu_capture_init(&capture);
    CHECK(!mu_capture_concerns(&capture, text("f")));
    CHECK_INT(mu_capture_arm(&capture, &spec, &index, NULL), MU_OK);
    CHECK(mu_capture_concerns(&capture, text("f")));
    CHECK(!mu_capture_concerns(&capture, text("ff")));
    CHECK_INT(mu_capture_enter(&capture, &f).opened, index);
    CHECK_INT(mu_capture_enter(&capture, &f).opened, -1);
    CHECK_INT(mu_capture_exit(&capture, &f, false).closed, -1);
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
    test_limits();
    return check_report();
}
