#include "gpu_kernels.h"

#include "cuda_driver.h"

static int check_driver(struct mu_error *err) {
    const struct mu_cuda_driver *driver = mu_cuda_driver_get();
    if (!driver->available) {
        return mu_error_set(err, MU_ERR_STATE, "a CUDA tensor, but no CUDA driver (%s)",
                            driver->reason);
    }
    return mu_error_set(err, MU_ERR_STATE, "the kernels for CUDA tensors are not built in");
}

int mu_gpu_hash_enqueue(const struct mu_tensor *tensor, void *stream, uint64_t *device_out,
                        struct mu_error *err) {
    (void)tensor, (void)stream, (void)device_out;
    return check_driver(err);
}

int mu_gpu_nan_inf_enqueue(const struct mu_tensor *tensor, void *stream, int64_t *device_out,
                           struct mu_error *err) {
    (void)tensor, (void)stream, (void)device_out;
    return check_driver(err);
}

int mu_gpu_stats_enqueue(const struct mu_tensor *tensor, void *stream, double *device_out,
                         struct mu_error *err) {
    (void)tensor, (void)stream, (void)device_out;
    return check_driver(err);
}
