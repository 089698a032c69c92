/* The CUDA profiler on a simulated driver: contexts, failures, drivers that lack functions. */
#define FAKE(name) fake_##name
#include "tests/fakes/fake_cuda.c" /* NOLINT(bugprone-suspicious-include): a test of its own */

#include "cuda/cuda_profiler.h"
#include "tests/check.h"
#include "tests/fake_lookup.h"

static struct mu_cuda_driver driver;

static int call(bool start, bool wait, int ordinal, bool *reached, struct mu_error *err) {
    return mu_cuda_profiler(&driver, start, wait, ordinal, reached, err);
}

static void test_without_a_context(void) {
    bool reached = true;
    CHECK_INT(call(true, true, MU_CUDA_NO_DEVICE, &reached, NULL), MU_OK);
    CHECK(!reached);
    CHECK_INT(fake_fakeCudaCalls("cuProfilerStart"), 0);
}

static void test_with_the_threads_context(void) {
    bool reached = false;
    fake_fakeCudaMakeCurrent(1);
    CHECK_INT(call(true, false, MU_CUDA_NO_DEVICE, &reached, NULL), MU_OK);
    CHECK(reached);
    CHECK_INT(fake_fakeCudaCalls("cuProfilerStart"), 1);
    CHECK_INT(fake_fakeCudaCalls("cuCtxSynchronize"), 0);
    CHECK_INT(call(false, true, 0, &reached, NULL), MU_OK);
    CHECK_INT(fake_fakeCudaCalls("cuProfilerStop"), 1);
    CHECK_INT(fake_fakeCudaCalls("cuCtxSynchronize"), 1);
    CHECK_INT(fake_fakeCudaCalls("cuDevicePrimaryCtxRetain"), 0);
    fake_fakeCudaMakeCurrent(0);
}

static void test_with_a_devices_context(void) {
    bool reached = false;
    CUcontext context = NULL;
    CHECK_INT(call(true, true, 0, &reached, NULL), MU_OK);
    CHECK(reached);
    CHECK_INT(fake_fakeCudaCalls("cuDevicePrimaryCtxRetain"), 1);
    CHECK_INT(fake_fakeCudaCalls("cuDevicePrimaryCtxRelease"), 1);
    CHECK_INT(driver.ctx_get_current(&context), CUDA_SUCCESS); /* as before the call */
    CHECK(context == NULL);
}

static void test_failures(void) {
    struct mu_error err = {0};
    bool reached = false;
    CHECK_INT(call(true, true, 1, &reached, &err), MU_ERR_STATE); /* the fake has one device */
    CHECK(strstr(err.message, "cuDeviceGet failed") != NULL);
    fake_fakeCudaFail("cuProfilerStop:0:700");
    CHECK_INT(call(false, true, 0, &reached, &err), MU_ERR_STATE);
    CHECK_STR(err.message, "cuProfilerStop failed with CUDA_ERROR_ILLEGAL_ADDRESS (700)");
    CHECK_INT(fake_fakeCudaCalls("cuDevicePrimaryCtxRelease"), 2);
}

static void test_no_driver(void) {
    struct mu_cuda_driver absent;
    bool reached = true;
    mu_cuda_driver_open(&absent, "libmu_no_such_driver.so.1");
    CHECK_INT(mu_cuda_profiler(&absent, true, true, 0, &reached, NULL), MU_OK);
    CHECK(!reached);
}

int main(void) {
    mu_cuda_driver_from(&driver, fake_lookup, NULL);
    test_without_a_context();
    test_with_the_threads_context();
    test_with_a_devices_context();
    test_failures();
    test_no_driver();
    fake_forget_events();
    return check_report();
}
