#include "cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static CUresult no_context(CUcontext *context) {
    *context = NULL;
    return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult no_device(CUdevice *device) {
    *device = 0;
    return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult no_push(CUcontext context) {
    (void)context;
    return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult no_create(CUevent *event, unsigned int flags) {
    (void)flags;
    *event = NULL;
    return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult no_event(CUevent event) {
    (void)event;
    return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult no_record(CUevent event, CUstream stream) {
    (void)event;
    (void)stream;
    return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult no_elapsed(float *milliseconds, CUevent start, CUevent end) {
    (void)start;
    (void)end;
    *milliseconds = 0.0f;
    return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult no_capture_status(CUstream stream, CUstreamCaptureStatus *status) {
    (void)stream;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult no_capture_mode(CUstreamCaptureMode *mode) {
    (void)mode;
    return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult no_profiler(void) {
    return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult no_context_id(CUcontext context, unsigned long long *id) {
    (void)context;
    *id = 0;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_stream_id(CUstream stream, unsigned long long *id) {
    (void)stream;
    *id = 0;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_error_name(CUresult error, const char **name) {
    (void)error;
    *name = NULL;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_ordinal(CUdevice *device, int ordinal) {
    (void)ordinal;
    *device = 0;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_attribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    (void)attribute;
    (void)device;
    *value = 0;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_retain(CUcontext *context, CUdevice device) {
    (void)device;
    *context = NULL;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_release(CUdevice device) {
    (void)device;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_module(CUmodule *module, const void *image) {
    (void)image;
    *module = NULL;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_function(CUfunction *function, CUmodule module, const char *name) {
    (void)module;
    (void)name;
    *function = NULL;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_launch(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                          unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                          unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                          void **arguments, void **extra) {
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y;
    (void)block_z, (void)shared_bytes, (void)stream, (void)arguments, (void)extra;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_pool(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    (void)properties;
    *pool = NULL;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_pool_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    (void)pool;
    (void)attribute;
    (void)value;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_memory(CUdeviceptr *memory, size_t bytes, CUmemoryPool pool, CUstream stream) {
    (void)bytes;
    (void)pool;
    (void)stream;
    *memory = 0;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_free(CUdeviceptr memory, CUstream stream) {
    (void)memory;
    (void)stream;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_memset(CUdeviceptr memory, unsigned int value, size_t words, CUstream stream) {
    (void)memory;
    (void)value;
    (void)words;
    (void)stream;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_copy(void *host, CUdeviceptr memory, size_t bytes, CUstream stream) {
    (void)host;
    (void)memory;
    (void)bytes;
    (void)stream;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_wait(CUstream stream) {
    (void)stream;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static const struct mu_cuda_driver stubs = {
    .ctx_get_current = no_context,
    .ctx_get_device = no_device,
    .ctx_push = no_push,
    .ctx_pop = no_context,
    .event_create = no_create,
    .event_destroy = no_event,
    .event_record = no_record,
    .event_query = no_event,
    .event_synchronize = no_event,
    .event_elapsed_ms = no_elapsed,
    .stream_is_capturing = no_capture_status,
    .thread_exchange_capture_mode = no_capture_mode,
    .profiler_start = no_profiler,
    .profiler_stop = no_profiler,
    .ctx_get_id = no_context_id,
    .stream_get_id = no_stream_id,
    .get_error_name = no_error_name,
    .device_get = no_ordinal,
    .device_get_attribute = no_attribute,
    .primary_ctx_retain = no_retain,
    .primary_ctx_release = no_release,
    .ctx_synchronize = no_profiler,
    .module_load_data = no_module,
    .module_get_function = no_function,
    .launch_kernel = no_launch,
    .mem_pool_create = no_pool,
    .mem_pool_set_attribute = no_pool_attribute,
    .mem_alloc_from_pool = no_memory,
    .mem_free_async = no_free,
    .memset_words_async = no_memset,
    .copy_to_host_async = no_copy,
    .stream_synchronize = no_wait,
};

struct driver_function {
    const char *symbol;
    size_t offset; /* of the entry in struct mu_cuda_driver */
    bool needed;
};

/* Each name is the one that every driver since CUDA 11 exports with the signature above. */
static const struct driver_function functions[] = {
    {"cuCtxGetCurrent", offsetof(struct mu_cuda_driver, ctx_get_current), true},
    {"cuCtxGetDevice", offsetof(struct mu_cuda_driver, ctx_get_device), true},
    {"cuCtxPushCurrent_v2", offsetof(struct mu_cuda_driver, ctx_push), true},
    {"cuCtxPopCurrent_v2", offsetof(struct mu_cuda_driver, ctx_pop), true},
    {"cuEventCreate", offsetof(struct mu_cuda_driver, event_create), true},
    {"cuEventDestroy_v2", offsetof(struct mu_cuda_driver, event_destroy), true},
    {"cuEventRecord", offsetof(struct mu_cuda_driver, event_record), true},
    {"cuEventQuery", offsetof(struct mu_cuda_driver, event_query), true},
    {"cuEventSynchronize", offsetof(struct mu_cuda_driver, event_synchronize), true},
    {"cuEventElapsedTime", offsetof(struct mu_cuda_driver, event_elapsed_ms), true},
    {"cuStreamIsCapturing", offsetof(struct mu_cuda_driver, stream_is_capturing), true},
    {"cuThreadExchangeStreamCaptureMode",
     offsetof(struct mu_cuda_driver, thread_exchange_capture_mode), true},
    {"cuProfilerStart", offsetof(struct mu_cuda_driver, profiler_start), true},
    {"cuProfilerStop", offsetof(struct mu_cuda_driver, profiler_stop), true},
    {"cuCtxGetId", offsetof(struct mu_cuda_driver, ctx_get_id), false},
    {"cuStreamGetId", offsetof(struct mu_cuda_driver, stream_get_id), false},
    {"cuGetErrorName", offsetof(struct mu_cuda_driver, get_error_name), false},
    {"cuDeviceGet", offsetof(struct mu_cuda_driver, device_get), false},
    {"cuDeviceGetAttribute", offsetof(struct mu_cuda_driver, device_get_attribute), false},
    {"cuDevicePrimaryCtxRetain", offsetof(struct mu_cuda_driver, primary_ctx_retain), false},
    {"cuDevicePrimaryCtxRelease_v2", offsetof(struct mu_cuda_driver, primary_ctx_release), false},
    {"cuCtxSynchronize", offsetof(struct mu_cuda_driver, ctx_synchronize), false},
    {"cuModuleLoadData", offsetof(struct mu_cuda_driver, module_load_data), false},
    {"cuModuleGetFunction", offsetof(struct mu_cuda_driver, module_get_function), false},
    {"cuLaunchKernel", offsetof(struct mu_cuda_driver, launch_kernel), false},
    {"cuMemPoolCreate", offsetof(struct mu_cuda_driver, mem_pool_create), false},
    {"cuMemPoolSetAttribute", offsetof(struct mu_cuda_driver, mem_pool_set_attribute), false},
    {"cuMemAllocFromPoolAsync", offsetof(struct mu_cuda_driver, mem_alloc_from_pool), false},
    {"cuMemFreeAsync", offsetof(struct mu_cuda_driver, mem_free_async), false},
    {"cuMemsetD32Async", offsetof(struct mu_cuda_driver, memset_words_async), false},
    {"cuMemcpyDtoHAsync_v2", offsetof(struct mu_cuda_driver, copy_to_host_async), false},
    {"cuStreamSynchronize", offsetof(struct mu_cuda_driver, stream_synchronize), false},
};

enum { FUNCTION_COUNT = sizeof(functions) / sizeof(functions[0]) };

static void make_unavailable(struct mu_cuda_driver *driver, const char *format, const char *what) {
    *driver = stubs;
    snprintf(driver->reason, sizeof(driver->reason), format, what);
}

void mu_cuda_driver_from(struct mu_cuda_driver *driver, mu_cuda_lookup lookup, void *library) {
    *driver = stubs;
    for (size_t i = 0; i < FUNCTION_COUNT; i++) {
        void *address = lookup(library, functions[i].symbol);
        if (address != NULL) {
            /* POSIX lets a data pointer of dlsym hold a function. */
            memcpy((char *)driver + functions[i].offset, &address, sizeof(address));
        } else if (functions[i].needed) {
            make_unavailable(driver, "the CUDA driver has no %s", functions[i].symbol);
            return;
        }
    }
    driver->available = true;
}

void mu_cuda_driver_open(struct mu_cuda_driver *driver, const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *why = dlerror();
        make_unavailable(driver, "%s", why == NULL ? path : why);
        return;
    }
    mu_cuda_driver_from(driver, dlsym, library);
}

static struct mu_cuda_driver process_driver;
static pthread_once_t process_driver_once = PTHREAD_ONCE_INIT;

static void open_process_driver(void) {
    mu_cuda_driver_open(&process_driver, "libcuda.so.1");
}

const struct mu_cuda_driver *mu_cuda_driver_get(void) {
    pthread_once(&process_driver_once, open_process_driver);
    return &process_driver;
}

const char *mu_cuda_error_name(const struct mu_cuda_driver *driver, int code) {
    const char *name = NULL;
    if (driver->get_error_name((CUresult)code, &name) != CUDA_SUCCESS || name == NULL) {
        return "CUDA error";
    }
    return name;
}
