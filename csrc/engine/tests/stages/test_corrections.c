/* What a thread takes back or gives another step before a drain has written it. */
#include "stages/corrections.h"

#include "stages/state.h"
#include "stages/thread_buffer.h"
#include "tests/stages/recorder_fixture.h"

struct corrected {
    struct fixture base;
    struct mu_timer timer;
    struct mu_thread_buffer *buffer;
};

static void begin(struct corrected *fixture) {
    fixture_start(&fixture->base);
    fixture_open(&fixture->base);
    CHECK_INT(mu_timer_init(&fixture->timer, fixture->base.recorder, "", NULL), MU_OK);
    fixture->buffer = mu_timer_thread_buffer(&fixture->timer);
}

static void end(struct corrected *fixture) {
    mu_timer_release(&fixture->timer);
    fixture_end(&fixture->base);
}

static void drain(struct corrected *fixture) {
    mu_recorder_drain(fixture->base.recorder, drain_wait_ns);
}

static int rows_with(struct corrected *fixture, const char *part) {
    drain(fixture);
    char *text = fixture_csv(&fixture->base);
    int count = count_of(text, part);
    free(text);
    return count;
}

static void stage(struct corrected *fixture, const char *name) {
    stage_start(&fixture->timer, name);
    CHECK_INT(stage_stop(&fixture->timer, name), MU_STOP_OK);
}

static void test_a_stage_is_taken_back(void) {
    struct corrected fixture;
    begin(&fixture);
    stage_start(&fixture.timer, "outer");
    stage_start(&fixture.timer, "nothing");
    CHECK(mu_thread_buffer_take_back(fixture.buffer));
    stage(&fixture, "inner");
    CHECK_INT(stage_stop(&fixture.timer, "outer"), MU_STOP_OK);
    CHECK_INT(rows_with(&fixture, "nothing"), 0);
    CHECK_INT(rows_with(&fixture, "inner,END"), 1);
    CHECK_INT(rows_with(&fixture, "outer,END"), 1);
    CHECK(!mu_thread_buffer_take_back(fixture.buffer)); /* nothing is open */
    end(&fixture);
}

static void test_a_stage_whose_start_is_written_ends(void) {
    struct corrected fixture;
    begin(&fixture);
    stage_start(&fixture.timer, "seen");
    CHECK_INT(rows_with(&fixture, "seen,START"), 1);
    CHECK(!mu_thread_buffer_take_back(fixture.buffer));
    CHECK_INT(rows_with(&fixture, "seen,END"), 1);
    CHECK_INT(fixture.buffer->depth, 0);
    end(&fixture);
}

static void test_records_get_another_step(void) {
    struct corrected fixture;
    begin(&fixture);
    stage(&fixture, "before");
    uint64_t from = fixture.buffer->head;
    stage(&fixture, "moved");
    uint64_t to = fixture.buffer->head;
    stage(&fixture, "after");
    CHECK_INT(mu_thread_buffer_change_step(fixture.buffer, from, to, 7), 0);
    CHECK_INT(rows_with(&fixture, ",0,before,"), 2);
    CHECK_INT(rows_with(&fixture, ",7,moved,"), 2);
    CHECK_INT(rows_with(&fixture, ",0,after,"), 2);
    end(&fixture);
}

static void test_written_records_keep_their_step(void) {
    struct corrected fixture;
    begin(&fixture);
    uint64_t from = fixture.buffer->head;
    stage(&fixture, "written");
    drain(&fixture);
    stage(&fixture, "not yet");
    uint64_t to = fixture.buffer->head;
    CHECK_INT(mu_thread_buffer_change_step(fixture.buffer, from, to, 7), 1);
    CHECK_INT(mu_thread_buffer_change_step(fixture.buffer, to, to + 100, 8), 0);
    CHECK_INT(rows_with(&fixture, ",0,written,"), 2);
    CHECK_INT(rows_with(&fixture, ",7,not yet,"), 2);
    end(&fixture);
}

/* As one does whose output hangs. */
static void test_changes_do_not_wait_for_a_drain_that_runs(void) {
    struct corrected fixture;
    begin(&fixture);
    uint64_t from = fixture.buffer->head;
    stage(&fixture, "moved");
    uint64_t middle = fixture.buffer->head;
    stage(&fixture, "moved twice");
    uint64_t to = fixture.buffer->head;
    pthread_mutex_lock(&fixture.base.recorder->drain_lock);
    CHECK_INT(mu_thread_buffer_change_step(fixture.buffer, from, to, 7), 0);
    CHECK_INT(mu_thread_buffer_change_step(fixture.buffer, middle, to, 8), 0);
    for (int i = 2; i < MU_STEP_CHANGES_MAX; i++) {
        CHECK_INT(mu_thread_buffer_change_step(fixture.buffer, middle, to, 8), 0);
    }
    CHECK_INT(mu_thread_buffer_change_step(fixture.buffer, middle, to, 9), 1); /* as written */
    pthread_mutex_unlock(&fixture.base.recorder->drain_lock);
    CHECK_INT(rows_with(&fixture, ",7,moved,"), 2);
    CHECK_INT(rows_with(&fixture, ",8,moved twice,"), 2);
    end(&fixture);
}

int main(void) {
    test_a_stage_is_taken_back();
    test_a_stage_whose_start_is_written_ends();
    test_records_get_another_step();
    test_written_records_keep_their_step();
    test_changes_do_not_wait_for_a_drain_that_runs();
    return check_report();
}
