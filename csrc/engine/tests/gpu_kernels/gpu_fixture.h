/* A GPU for tests: the simulated driver, which runs the kernels on the processor, and views of
 * memory as tensors on it. To be included first. */
#ifndef MU_GPU_FIXTURE_H
#define MU_GPU_FIXTURE_H

#define FAKE_CUDA_KERNELS
#define FAKE(name) fake_##name
#include "tests/fakes/fake_cuda.c" /* NOLINT(bugprone-suspicious-include): a test of its own */

#include "gpu_kernels/gpu_operations.h"
#include "tests/check.h"
#include "tests/fake_lookup.h"

static struct mu_cuda_driver fixture_driver;
static struct mu_gpu *fixture_gpu;
static int fixture_compiled;

/* The driver takes any image, since it has the kernels already. */
static int fixture_compile(const struct mu_nvrtc_job *job, struct mu_nvrtc_image *image,
                           struct mu_error *err) {
    (void)err;
    CHECK_INT(job->arch, 90);
    fixture_compiled++;
    image->bytes = strdup(job->source);
    image->size = strlen(job->source);
    return MU_OK;
}

static void fixture_open(const char *cache_folder) {
    struct mu_gpu_options options = {
        .driver = &fixture_driver, .cache_folder = cache_folder, .compiler = fixture_compile};
    mu_cuda_driver_from(&fixture_driver, fake_lookup, NULL);
    CHECK(fixture_driver.available);
    fixture_compiled = 0;
    CHECK_INT(mu_gpu_open(&fixture_gpu, &options, NULL), MU_OK);
}

static void fixture_close(void) {
    mu_gpu_close(fixture_gpu);
    fixture_gpu = NULL;
    CHECK_INT(fake_fakeCudaLiveMemory(), 0);
    CHECK_INT(fake_fakeCudaMisuse(), 0);
    gpu_free_stacks();
}

/* The same memory, on the GPU. */
static struct mu_tensor on_gpu(const struct mu_tensor *tensor) {
    struct mu_tensor moved = *tensor;
    moved.device = MU_DEVICE_CUDA;
    return moved;
}

/* A tensor on the processor; shape and strides are borrowed. */
static struct mu_tensor tensor_of(int dtype, const void *data, int ndim, const int64_t *shape,
                                  const int64_t *strides) {
    struct mu_tensor tensor = {.data = data,
                               .shape = shape,
                               .strides = strides,
                               .ndim = ndim,
                               .dtype = (uint8_t)dtype,
                               .device = MU_DEVICE_CPU};
    CHECK_INT(mu_tensor_check(&tensor, NULL), MU_OK);
    return tensor;
}

/* xorshift64*; Vigna, An experimental exploration of Marsaglia's xorshift generators, 2016. */
static uint64_t random_state = 88172645463325252u;

static uint64_t random_bits(void) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 2685821657736338717u;
}

/* Between -1 and 1. */
static double random_number(void) {
    return (double)(int64_t)random_bits() * 0x1p-63;
}

#endif
