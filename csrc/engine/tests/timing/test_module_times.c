/* Times of modules on a clock that the test turns by hand, and on a simulated GPU. */
#define FAKE(name) fake_##name
#include "tests/fakes/fake_cuda.c" /* NOLINT(bugprone-suspicious-include): a test of its own */

#include "tests/check.h"
#include "tests/fake_lookup.h"
#include "timing/module_times.h"

static struct mu_cuda_driver driver;
static int64_t clock_ns;

static int64_t manual_ns(void) {
    return clock_ns;
}

static int64_t fake_ns(void) {
    pthread_mutex_lock(&fake.lock);
    int64_t now = host_now();
    pthread_mutex_unlock(&fake.lock);
    return now;
}

static int current_stream(void *owner, int32_t device, void **stream) {
    (void)owner;
    (void)device;
    *stream = NULL;
    return 0;
}

static struct mu_module_times *fresh(uint32_t slots) {
    struct mu_module_times *times = NULL;
    CHECK_INT(mu_module_times_create(&times, slots, NULL, manual_ns, NULL), MU_OK);
    return times;
}

static void begin_call(struct mu_module_times *times, uint64_t thread, uint32_t slot) {
    mu_module_enter(times, thread, slot, slot, 0);
}

static bool end_call(struct mu_module_times *times, uint64_t thread, uint32_t slot) {
    uint64_t tag;
    return mu_module_exit(times, thread, slot, true, &tag);
}

static struct mu_module_total cpu_of(struct mu_module_times *times, uint32_t slot) {
    return mu_module_figures_of(times, slot).cpu;
}

static void test_arguments(void) {
    struct mu_module_times *times;
    struct mu_error err;
    CHECK_INT(mu_module_times_create(&times, 0, NULL, NULL, &err), MU_ERR_ARGUMENT);
    CHECK_INT(mu_module_times_create(&times, MU_MODULE_SLOTS_MAX + 1, NULL, NULL, &err),
              MU_ERR_ARGUMENT);
    CHECK(times == NULL);
    mu_module_times_free(NULL);
}

static void test_calls(void) {
    struct mu_module_times *times = fresh(2);
    for (int64_t ns = 10; ns <= 40; ns += 10) {
        begin_call(times, 1, 1);
        clock_ns += ns;
        CHECK(end_call(times, 1, 1));
        clock_ns += 1000;
    }
    struct mu_module_total total = cpu_of(times, 1);
    CHECK_INT(total.calls, 4);
    CHECK_INT(total.parts, 4);
    CHECK_INT(total.total_ns, 100);
    CHECK_INT(total.inner_ns, 0);
    CHECK_INT(total.min_ns, 10);
    CHECK_INT(total.max_ns, 40);
    CHECK_INT(cpu_of(times, 0).calls, 0);
    mu_module_times_free(times);
}

/* A call in a call, of the same slot too: what is the outer one's own is total - inner. */
static void test_nested_calls(void) {
    struct mu_module_times *times = fresh(2);
    begin_call(times, 1, 0);
    clock_ns += 100;
    begin_call(times, 1, 1);
    clock_ns += 10;
    begin_call(times, 1, 1);
    clock_ns += 1;
    CHECK(end_call(times, 1, 1));
    CHECK(end_call(times, 1, 1));
    CHECK(end_call(times, 1, 0));
    CHECK_INT(cpu_of(times, 0).total_ns - cpu_of(times, 0).inner_ns, 100);
    CHECK_INT(cpu_of(times, 1).calls, 2);
    CHECK_INT(cpu_of(times, 1).total_ns, 12);
    CHECK_INT(cpu_of(times, 1).total_ns - cpu_of(times, 1).inner_ns, 11);
    mu_module_times_free(times);
}

static void test_accounts_and_parts(void) {
    struct mu_module_times *times = fresh(3);
    uint64_t tag = 0;
    mu_module_enter(times, 1, 0, 2, 77);
    clock_ns += 5;
    CHECK(mu_module_exit(times, 1, 0, true, &tag));
    CHECK_INT(tag, 77);
    begin_call(times, 1, 0);
    clock_ns += 7;
    CHECK(mu_module_exit(times, 1, 0, false, &tag));
    CHECK_INT(cpu_of(times, 2).calls, 1);
    CHECK_INT(cpu_of(times, 2).total_ns, 5);
    CHECK_INT(cpu_of(times, 0).calls, 0);
    CHECK_INT(cpu_of(times, 0).parts, 1);
    CHECK_INT(cpu_of(times, 0).total_ns, 7);
    mu_module_times_free(times);
}

static void test_ends_that_do_not_fit(void) {
    struct mu_module_times *times = fresh(3);
    CHECK(!end_call(times, 1, 0));
    begin_call(times, 1, 0);
    begin_call(times, 1, 1); /* its end never comes */
    clock_ns += 10;
    CHECK(!end_call(times, 1, 2));
    CHECK(!end_call(times, 2, 0)); /* of another thread */
    CHECK(end_call(times, 1, 0));
    CHECK(!end_call(times, 1, 1));
    CHECK_INT(cpu_of(times, 0).total_ns, 10);
    CHECK_INT(cpu_of(times, 1).calls, 0);
    struct mu_module_counts counts = mu_module_counts_of(times);
    CHECK_INT(counts.unmatched, 4);
    CHECK_INT(counts.abandoned, 1);
    begin_call(times, 1, 0);
    mu_module_drop_open(times);
    CHECK(!end_call(times, 1, 0));
    mu_module_times_free(times);
}

static void test_depth(void) {
    struct mu_module_times *times = fresh(1);
    for (int i = 0; i < MU_MODULE_DEPTH_MAX + 3; i++) {
        begin_call(times, 1, 0);
    }
    CHECK_INT(mu_module_counts_of(times).dropped, 3);
    for (int i = 0; i < MU_MODULE_DEPTH_MAX; i++) {
        CHECK(end_call(times, 1, 0));
    }
    CHECK(!end_call(times, 1, 0));
    CHECK_INT(cpu_of(times, 0).calls, MU_MODULE_DEPTH_MAX);
    mu_module_times_free(times);
}

/* Calls of threads in turns: each has its own nesting, and stacks serve one after another. */
static void test_threads_in_turns(void) {
    enum { THREADS = 50 };
    struct mu_module_times *times = fresh(2);
    for (uint64_t thread = 1; thread <= THREADS; thread++) {
        begin_call(times, thread, 0);
    }
    clock_ns += 100;
    for (uint64_t thread = THREADS; thread > 0; thread--) {
        begin_call(times, thread, 1);
        clock_ns += 1;
        CHECK(end_call(times, thread, 1));
    }
    for (uint64_t thread = 1; thread <= THREADS; thread++) {
        CHECK(end_call(times, thread, 0));
    }
    CHECK_INT(cpu_of(times, 0).calls, THREADS);
    CHECK_INT(cpu_of(times, 0).inner_ns, THREADS);
    CHECK_INT(cpu_of(times, 0).total_ns, THREADS * (100 + THREADS));
    mu_module_times_free(times);
}

/* --- the GPU --- */

static struct mu_module_times *fresh_gpu(uint32_t slots) {
    pthread_mutex_lock(&fake.lock);
    fake.manual_clock = 1;
    fake.clock_ns = 5000000000;
    fake.clock_step_ns = 100;
    fake.misuse = 0;
    memset(fake.streams, 0, sizeof(fake.streams));
    memset(fake.functions, 0, sizeof(fake.functions));
    pthread_mutex_unlock(&fake.lock);
    fake_fakeCudaFail("");
    fake_fakeCudaDevice(5000, 123456789000, 20.0);
    fake_fakeCudaMakeCurrent(1);
    struct mu_cuda_pool_options gpu = {
        .driver = &driver, .current_stream = current_stream, .now_ns = fake_ns};
    struct mu_module_times *times = NULL;
    CHECK_INT(mu_module_times_create(&times, slots, &gpu, fake_ns, NULL), MU_OK);
    return times;
}

static void pass_time(int64_t ns) {
    pthread_mutex_lock(&fake.lock);
    fake.clock_ns += ns;
    pthread_mutex_unlock(&fake.lock);
}

static void close_gpu(struct mu_module_times *times) {
    mu_module_times_free(times);
    CHECK_INT(fake_fakeCudaLiveEvents(), 0);
    CHECK_INT(fake_fakeCudaMisuse(), 0);
}

static void check_near(int64_t got, int64_t want, int64_t within) {
    CHECK(llabs(got - want) <= within);
}

static void test_gpu_times(void) {
    struct mu_module_times *times = fresh_gpu(2);
    for (int call = 0; call < 100; call++) {
        begin_call(times, 1, 0);
        fake_fakeCudaWork(NULL, 1000000);
        begin_call(times, 1, 1);
        fake_fakeCudaWork(NULL, 3000000);
        CHECK(end_call(times, 1, 1));
        CHECK(end_call(times, 1, 0));
    }
    CHECK_INT(mu_module_counts_of(times).gpu_waits, 200);
    mu_cuda_wait(mu_module_pool(times));
    pass_time(1000000000);
    mu_module_collect(times);
    struct mu_module_total outer = mu_module_figures_of(times, 0).gpu;
    struct mu_module_total inner = mu_module_figures_of(times, 1).gpu;
    CHECK_INT(mu_module_counts_of(times).gpu_waits, 0);
    CHECK_INT(outer.calls, 100);
    CHECK_INT(inner.calls, 100);
    check_near(inner.total_ns, 300000000, 1000000);
    check_near(outer.total_ns - outer.inner_ns, 100000000, 1000000);
    CHECK(cpu_of(times, 1).total_ns < 100000000);
    close_gpu(times);
}

/* More calls than there are spans: those that are done are collected on the way. */
static void test_gpu_many_calls(void) {
    struct mu_module_times *times = fresh_gpu(1);
    for (int call = 0; call < 40000; call++) {
        begin_call(times, 1, 0);
        fake_fakeCudaWork(NULL, 1000);
        end_call(times, 1, 0);
        pass_time(10000);
    }
    pass_time(1000000000);
    mu_module_collect(times);
    CHECK_INT(mu_module_counts_of(times).gpu_missed, 0);
    CHECK_INT(mu_module_figures_of(times, 0).gpu.calls, 40000);
    close_gpu(times);
}

/* The GPU lies far behind: calls beyond the pool have their CPU time only. */
static void test_gpu_behind(void) {
    struct mu_module_times *times = fresh_gpu(1);
    fake_fakeCudaWork(NULL, INT64_C(60000000000));
    for (int call = 0; call < 20000; call++) {
        begin_call(times, 1, 0);
        end_call(times, 1, 0);
    }
    CHECK_INT(cpu_of(times, 0).calls, 20000);
    CHECK(mu_module_counts_of(times).gpu_missed > 0);
    uint64_t waits = mu_module_counts_of(times).gpu_waits;
    CHECK_INT(waits + mu_module_counts_of(times).gpu_missed, 20000);
    close_gpu(times);
}

static void test_gpu_open_calls(void) {
    struct mu_module_times *times = fresh_gpu(2);
    begin_call(times, 1, 0);
    begin_call(times, 1, 1);
    mu_module_drop_open(times);
    CHECK(!end_call(times, 1, 1));
    begin_call(times, 1, 0);
    close_gpu(times);
}

static void test_gpu_failures(void) {
    static const char *const functions[] = {
        "cuCtxGetCurrent",    "cuCtxGetDevice",     "cuCtxGetId",    "cuEventCreate",
        "cuEventElapsedTime", "cuEventQuery",       "cuEventRecord", "cuEventSynchronize",
        "cuCtxPushCurrent",   "cuStreamIsCapturing"};
    for (size_t f = 0; f < sizeof(functions) / sizeof(functions[0]); f++) {
        for (int nth = 0; nth < 6; nth++) {
            struct mu_module_times *times = fresh_gpu(1);
            char failure[64];
            snprintf(failure, sizeof(failure), "%s:%d:700", functions[f], nth);
            fake_fakeCudaFail(failure);
            for (int call = 0; call < 4; call++) {
                begin_call(times, 1, 0);
                CHECK(end_call(times, 1, 0));
            }
            pass_time(100000000);
            mu_cuda_wait(mu_module_pool(times));
            mu_module_collect(times);
            struct mu_module_counts counts = mu_module_counts_of(times);
            struct mu_module_figures figures = mu_module_figures_of(times, 0);
            CHECK_INT(figures.cpu.calls, 4);
            CHECK_INT(figures.gpu.calls + counts.gpu_missed + counts.gpu_lost + counts.gpu_waits,
                      4);
            fake_fakeCudaFail("");
            mu_module_times_free(times);
            CHECK_INT(fake_fakeCudaMisuse(), 0);
        }
    }
}

static void test_fork(void) {
    struct mu_module_times *times = fresh_gpu(1);
    begin_call(times, 1, 0);
    end_call(times, 1, 0);
    begin_call(times, 1, 0);
    struct mu_cuda_pool *pool = mu_module_pool(times);
    int calls = fake_fakeCudaCalls("cuEventDestroy");
    mu_module_after_fork(times);
    CHECK(!end_call(times, 1, 0));
    begin_call(times, 1, 0);
    CHECK(end_call(times, 1, 0));
    mu_module_times_free(times);
    CHECK_INT(fake_fakeCudaCalls("cuEventDestroy"), calls);
    mu_cuda_pool_free(pool);
}

int main(void) {
    mu_cuda_driver_from(&driver, fake_lookup, NULL);
    test_arguments();
    test_calls();
    test_nested_calls();
    test_accounts_and_parts();
    test_ends_that_do_not_fit();
    test_depth();
    test_threads_in_turns();
    test_gpu_times();
    test_gpu_many_calls();
    test_gpu_behind();
    test_gpu_open_calls();
    test_gpu_failures();
    test_fork();
    fake_forget_events();
    return check_report();
}
