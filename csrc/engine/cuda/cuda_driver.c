#include "cuda/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The stubs have the types of the functions that they replace: a call through another type is
 * undefined. */
enum { NEEDED = CUDA_ERROR_NOT_INITIALIZED, OPTIONAL = CUDA_ERROR_NOT_SUPPORTED };

#define STUB(need, entry, symbol, parameters, empty)                                               \
    static CUresult no_##entry parameters {                                                        \
        empty;                                                                                     \
        return (CUresult)need;                                                                     \
    }
#define STUB_ENTRY(need, entry, symbol, parameters, empty) .entry = no_##entry,
#define FUNCTION(need, entry, symbol, parameters, empty)                                           \
    {#symbol, offsetof(struct mu_cuda_driver, entry), need == NEEDED},

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
MU_CUDA_FUNCTIONS(STUB) /* NOLINT(misc-unused-parameters): most stubs read none */
#pragma GCC diagnostic pop

static const struct mu_cuda_driver stubs = {MU_CUDA_FUNCTIONS(STUB_ENTRY)};

static const struct driver_function {
    const char *symbol;
    size_t offset; /* of the entry in struct mu_cuda_driver */
    bool needed;
} functions[] = {MU_CUDA_FUNCTIONS(FUNCTION)};

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
