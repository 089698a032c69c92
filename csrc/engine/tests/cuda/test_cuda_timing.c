/* GPU timing on a simulated driver, whose clock the test turns by hand. */
#define FAKE(name) fake_##name
#include "tests/fakes/fake_cuda.c" /* NOLINT(bugprone-suspicious-include): a test of its own */

#include "cuda/cuda_timing.h"
#include "tests/check.h"
#include "tests/fake_lookup.h"

#include <sched.h>

static struct mu_cuda_driver driver;
static void *stream_now;

static int current_stream(void *owner, int32_t device, void **stream) {
    (void)owner;
    (void)device;
    *stream = stream_now;
    return 0;
}

static void pass_time(int64_t ns) {
    pthread_mutex_lock(&fake.lock);
    fake.clock_ns += ns;
    pthread_mutex_unlock(&fake.lock);
}

static void fresh_fake(int manual) {
    pthread_mutex_lock(&fake.lock);
    fake.manual_clock = manual;
    fake.clock_ns = 5000000000;
    fake.clock_step_ns = 100;
    fake.misuse = 0;
    fake.captures_broken = 0;
    memset(fake.streams, 0, sizeof(fake.streams));
    memset(fake.functions, 0, sizeof(fake.functions));
    pthread_mutex_unlock(&fake.lock);
    fake_fakeCudaFail("");
    fake_fakeCudaDevice(5000, 123456789000, 20.0);
    fake_fakeCudaMakeCurrent(1);
    stream_now = NULL;
}

static struct mu_cuda_pool *fresh_pool(uint32_t capacity) {
    fresh_fake(1);
    struct mu_cuda_pool_options options = {.driver = &driver,
                                           .current_stream = current_stream,
                                           .capacity = capacity,
                                           .now_ns = fake_fakeCudaNow};
    struct mu_cuda_pool *pool = NULL;
    CHECK_INT(mu_cuda_pool_create(&pool, &options, NULL), MU_OK);
    return pool;
}

static struct mu_cuda_stats stats_of(struct mu_cuda_pool *pool) {
    struct mu_cuda_stats stats;
    mu_cuda_pool_stats(pool, &stats);
    return stats;
}

static void close_pool(struct mu_cuda_pool *pool) {
    mu_cuda_pool_free(pool);
    CHECK_INT(fake_fakeCudaLiveEvents(), 0);
    CHECK_INT(fake_fakeCudaMisuse(), 0);
}

static void check_times(const struct mu_cuda_times *times, int64_t start, int64_t duration) {
    CHECK(llabs(times->start_ns - start) <= times->error_ns);
    CHECK(llabs(times->duration_ns - duration) <= 1000 + duration / 10000);
}

/* --- the driver's table --- */

static void test_no_driver(void) {
    struct mu_cuda_driver absent;
    mu_cuda_driver_open(&absent, "libmu_no_such_driver.so.1");
    CHECK(!absent.available);
    CHECK(strstr(absent.reason, "libmu_no_such_driver.so.1: ") != NULL); /* and why */
    CHECK_INT(absent.profiler_start(), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_STR(mu_cuda_error_name(&absent, 700), "CUDA error");
    struct mu_cuda_pool_options options = {.driver = &absent, .current_stream = current_stream};
    struct mu_cuda_pool *pool;
    CHECK_INT(mu_cuda_pool_create(&pool, &options, NULL), MU_OK);
    CHECK_INT(mu_cuda_span_begin(pool), 0);
    mu_cuda_wait(pool);
    mu_cuda_collect(pool);
    CHECK_INT(stats_of(pool).errors, 0);
    mu_cuda_pool_free(pool);
}

static void test_old_driver(void) {
    struct mu_cuda_driver old;
    char missing[] = "cuEventRecord";
    mu_cuda_driver_from(&old, fake_lookup, missing);
    CHECK(!old.available);
    CHECK_STR(old.reason, "the CUDA driver has no cuEventRecord");
    char newer[] = "cuCtxGetId";
    mu_cuda_driver_from(&old, fake_lookup, newer);
    CHECK(old.available);
    CHECK_STR(mu_cuda_error_name(&old, 700), "CUDA_ERROR_ILLEGAL_ADDRESS");
}

static void test_null_pool(void) {
    struct mu_cuda_times times;
    CHECK_INT(mu_cuda_span_begin(NULL), 0);
    mu_cuda_span_end(NULL, 1);
    mu_cuda_span_cancel(NULL, 1);
    mu_cuda_pool_step(NULL);
    mu_cuda_look(NULL);
    mu_cuda_wait(NULL);
    mu_cuda_collect(NULL);
    mu_cuda_span_release(NULL, 1);
    CHECK_INT(mu_cuda_span_poll(NULL, 1, &times), MU_CUDA_SPAN_NONE);
    mu_cuda_pool_free(NULL);
    struct mu_cuda_pool_options options = {.capacity = MU_CUDA_SPANS_MAX + 1};
    struct mu_cuda_pool *pool;
    CHECK_INT(mu_cuda_pool_create(&pool, &options, NULL), MU_ERR_ARGUMENT);
}

/* --- spans --- */

static void test_times_of_steps(void) {
    struct mu_cuda_pool *pool = fresh_pool(0);
    int64_t device_before_ns = 0;
    for (int step = 0; step < 200; step++) {
        int64_t starts[3], durations[3];
        uint32_t ids[3];
        for (int stage = 0; stage < 3; stage++) {
            ids[stage] = mu_cuda_span_begin(pool);
            starts[stage] = fake_fakeCudaLastEvent(NULL);
            fake_fakeCudaWork(NULL, 1000000 * (stage + 1));
            mu_cuda_span_end(pool, ids[stage]);
            durations[stage] = fake_fakeCudaLastEvent(NULL) - starts[stage];
            pass_time(50000);
        }
        mu_cuda_wait(pool);
        mu_cuda_collect(pool);
        int64_t end_before = 0;
        int64_t first_device_ns = 0;
        for (int stage = 0; stage < 3; stage++) {
            struct mu_cuda_times times;
            CHECK_INT(mu_cuda_span_poll(pool, ids[stage], &times), MU_CUDA_SPAN_READY);
            check_times(&times, starts[stage], durations[stage]);
            CHECK(times.error_ns < 50000);
            CHECK(times.start_ns >= end_before); /* as they followed each other */
            end_before = times.start_ns + times.duration_ns;
            first_device_ns = stage == 0 ? times.device_ns : first_device_ns;
            int64_t apart_ns = times.device_ns - first_device_ns;
            CHECK(llabs(apart_ns - (starts[stage] - starts[0])) <= 1000); /* it drifts by 20 ppm */
            CHECK(stage > 0 || times.device_ns >= device_before_ns);
            device_before_ns = times.device_ns;
            CHECK_INT(times.stream, 1);
            mu_cuda_span_release(pool, ids[stage]);
        }
        mu_cuda_pool_step(pool);
        pass_time(20000000);
    }
    CHECK_INT(stats_of(pool).spans, 600);
    CHECK_INT(stats_of(pool).axis_resets, 0);
    CHECK_INT(fake_fakeCudaCalls("cuEventSynchronize"), 200);
    CHECK_INT(fake_fakeCudaLiveEvents(), 6 + 2); /* three pairs, and anchors in turn */
    close_pool(pool);
}

/* The script waits for the GPU once a step, as `.item()` does, and nobody else waits. A stage
 * without a span may come first in the next step. The spans of
 * a step are collected before that. Without a look after the pause, all that is known of the end of
 * a step is what the next collection sees: half a step later. */
static void check_a_script_that_waits(int64_t input_ns) {
    struct mu_cuda_pool *pool = fresh_pool(0);
    enum { STAGES = 3, STEPS = 100 };
    uint32_t ids[2][STAGES];
    int64_t starts[2][STAGES];
    for (int step = 0; step < STEPS; step++) {
        int now = step % 2;
        for (int stage = 0; stage < STAGES; stage++) {
            ids[now][stage] = mu_cuda_span_begin(pool);
            starts[now][stage] = fake_fakeCudaLastEvent(NULL);
            fake_fakeCudaWork(NULL, 2000000);
            pass_time(1000000);
            mu_cuda_span_end(pool, ids[now][stage]);
        }
        mu_cuda_pool_step(pool);
        mu_cuda_collect(pool);
        for (int stage = 0; step > 0 && stage < STAGES; stage++) {
            struct mu_cuda_times times;
            CHECK_INT(mu_cuda_span_poll(pool, ids[1 - now][stage], &times), MU_CUDA_SPAN_READY);
            check_times(&times, starts[1 - now][stage], 2000000);
            CHECK(step < 3 || times.error_ns < 25000);
            mu_cuda_span_release(pool, ids[1 - now][stage]);
        }
        pthread_mutex_lock(&fake.lock);
        host_wait_until(fake.streams[0].busy_until_ns);
        pthread_mutex_unlock(&fake.lock);
        pass_time(10000);
        if (input_ns > 0) {
            mu_cuda_look(pool);
            pass_time(input_ns);
        }
    }
    CHECK_INT(fake_fakeCudaCalls("cuEventSynchronize"), 0);
    CHECK_INT(stats_of(pool).axis_resets, 0);
    mu_cuda_collect(pool);
    for (int stage = 0; stage < STAGES; stage++) {
        mu_cuda_span_release(pool, ids[(STEPS - 1) % 2][stage]);
    }
    close_pool(pool);
}

static void test_a_script_that_waits(void) {
    check_a_script_that_waits(0);
    check_a_script_that_waits(800000);
}

/* A capture in another thread is not broken by the look after a pause. */
static void test_a_pause_in_a_capture(void) {
    struct mu_cuda_pool *pool = fresh_pool(0);
    stream_now = fake_fakeCudaStream(3);
    uint32_t first = mu_cuda_span_begin(pool);
    mu_cuda_span_end(pool, first);
    void *other = fake_fakeCudaStream(2);
    fake_fakeCudaCapture(other, 1);
    pass_time(1000000);
    uint32_t second = mu_cuda_span_begin(pool);
    CHECK(second != 0);
    mu_cuda_span_end(pool, second);
    CHECK_INT(fake_fakeCudaCalls("cuEventQuery"), 1);
    CHECK_INT(fake.captures_broken, 0);
    fake_fakeCudaCapture(other, 0);
    mu_cuda_collect(pool);
    mu_cuda_span_release(pool, first);
    mu_cuda_span_release(pool, second);
    close_pool(pool);
}

/* The GPU lies steps behind, nothing waits, and some spans are given up. */
static void test_without_waiting(void) {
    struct mu_cuda_pool *pool = fresh_pool(0);
    enum { STEPS = 100 };
    uint32_t ids[STEPS];
    int64_t starts[STEPS];
    int ready = 0;
    int late = 0;
    for (int step = 0; step < STEPS; step++) {
        ids[step] = mu_cuda_span_begin(pool);
        starts[step] = fake_fakeCudaLastEvent(NULL);
        fake_fakeCudaWork(NULL, step < 20 ? 5000000 : 1000000);
        mu_cuda_span_end(pool, ids[step]);
        mu_cuda_pool_step(pool);
        pass_time(2000000);
        mu_cuda_collect(pool);
        int old = step - 2;
        struct mu_cuda_times times;
        if (old < 0) {
            continue;
        }
        if (mu_cuda_span_poll(pool, ids[old], &times) == MU_CUDA_SPAN_READY) {
            check_times(&times, starts[old], old < 20 ? 5000000 : 1000000);
            ready++;
        } else {
            late++;
        }
        mu_cuda_span_release(pool, ids[old]);
    }
    CHECK(ready > 10);
    CHECK(late > 0);
    CHECK_INT(stats_of(pool).late, late);
    CHECK_INT(fake_fakeCudaCalls("cuEventSynchronize"), 0);
    mu_cuda_span_release(pool, ids[STEPS - 2]);
    mu_cuda_span_release(pool, ids[STEPS - 1]);
    close_pool(pool);
}

static void test_two_streams(void) {
    struct mu_cuda_pool *pool = fresh_pool(0);
    uint32_t compute = mu_cuda_span_begin(pool);
    int64_t compute_start = fake_fakeCudaLastEvent(NULL);
    fake_fakeCudaWork(NULL, 8000000);
    stream_now = fake_fakeCudaStream(3);
    uint32_t copy = mu_cuda_span_begin(pool);
    int64_t copy_start = fake_fakeCudaLastEvent(stream_now);
    fake_fakeCudaWork(stream_now, 1000000);
    mu_cuda_span_end(pool, copy);
    stream_now = NULL;
    mu_cuda_span_end(pool, compute);
    pass_time(3000000);
    mu_cuda_collect(pool);
    struct mu_cuda_times times;
    CHECK_INT(mu_cuda_span_poll(pool, copy, &times), MU_CUDA_SPAN_READY);
    check_times(&times, copy_start, 1000000);
    CHECK_INT(times.stream, 4);
    CHECK_INT(mu_cuda_span_poll(pool, compute, &times), MU_CUDA_SPAN_PENDING);
    mu_cuda_wait(pool);
    mu_cuda_collect(pool);
    CHECK_INT(mu_cuda_span_poll(pool, compute, &times), MU_CUDA_SPAN_READY);
    check_times(&times, compute_start, 8000000);
    close_pool(pool);
}

static void test_no_context(void) {
    struct mu_cuda_pool *pool = fresh_pool(0);
    fake_fakeCudaMakeCurrent(0);
    CHECK_INT(mu_cuda_span_begin(pool), 0);
    CHECK_INT(fake_fakeCudaCalls("cuEventCreate"), 0);
    fake_fakeCudaMakeCurrent(1);
    uint32_t id = mu_cuda_span_begin(pool);
    CHECK(id != 0);
    fake_fakeCudaMakeCurrent(0); /* the thread has moved on to another device */
    mu_cuda_span_end(pool, id);
    mu_cuda_wait(pool);
    mu_cuda_collect(pool);
    struct mu_cuda_times times;
    CHECK_INT(mu_cuda_span_poll(pool, id, &times), MU_CUDA_SPAN_READY);
    CHECK_INT(stats_of(pool).errors, 0);
    close_pool(pool);
}

static void test_capture(void) {
    struct mu_cuda_pool *pool = fresh_pool(0);
    uint32_t before = mu_cuda_span_begin(pool);
    mu_cuda_span_end(pool, before);
    stream_now = fake_fakeCudaStream(2);
    uint32_t open = mu_cuda_span_begin(pool);
    fake_fakeCudaCapture(stream_now, 1);
    CHECK_INT(mu_cuda_span_begin(pool), 0); /* the stream itself */
    stream_now = NULL;
    CHECK_INT(mu_cuda_span_begin(pool), 0); /* the legacy stream meanwhile */
    stream_now = fake_fakeCudaStream(5);
    uint32_t beside = mu_cuda_span_begin(pool); /* a stream that has nothing to do with it */
    CHECK(beside != 0);
    mu_cuda_span_end(pool, beside);
    mu_cuda_span_end(pool, open);
    mu_cuda_wait(pool);
    mu_cuda_collect(pool);
    struct mu_cuda_times times;
    CHECK_INT(mu_cuda_span_poll(pool, before, &times), MU_CUDA_SPAN_READY);
    CHECK_INT(mu_cuda_span_poll(pool, beside, &times), MU_CUDA_SPAN_READY);
    CHECK_INT(mu_cuda_span_poll(pool, open, &times), MU_CUDA_SPAN_FAILED);
    CHECK_INT(stats_of(pool).captured, 3);
    CHECK_INT(stats_of(pool).errors, 0);
    fake_fakeCudaCapture(fake_fakeCudaStream(2), 0);
    CHECK(mu_cuda_span_begin(pool) != 0);
    close_pool(pool);
}

static void test_empty_pool(void) {
    struct mu_cuda_pool *pool = fresh_pool(2);
    uint32_t first = mu_cuda_span_begin(pool);
    uint32_t second = mu_cuda_span_begin(pool);
    CHECK_INT(mu_cuda_span_begin(pool), 0);
    CHECK_INT(stats_of(pool).exhausted, 1);
    mu_cuda_span_cancel(pool, second);
    CHECK_INT(mu_cuda_span_begin(pool), second);
    mu_cuda_span_end(pool, first);
    mu_cuda_span_cancel(pool, first);
    CHECK_INT(mu_cuda_span_begin(pool), 0);
    mu_cuda_collect(pool);
    CHECK_INT(mu_cuda_span_begin(pool), first);
    close_pool(pool);
}

/* Without steps an anchor comes every second all the same. */
static void test_no_steps(void) {
    struct mu_cuda_pool *pool = fresh_pool(0);
    for (int i = 0; i < 50; i++) {
        uint32_t id = mu_cuda_span_begin(pool);
        int64_t start = fake_fakeCudaLastEvent(NULL);
        fake_fakeCudaWork(NULL, 400000000);
        mu_cuda_span_end(pool, id);
        mu_cuda_wait(pool);
        mu_cuda_collect(pool);
        struct mu_cuda_times times;
        CHECK_INT(mu_cuda_span_poll(pool, id, &times), MU_CUDA_SPAN_READY);
        check_times(&times, start, 400000000);
        CHECK(times.error_ns < 200000);
        mu_cuda_span_release(pool, id);
    }
    CHECK(fake_fakeCudaCalls("cuEventRecord") > 100 + 10);
    close_pool(pool);
}

/* --- trouble --- */

static void run_through(struct mu_cuda_pool *pool) {
    uint32_t ids[8];
    for (int i = 0; i < 8; i++) {
        ids[i] = mu_cuda_span_begin(pool);
        fake_fakeCudaWork(NULL, 10000);
        mu_cuda_span_end(pool, ids[i]);
        if (i % 2 == 1) {
            mu_cuda_wait(pool);
            mu_cuda_collect(pool);
            mu_cuda_pool_step(pool);
        }
    }
    mu_cuda_wait(pool);
    mu_cuda_collect(pool);
    for (int i = 0; i < 8; i++) {
        struct mu_cuda_times times;
        enum mu_cuda_span_state state = mu_cuda_span_poll(pool, ids[i], &times);
        CHECK(ids[i] == 0 ? state == MU_CUDA_SPAN_NONE
                          : state == MU_CUDA_SPAN_READY || state == MU_CUDA_SPAN_FAILED);
        mu_cuda_span_release(pool, ids[i]);
    }
}

/* The events of a context that was given up are not touched again: it may be gone. */
static void forget_events(void) {
    fake_fakeCudaFail("");
    fake_fakeCudaReset();
}

static void test_every_failure(void) {
    static const char *const names[] = {
        "cuCtxGetCurrent",     "cuCtxGetDevice",     "cuCtxGetId",
        "cuCtxPushCurrent",    "cuEventCreate",      "cuEventRecord",
        "cuEventQuery",        "cuEventSynchronize", "cuEventElapsedTime",
        "cuStreamIsCapturing", "cuStreamGetId",      "cuThreadExchangeStreamCaptureMode",
        "cuGetErrorName",      "cuEventDestroy",
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (int nth = 0; nth < 24; nth++) {
            struct mu_cuda_pool *pool = fresh_pool(0);
            char failure[64];
            snprintf(failure, sizeof(failure), "%s:%d:700", names[i], nth);
            fake_fakeCudaFail(failure);
            run_through(pool);
            struct mu_cuda_stats stats = stats_of(pool);
            CHECK(stats.errors <= 1);
            CHECK_INT(stats.first_error, stats.errors == 0 ? 0 : 700);
            CHECK_INT(stats.first_call != NULL, stats.errors);
            run_through(pool);
            CHECK_INT(stats_of(pool).errors <= 1, 1);
            mu_cuda_pool_free(pool);
            CHECK_INT(fake_fakeCudaMisuse(), 0);
            forget_events();
        }
    }
}

static void test_process_ends(void) {
    struct mu_cuda_pool *pool = fresh_pool(0);
    uint32_t id = mu_cuda_span_begin(pool);
    mu_cuda_span_end(pool, id);
    fake_fakeCudaFail("cuCtxGetId:0:4,cuCtxPushCurrent:0:4"); /* deinitialised */
    mu_cuda_wait(pool);
    mu_cuda_collect(pool);
    struct mu_cuda_times times;
    CHECK_INT(mu_cuda_span_poll(pool, id, &times), MU_CUDA_SPAN_FAILED);
    CHECK_INT(stats_of(pool).errors, 0);
    mu_cuda_pool_free(pool);
    forget_events();
}

static void test_device_reset(void) {
    struct mu_cuda_pool *pool = fresh_pool(4);
    uint32_t closed = mu_cuda_span_begin(pool);
    mu_cuda_span_end(pool, closed);
    uint32_t open = mu_cuda_span_begin(pool);
    uint32_t spare = mu_cuda_span_begin(pool);
    mu_cuda_span_cancel(pool, spare);
    fake_fakeCudaReset();
    mu_cuda_span_end(pool, open);
    mu_cuda_wait(pool);
    mu_cuda_collect(pool);
    struct mu_cuda_times times;
    CHECK_INT(mu_cuda_span_poll(pool, closed, &times), MU_CUDA_SPAN_FAILED);
    CHECK_INT(mu_cuda_span_poll(pool, open, &times), MU_CUDA_SPAN_FAILED);
    mu_cuda_span_release(pool, closed);
    mu_cuda_span_release(pool, open);
    CHECK_INT(stats_of(pool).errors, 1);
    CHECK_INT(stats_of(pool).failed, 2);
    uint32_t ids[4]; /* the new context has the whole pool */
    for (int i = 0; i < 4; i++) {
        ids[i] = mu_cuda_span_begin(pool);
        CHECK(ids[i] != 0);
        mu_cuda_span_end(pool, ids[i]);
    }
    mu_cuda_wait(pool);
    mu_cuda_collect(pool);
    for (int i = 0; i < 4; i++) {
        CHECK_INT(mu_cuda_span_poll(pool, ids[i], &times), MU_CUDA_SPAN_READY);
    }
    close_pool(pool);
}

/* --- threads --- */

enum { THREADS = 4, ROUNDS = 300 };

struct handover {
    struct mu_cuda_pool *pool;
    _Atomic uint32_t ids[THREADS][ROUNDS]; /* id + 1; 0: not there yet */
};

struct timing_thread {
    pthread_t thread;
    int number;
    struct handover *handover;
};

static void *time_stages(void *arg) {
    struct timing_thread *self = arg;
    struct mu_cuda_pool *pool = self->handover->pool;
    fake_fakeCudaMakeCurrent(1);
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t id = mu_cuda_span_begin(pool);
        mu_cuda_span_end(pool, id);
        if (i % 7 == 3) {
            mu_cuda_span_cancel(pool, id);
            id = 0;
        }
        if (i % 50 == 0) {
            mu_cuda_pool_step(pool);
            mu_cuda_wait(pool);
        }
        self->handover->ids[self->number][i] = id + 1;
    }
    return NULL;
}

/* Reads what the threads have handed over; the number of those not done yet. */
static int drain(struct handover *handover, int *ready) {
    int left = 0;
    mu_cuda_collect(handover->pool);
    for (int t = 0; t < THREADS; t++) {
        for (int i = 0; i < ROUNDS; i++) {
            uint32_t id = handover->ids[t][i];
            struct mu_cuda_times times;
            if (id == UINT32_MAX) {
                continue;
            }
            if (id == 0 || (id > 1 && mu_cuda_span_poll(handover->pool, id - 1, &times) ==
                                          MU_CUDA_SPAN_PENDING)) {
                left++;
                continue;
            }
            *ready += id > 1;
            mu_cuda_span_release(handover->pool, id - 1);
            handover->ids[t][i] = UINT32_MAX;
        }
    }
    return left;
}

static void test_threads(void) {
    static struct handover handover;
    struct timing_thread threads[THREADS];
    handover.pool = fresh_pool(THREADS * ROUNDS);
    for (int t = 0; t < THREADS; t++) {
        threads[t] = (struct timing_thread){.number = t, .handover = &handover};
        CHECK_INT(pthread_create(&threads[t].thread, NULL, time_stages, &threads[t]), 0);
    }
    int ready = 0;
    while (drain(&handover, &ready) > 0) {
        sched_yield();
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t].thread, NULL);
    }
    mu_cuda_collect(handover.pool);
    struct mu_cuda_stats stats = stats_of(handover.pool);
    CHECK_INT(stats.spans, THREADS * ROUNDS);
    CHECK_INT(stats.errors, 0);
    CHECK_INT(ready, THREADS * (ROUNDS - (ROUNDS + 3) / 7));
    close_pool(handover.pool);
}

int main(void) {
    mu_cuda_driver_from(&driver, fake_lookup, NULL);
    CHECK(driver.available);
    test_no_driver();
    test_old_driver();
    test_null_pool();
    test_times_of_steps();
    test_a_script_that_waits();
    test_a_pause_in_a_capture();
    test_without_waiting();
    test_two_streams();
    test_no_context();
    test_capture();
    test_empty_pool();
    test_no_steps();
    test_every_failure();
    test_process_ends();
    test_device_reset();
    test_threads();
    fake_forget_events();
    return check_report();
}
