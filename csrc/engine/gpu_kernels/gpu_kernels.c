#include "gpu_kernels/gpu_kernels.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The GPUs of the process: made by the first call, and never freed. */
static _Atomic(struct mu_gpu *) process_gpu;
static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER; /* for what follows */
static char *process_nvrtc_path;                                 /* owned, or NULL */
static char *process_cache_folder;                               /* owned, or NULL */

static void open_lock_held(void) {
    struct mu_gpu_options options = {.driver = mu_cuda_driver_get(),
                                     .nvrtc_path = process_nvrtc_path,
                                     .cache_folder = process_cache_folder};
    struct mu_gpu *gpu = NULL;
    if (mu_gpu_open(&gpu, &options, NULL) == MU_OK) {
        atomic_store_explicit(&process_gpu, gpu, memory_order_release);
    }
}

struct mu_gpu *mu_gpu_get(void) {
    struct mu_gpu *gpu = atomic_load_explicit(&process_gpu, memory_order_acquire);
    if (gpu == NULL) {
        pthread_mutex_lock(&process_lock);
        if (atomic_load(&process_gpu) == NULL) {
            open_lock_held();
        }
        pthread_mutex_unlock(&process_lock);
        gpu = atomic_load_explicit(&process_gpu, memory_order_acquire);
    }
    return gpu;
}

/* Puts a copy of `text`, where it is not NULL, into `*place`. */
MU_MUST_CHECK static int replace(char **place, const char *text, struct mu_error *err) {
    if (text == NULL) {
        return MU_OK;
    }
    char *copy = strdup(text);
    if (copy == NULL) {
        return mu_error_no_memory(err, "a path");
    }
    free(*place);
    *place = copy;
    return MU_OK;
}

int mu_gpu_configure(const char *nvrtc_path, const char *cache_folder, struct mu_error *err) {
    pthread_mutex_lock(&process_lock);
    int code = MU_OK;
    if (atomic_load(&process_gpu) != NULL) {
        code = mu_error_set(err, MU_ERR_STATE,
                            "GPU kernels are in use already; say where NVRTC and the cache are "
                            "before the first of them");
    } else {
        code = replace(&process_nvrtc_path, nvrtc_path, err);
        code = code != MU_OK ? code : replace(&process_cache_folder, cache_folder, err);
    }
    pthread_mutex_unlock(&process_lock);
    return code;
}

int mu_gpu_enqueue(enum mu_gpu_operation operation, const struct mu_tensor *tensor, void *stream,
                   void *device_out, struct mu_error *err) {
    struct mu_gpu *gpu = mu_gpu_get();
    return gpu == NULL ? mu_error_no_memory(err, "the table of GPUs")
                       : mu_gpu_enqueue_on(gpu, operation, tensor, stream, device_out, err);
}
