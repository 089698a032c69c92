/* The CUDA driver, libcuda.so.1, found at run time.
 *
 * One table of functions. When the driver or a needed function is missing, every entry is a stub
 * that fails with CUDA_ERROR_NOT_INITIALIZED, `available` is false and `reason` says why. Callers
 * need no further checks. Nothing here initialises CUDA or makes a context: that is left to torch.
 * The table is filled once and only read after that, from any thread.
 */
#ifndef MU_CUDA_DRIVER_H
#define MU_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/cuda_abi.h"

/* The functions, each as X(need, entry, symbol, parameters, empty): drivers since CUDA 11 export
 * `symbol` with these parameters, and `empty` is what its stub does beside failing. The stub of a
 * NEEDED one fails with CUDA_ERROR_NOT_INITIALIZED; that of an OPTIONAL one, which a driver may
 * lack, with CUDA_ERROR_NOT_SUPPORTED. */
#define MU_CUDA_FUNCTIONS(X)                                                                       \
    X(NEEDED, ctx_get_current, cuCtxGetCurrent, (CUcontext * context), *context = NULL)            \
    X(NEEDED, ctx_get_device, cuCtxGetDevice, (CUdevice * device), *device = 0)                    \
    X(NEEDED, ctx_push, cuCtxPushCurrent_v2, (CUcontext context), )                                \
    X(NEEDED, ctx_pop, cuCtxPopCurrent_v2, (CUcontext * context), *context = NULL)                 \
    X(NEEDED, event_create, cuEventCreate, (CUevent * event, unsigned flags), *event = NULL)       \
    X(NEEDED, event_destroy, cuEventDestroy_v2, (CUevent event), )                                 \
    X(NEEDED, event_record, cuEventRecord, (CUevent event, CUstream stream), )                     \
    X(NEEDED, event_query, cuEventQuery, (CUevent event), )                                        \
    X(NEEDED, event_synchronize, cuEventSynchronize, (CUevent event), )                            \
    X(NEEDED, event_elapsed_ms, cuEventElapsedTime,                                                \
      (float *milliseconds, CUevent start, CUevent end), *milliseconds = 0)                        \
    X(NEEDED, stream_is_capturing, cuStreamIsCapturing,                                            \
      (CUstream stream, CUstreamCaptureStatus * status), *status = CU_STREAM_CAPTURE_STATUS_NONE)  \
    X(NEEDED, thread_exchange_capture_mode, cuThreadExchangeStreamCaptureMode,                     \
      (CUstreamCaptureMode * mode), )                                                              \
    X(NEEDED, profiler_start, cuProfilerStart, (void), )                                           \
    X(NEEDED, profiler_stop, cuProfilerStop, (void), )                                             \
    /* These two are of CUDA 12.0. */                                                              \
    X(OPTIONAL, ctx_get_id, cuCtxGetId, (CUcontext context, unsigned long long *id), *id = 0)      \
    X(OPTIONAL, stream_get_id, cuStreamGetId, (CUstream stream, unsigned long long *id), *id = 0)  \
    X(OPTIONAL, get_error_name, cuGetErrorName, (CUresult error, const char **name), *name = NULL) \
    /* What kernels need. */                                                                       \
    X(OPTIONAL, device_get, cuDeviceGet, (CUdevice * device, int ordinal), *device = 0)            \
    X(OPTIONAL, device_get_attribute, cuDeviceGetAttribute,                                        \
      (int *value, CUdevice_attribute attribute, CUdevice device), *value = 0)                     \
    X(OPTIONAL, primary_ctx_retain, cuDevicePrimaryCtxRetain,                                      \
      (CUcontext * context, CUdevice device), *context = NULL)                                     \
    X(OPTIONAL, primary_ctx_release, cuDevicePrimaryCtxRelease_v2, (CUdevice device), )            \
    X(OPTIONAL, ctx_synchronize, cuCtxSynchronize, (void), )                                       \
    X(OPTIONAL, module_load_data, cuModuleLoadData, (CUmodule * module, const void *image),        \
      *module = NULL)                                                                              \
    X(OPTIONAL, module_get_function, cuModuleGetFunction,                                          \
      (CUfunction * function, CUmodule module, const char *name), *function = NULL)                \
    X(OPTIONAL, launch_kernel, cuLaunchKernel,                                                     \
      (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,   \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,                 \
       void **arguments, void **extra), )                                                          \
    /* The memory pools are of CUDA 11.2. */                                                       \
    X(OPTIONAL, mem_pool_create, cuMemPoolCreate,                                                  \
      (CUmemoryPool * pool, const CUmemPoolProps *properties), *pool = NULL)                       \
    X(OPTIONAL, mem_pool_set_attribute, cuMemPoolSetAttribute,                                     \
      (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), )                           \
    X(OPTIONAL, mem_alloc_from_pool, cuMemAllocFromPoolAsync,                                      \
      (CUdeviceptr * memory, size_t bytes, CUmemoryPool pool, CUstream stream), *memory = 0)       \
    X(OPTIONAL, mem_free_async, cuMemFreeAsync, (CUdeviceptr memory, CUstream stream), )           \
    X(OPTIONAL, memset_words_async, cuMemsetD32Async,                                              \
      (CUdeviceptr memory, unsigned value, size_t words, CUstream stream), )                       \
    X(OPTIONAL, copy_to_host_async, cuMemcpyDtoHAsync_v2,                                          \
      (void *host, CUdeviceptr memory, size_t bytes, CUstream stream), )                           \
    X(OPTIONAL, stream_synchronize, cuStreamSynchronize, (CUstream stream), )

#define MU_CUDA_ENTRY(need, entry, symbol, parameters, empty) CUresult(*entry) parameters;

struct mu_cuda_driver {
    bool available;
    char reason[160]; /* why not; empty when available */
    MU_CUDA_FUNCTIONS(MU_CUDA_ENTRY)
};

/* Finds the address of a function of the driver, or NULL: dlsym, or what a test puts there. */
typedef void *(*mu_cuda_lookup)(void *library, const char *name);

/* Opens the library at `path` ("libcuda.so.1") and fills the table, with stubs where it is missing.
 * The library stays open for the life of the process. */
void mu_cuda_driver_open(struct mu_cuda_driver *driver, const char *path);

/* Fills the table from functions that are loaded already. */
void mu_cuda_driver_from(struct mu_cuda_driver *driver, mu_cuda_lookup lookup, void *library);

/* The table of the process: libcuda.so.1, opened by the first call. */
const struct mu_cuda_driver *mu_cuda_driver_get(void);

/* "CUDA_ERROR_INVALID_CONTEXT", or "CUDA error" where the driver does not know. */
const char *mu_cuda_error_name(const struct mu_cuda_driver *driver, int code);

#endif
