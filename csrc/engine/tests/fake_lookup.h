/* The functions of tests/fakes/fake_cuda.c by the names that the driver exports them under; to be
 * included after it, with FAKE(name) defined as fake_##name. */
#ifndef MU_FAKE_LOOKUP_H
#define MU_FAKE_LOOKUP_H

#include <stdlib.h>
#include <string.h>

#define FAKE_ENTRY(name) {#name, (void *)fake_##name}

static const struct {
    const char *name;
    void *function;
} fake_functions[] = {
    FAKE_ENTRY(cuCtxGetCurrent),
    FAKE_ENTRY(cuCtxGetDevice),
    FAKE_ENTRY(cuCtxGetId),
    FAKE_ENTRY(cuCtxPushCurrent_v2),
    FAKE_ENTRY(cuCtxPopCurrent_v2),
    FAKE_ENTRY(cuEventCreate),
    FAKE_ENTRY(cuEventDestroy_v2),
    FAKE_ENTRY(cuEventRecord),
    FAKE_ENTRY(cuEventQuery),
    FAKE_ENTRY(cuEventSynchronize),
    FAKE_ENTRY(cuEventElapsedTime),
    FAKE_ENTRY(cuStreamIsCapturing),
    FAKE_ENTRY(cuStreamGetId),
    FAKE_ENTRY(cuThreadExchangeStreamCaptureMode),
    FAKE_ENTRY(cuProfilerStart),
    FAKE_ENTRY(cuProfilerStop),
    FAKE_ENTRY(cuGetErrorName),
    FAKE_ENTRY(cuDeviceGet),
    FAKE_ENTRY(cuDeviceGetAttribute),
    FAKE_ENTRY(cuDevicePrimaryCtxRetain),
    FAKE_ENTRY(cuDevicePrimaryCtxRelease_v2),
    FAKE_ENTRY(cuCtxSynchronize),
    FAKE_ENTRY(cuModuleLoadData),
    FAKE_ENTRY(cuModuleGetFunction),
    FAKE_ENTRY(cuMemPoolCreate),
    FAKE_ENTRY(cuMemPoolSetAttribute),
    FAKE_ENTRY(cuMemAllocFromPoolAsync),
    FAKE_ENTRY(cuMemFreeAsync),
    FAKE_ENTRY(cuMemsetD32Async),
    FAKE_ENTRY(cuMemcpyDtoHAsync_v2),
    FAKE_ENTRY(cuStreamSynchronize),
#ifdef FAKE_CUDA_KERNELS
    FAKE_ENTRY(cuLaunchKernel),
#endif
};

enum { FAKE_FUNCTION_COUNT = sizeof(fake_functions) / sizeof(fake_functions[0]) };

/* `missing` is the name of a function that this driver lacks, NULL for none. */
static void *fake_lookup(void *missing, const char *name) {
    for (size_t i = 0; i < FAKE_FUNCTION_COUNT; i++) {
        if (strcmp(fake_functions[i].name, name) == 0 &&
            (missing == NULL || strcmp(missing, name) != 0)) {
            return fake_functions[i].function;
        }
    }
    return NULL;
}

/* For leak checkers, when no event is used any more. */
static __attribute__((unused)) void fake_forget_events(void) {
    while (fake.events != NULL) {
        struct fake_event *next = fake.events->next;
        free(fake.events);
        fake.events = next;
    }
}

#endif
