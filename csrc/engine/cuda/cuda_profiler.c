#include "cuda/cuda_profiler.h"

MU_MUST_CHECK static int fail(const struct mu_cuda_driver *driver, const char *call,
                              CUresult result, struct mu_error *err) {
    return mu_error_set(err, MU_ERR_STATE, "%s failed with %s (%d)", call,
                        mu_cuda_error_name(driver, (int)result), (int)result);
}

MU_MUST_CHECK static int switch_profiler(const struct mu_cuda_driver *driver, bool start, bool wait,
                                         struct mu_error *err) {
    CUresult result = wait ? driver->ctx_synchronize() : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
        return fail(driver, "cuCtxSynchronize", result, err);
    }
    result = start ? driver->profiler_start() : driver->profiler_stop();
    if (result != CUDA_SUCCESS) {
        return fail(driver, start ? "cuProfilerStart" : "cuProfilerStop", result, err);
    }
    return MU_OK;
}

/* The same in the primary context of a device, which is current on the thread meanwhile. */
MU_MUST_CHECK static int switch_in_primary(const struct mu_cuda_driver *driver, bool start,
                                           bool wait, int ordinal, struct mu_error *err) {
    CUdevice device;
    CUcontext context;
    CUresult result = driver->device_get(&device, ordinal);
    if (result != CUDA_SUCCESS) {
        return fail(driver, "cuDeviceGet", result, err);
    }
    result = driver->primary_ctx_retain(&context, device);
    if (result != CUDA_SUCCESS) {
        return fail(driver, "cuDevicePrimaryCtxRetain", result, err);
    }
    int code = MU_OK;
    result = driver->ctx_push(context);
    if (result == CUDA_SUCCESS) {
        code = switch_profiler(driver, start, wait, err);
        driver->ctx_pop(&context);
    } else {
        code = fail(driver, "cuCtxPushCurrent", result, err);
    }
    driver->primary_ctx_release(device);
    return code;
}

int mu_cuda_profiler(const struct mu_cuda_driver *driver, bool start, bool wait, int ordinal,
                     bool *reached, struct mu_error *err) {
    CUcontext context = NULL;
    *reached = false;
    if (!driver->available) {
        return MU_OK;
    }
    bool has_context = driver->ctx_get_current(&context) == CUDA_SUCCESS && context != NULL;
    if (!has_context && ordinal < 0) {
        return MU_OK;
    }
    *reached = true;
    return has_context ? switch_profiler(driver, start, wait, err)
                       : switch_in_primary(driver, start, wait, ordinal, err);
}
