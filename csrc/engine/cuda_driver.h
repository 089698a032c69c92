/* The CUDA driver, libcuda.so.1, found at run time.
 *
 * One table of functions. Where the driver or a function that we cannot do without is missing,
 * every entry is a stub that fails with CUDA_ERROR_NOT_INITIALIZED, `available` is false and
 * `reason` says why; callers need no checks of their own. Nothing here initialises CUDA or makes a
 * context: that is left to torch. The table is filled once and only read after that, from any
 * thread.
 */
#ifndef MU_CUDA_DRIVER_H
#define MU_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda_abi.h"

struct mu_cuda_driver {
    bool available;
    char reason[160]; /* why not; empty when available */

    CUresult (*ctx_get_current)(CUcontext *context);
    CUresult (*ctx_get_device)(CUdevice *device);
    CUresult (*ctx_push)(CUcontext context);
    CUresult (*ctx_pop)(CUcontext *context);
    CUresult (*event_create)(CUevent *event, unsigned int flags);
    CUresult (*event_destroy)(CUevent event);
    CUresult (*event_record)(CUevent event, CUstream stream);
    CUresult (*event_query)(CUevent event);
    CUresult (*event_synchronize)(CUevent event);
    CUresult (*event_elapsed_ms)(float *milliseconds, CUevent start, CUevent end);
    CUresult (*stream_is_capturing)(CUstream stream, CUstreamCaptureStatus *status);
    CUresult (*thread_exchange_capture_mode)(CUstreamCaptureMode *mode);
    CUresult (*profiler_start)(void);
    CUresult (*profiler_stop)(void);

    /* Newer ones: stubs that fail with CUDA_ERROR_NOT_SUPPORTED where the driver lacks them. */
    CUresult (*ctx_get_id)(CUcontext context, unsigned long long *id);  /* CUDA 12.0 */
    CUresult (*stream_get_id)(CUstream stream, unsigned long long *id); /* CUDA 12.0 */
    CUresult (*get_error_name)(CUresult error, const char **name);

    /* What kernels need; stubs likewise. The memory pools are of CUDA 11.2. */
    CUresult (*device_get)(CUdevice *device, int ordinal);
    CUresult (*device_get_attribute)(int *value, CUdevice_attribute attribute, CUdevice device);
    CUresult (*primary_ctx_retain)(CUcontext *context, CUdevice device);
    CUresult (*primary_ctx_release)(CUdevice device); /* CUDA 11.0 */
    CUresult (*ctx_synchronize)(void);
    CUresult (*module_load_data)(CUmodule *module, const void *image);
    CUresult (*module_get_function)(CUfunction *function, CUmodule module, const char *name);
    CUresult (*launch_kernel)(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                              unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                              unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                              void **arguments, void **extra);
    CUresult (*mem_pool_create)(CUmemoryPool *pool, const CUmemPoolProps *properties);
    CUresult (*mem_pool_set_attribute)(CUmemoryPool pool, CUmemPool_attribute attribute,
                                       void *value);
    CUresult (*mem_alloc_from_pool)(CUdeviceptr *memory, size_t bytes, CUmemoryPool pool,
                                    CUstream stream);
    CUresult (*mem_free_async)(CUdeviceptr memory, CUstream stream);
    CUresult (*memset_words_async)(CUdeviceptr memory, unsigned int value, size_t words,
                                   CUstream stream);
    CUresult (*copy_to_host_async)(void *host, CUdeviceptr memory, size_t bytes, CUstream stream);
    CUresult (*stream_synchronize)(CUstream stream);
};

/* Finds the address of a function of the driver, or NULL: dlsym, or what a test puts there. */
typedef void *(*mu_cuda_lookup)(void *library, const char *name);

/* Opens the library at `path` ("libcuda.so.1") and fills the table, with stubs where it is missing.
 * The library stays open for the life of the process. */
void mu_cuda_driver_open(struct mu_cuda_driver *driver, const char *path);

/* The same from functions that are there already. */
void mu_cuda_driver_from(struct mu_cuda_driver *driver, mu_cuda_lookup lookup, void *library);

/* The table of the process: libcuda.so.1, opened by the first call. */
const struct mu_cuda_driver *mu_cuda_driver_get(void);

/* "CUDA_ERROR_INVALID_CONTEXT", or "CUDA error" where the driver does not know. */
const char *mu_cuda_error_name(const struct mu_cuda_driver *driver, int code);

#endif
