/* GPU times in the CSV, from a recorder on a simulated driver. Its clock starts with the real one
 * and goes on by a little at each reading, however long the test is kept from running. */
#define FAKE(name) fake_##name
#include "tests/fakes/fake_cuda.c" /* NOLINT(bugprone-suspicious-include): for tests */

#include <sys/wait.h>

#include "tests/fake_lookup.h"
#include "tests/stages/recorder_fixture.h"

static struct mu_cuda_driver driver;

static int default_stream(void *owner, int32_t device, void **stream) {
    (void)owner;
    (void)device;
    *stream = NULL;
    return 0;
}

static void set_clock_step(int64_t ns) {
    pthread_mutex_lock(&fake.lock);
    fake.clock_step_ns = ns;
    pthread_mutex_unlock(&fake.lock);
}

static void start_clock(void) {
    fake_fakeCudaClock(mu_clock_ns(CLOCK_MONOTONIC));
    pthread_mutex_lock(&fake.lock);
    memset(fake.streams, 0, sizeof(fake.streams));
    pthread_mutex_unlock(&fake.lock);
    set_clock_step(100);
}

struct gpu_fixture {
    struct fixture base;
    struct mu_timer timer;
};

static void begin(struct gpu_fixture *fixture, uint32_t capacity) {
    struct mu_cuda_pool_options options = {.driver = &driver,
                                           .current_stream = default_stream,
                                           .capacity = capacity,
                                           .now_ns = fake_fakeCudaNow};
    start_clock();
    fixture_start(&fixture->base);
    CHECK_INT(mu_recorder_use_gpu(fixture->base.recorder, &options, NULL), MU_OK);
    fixture_open(&fixture->base);
    CHECK_INT(mu_timer_init(&fixture->timer, fixture->base.recorder, "", NULL), MU_OK);
    fake_fakeCudaMakeCurrent(1);
    fake_fakeCudaDevice(5000, 77000000000, 0.0);
}

static void end(struct gpu_fixture *fixture) {
    mu_timer_release(&fixture->timer);
    fixture_end(&fixture->base);
    CHECK_INT(fake_fakeCudaMisuse(), 0);
    CHECK_INT(fake_fakeCudaLiveEvents(), 0);
}

static void start(struct gpu_fixture *fixture, const char *name) {
    static const struct mu_gpu_events events = {.gpu = true};
    size_t length = strlen(name);
    mu_thread_buffer_start_with(mu_timer_thread_buffer(&fixture->timer), name, length,
                                mu_name_hash(name, length), &events);
}

static void work(struct gpu_fixture *fixture, const char *name, int64_t ns) {
    start(fixture, name);
    fake_fakeCudaWork(NULL, ns);
    CHECK_INT(stage_stop(&fixture->timer, name), MU_STOP_OK);
}

static void drain(struct gpu_fixture *fixture) {
    mu_recorder_drain(fixture->base.recorder, drain_wait_ns);
}

static void step(struct gpu_fixture *fixture) {
    mu_cuda_pool_step(fixture->base.recorder->gpu);
    drain(fixture);
}

static int rows_with(const struct gpu_fixture *fixture, const char *part) {
    char *csv = fixture_csv(&fixture->base);
    int found = count_of(csv, part);
    free(csv);
    return found;
}

static void test_waited_for(void) {
    struct gpu_fixture fixture;
    begin(&fixture, 0);
    work(&fixture, "forward", 3000000);
    work(&fixture, "backward", 6000000);
    mu_cuda_wait(fixture.base.recorder->gpu);
    step(&fixture);
    CHECK_INT(rows_with(&fixture, ",END,"), 2);
    CHECK_INT(rows_with(&fixture, ",cuda_ms=3."), 1);
    CHECK_INT(rows_with(&fixture, ",cuda_ms=6."), 1);
    CHECK_INT(rows_with(&fixture, ",cuda_ts=1"), 2);
    CHECK_INT(rows_with(&fixture, ",stream=1\""), 2);
    struct mu_aggregate sum;
    mu_aggregate_init(&sum);
    for (uint16_t path = 0; path < 8; path++) {
        mu_timer_gpu_aggregate(&fixture.timer, path, &sum);
    }
    CHECK_INT(sum.count, 2);
    CHECK(sum.sum > 8900000 && sum.sum < 15000000);
    end(&fixture);
}

static void test_held_alone(void) {
    struct gpu_fixture fixture;
    begin(&fixture, 0);
    work(&fixture, "slow", 40000000);
    stage_start(&fixture.timer, "cpu only");
    stage_stop(&fixture.timer, "cpu only");
    step(&fixture);
    CHECK_INT(rows_with(&fixture, "slow,START"), 1);
    CHECK_INT(rows_with(&fixture, "slow,END"), 0);
    CHECK_INT(rows_with(&fixture, "cpu only,END"), 1);
    mu_cuda_wait(fixture.base.recorder->gpu);
    drain(&fixture);
    CHECK_INT(rows_with(&fixture, "slow,END"), 1);
    CHECK_INT(rows_with(&fixture, "cuda_ms=40."), 1);
    end(&fixture);
}

static void test_so_many_steps_at_most(void) {
    struct gpu_fixture fixture;
    struct mu_cuda_stats stats;
    begin(&fixture, 0);
    work(&fixture, "stuck", 300000000);
    for (int i = 0; i < MU_GPU_HELD_STEPS; i++) {
        step(&fixture);
    }
    CHECK_INT(rows_with(&fixture, "stuck,END"), 0);
    step(&fixture);
    CHECK_INT(rows_with(&fixture, "stuck,END"), 1);
    CHECK_INT(rows_with(&fixture, "cuda_ms"), 0);
    mu_cuda_pool_stats(fixture.base.recorder->gpu, &stats);
    CHECK_INT(stats.late, 1);
    end(&fixture);
}

static void test_end_of_files(void) {
    struct gpu_fixture fixture;
    begin(&fixture, 0);
    work(&fixture, "last", 30000000);
    drain(&fixture);
    CHECK_INT(rows_with(&fixture, "last,END"), 0);
    set_clock_step(1000000); /* a close polls some hundred times */
    CHECK_INT(mu_recorder_close(fixture.base.recorder, NULL), MU_OK);
    CHECK_INT(rows_with(&fixture, "last,END"), 1);
    CHECK_INT(rows_with(&fixture, "cuda_ms=30."), 1);
    end(&fixture);
}

/* More rows wait than there is room for: the rest stay in the ring, and all get their GPU times. */
static void test_many_wait(void) {
    struct gpu_fixture fixture;
    begin(&fixture, 0);
    enum { STAGES = 3 * MU_HELD_MAX };
    fake_fakeCudaWork(NULL, 200000000);
    for (int i = 0; i < STAGES; i++) {
        work(&fixture, "queued", 1000);
    }
    drain(&fixture);
    CHECK_INT(rows_with(&fixture, "queued,START"), MU_HELD_MAX);
    CHECK_INT(rows_with(&fixture, "queued,END"), 0);
    mu_cuda_wait(fixture.base.recorder->gpu);
    drain(&fixture);
    CHECK_INT(rows_with(&fixture, "queued,END"), STAGES);
    CHECK_INT(rows_with(&fixture, "cuda_ms"), STAGES);
    end(&fixture);
}

/* The ring goes round many times while one row waits. */
static void test_ring_is_needed(void) {
    struct gpu_fixture fixture;
    begin(&fixture, 0);
    work(&fixture, "stuck", 500000000);
    for (int i = 0; i < 4 * MU_RING_SLOTS; i++) {
        stage_start(&fixture.timer, "quick");
        stage_stop(&fixture.timer, "quick");
        if (i % 500 == 0) {
            drain(&fixture);
        }
    }
    drain(&fixture);
    CHECK_INT(rows_with(&fixture, "stuck,END"), 1);
    CHECK_INT(rows_with(&fixture, "quick,END"), 4 * MU_RING_SLOTS);
    CHECK_INT(fixture.base.recorder->troubles.dropped_records, 0);
    end(&fixture);
}

/* A child of the test records, drains while rows wait, and is killed. */
static void record_and_die(const char *directory) {
    struct gpu_fixture fixture = {0};
    struct mu_cuda_pool_options options = {.driver = &driver, .current_stream = default_stream};
    snprintf(fixture.base.directory, sizeof(fixture.base.directory), "%s", directory);
    CHECK_INT(mu_recorder_create(&fixture.base.recorder, NULL), MU_OK);
    CHECK_INT(mu_recorder_use_gpu(fixture.base.recorder, &options, NULL), MU_OK);
    fixture_open(&fixture.base);
    CHECK_INT(mu_timer_init(&fixture.timer, fixture.base.recorder, "", NULL), MU_OK);
    fake_fakeCudaMakeCurrent(1);
    fake_fakeCudaWork(NULL, 60000000000);
    for (int i = 0; i < 5; i++) {
        work(&fixture, "held", 1000);
        stage_start(&fixture.timer, "plain");
        stage_stop(&fixture.timer, "plain");
        drain(&fixture);
    }
    work(&fixture, "held", 1000);
    kill(getpid(), SIGKILL);
}

static void test_killed(void) {
    struct fixture fixture;
    fixture_start(&fixture);
    pid_t child = fork();
    if (child == 0) {
        record_and_die(fixture.directory);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    fixture_open(&fixture);
    char *csv = fixture_csv(&fixture);
    CHECK_INT(count_of(csv, "held,START"), 6);
    CHECK_INT(count_of(csv, "held,END"), 6);
    CHECK_INT(count_of(csv, "plain,END"), 5);
    CHECK_INT(count_of(csv, "cuda_ms"), 0);
    free(csv);
    fixture_end(&fixture);
}

/* Stages that never end, a full ring, a child: spans come back or are left alone. */
static void test_spans_come_back(void) {
    struct gpu_fixture fixture;
    begin(&fixture, 4);
    for (int i = 0; i < 3; i++) {
        start(&fixture, "open");
    }
    mu_timer_release(&fixture.timer);
    CHECK_INT(mu_timer_init(&fixture.timer, fixture.base.recorder, "", NULL), MU_OK);
    for (int i = 0; i < 20; i++) {
        work(&fixture, "after", 1000);
        mu_cuda_wait(fixture.base.recorder->gpu);
        step(&fixture);
    }
    CHECK_INT(rows_with(&fixture, "cuda_ms"), 20);
    end(&fixture);
}

int main(void) {
    mu_cuda_driver_from(&driver, fake_lookup, NULL);
    test_waited_for();
    test_held_alone();
    test_so_many_steps_at_most();
    test_end_of_files();
    test_many_wait();
    test_ring_is_needed();
    test_killed();
    test_spans_come_back();
    fake_forget_events();
    return check_report();
}
