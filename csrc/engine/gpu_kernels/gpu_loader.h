/* Takes kernels from their source to a function that the driver can launch. Each step is done once.
 *
 * A program is a .cu file compiled for the element types that it is to read; it is compiled at its
 * first use for the kind of the GPU, kept in memory and on disk (gpu_cache.h), and loaded into the
 * primary context of each device that asks for it. A call that finds it loaded takes no lock.
 * Everything may be called from any thread, and never with the GIL where a compiler may run. What
 * is loaded stays for the life of the process.
 */
#ifndef MU_GPU_LOADER_H
#define MU_GPU_LOADER_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "cuda/cuda_driver.h"
#include "gpu_kernels/nvrtc.h"

enum mu_gpu_source { MU_GPU_HASH, MU_GPU_NAN_INF, MU_GPU_STATS, MU_GPU_COMPARE, MU_GPU_SOURCES };

enum { MU_GPU_KERNELS_MAX = 4 };

/* `a` and `b` are enum mu_dtype: of the one or two tensors; -1 where the source does not ask. */
struct mu_gpu_program {
    enum mu_gpu_source source;
    int a, b;
};

/* How to compile it; the options point into the struct. */
struct mu_gpu_build {
    char defines[2][32];
    const char *options[4];
    struct mu_nvrtc_job job;
};

void mu_gpu_build_of(const struct mu_gpu_program *program, struct mu_gpu_build *build);

/* Compiles a job. Tests replace NVRTC by a function of this type. */
typedef int (*mu_gpu_compiler)(const struct mu_nvrtc_job *job, struct mu_nvrtc_image *image,
                               struct mu_error *err);

struct mu_gpu_options {
    const struct mu_cuda_driver *driver; /* borrowed, for good */
    const char *nvrtc_path;              /* NULL: searched for */
    const char *cache_folder;            /* NULL: mu_gpu_cache_folder; "": no cache on disk */
    mu_gpu_compiler compiler;            /* NULL: NVRTC */
};

struct mu_gpu; /* all of it, for one process */

MU_MUST_CHECK int mu_gpu_open(struct mu_gpu **gpu, const struct mu_gpu_options *options,
                              struct mu_error *err);

/* Frees the memory on the host; what the driver holds goes with its context. */
void mu_gpu_close(struct mu_gpu *gpu);

struct mu_gpu_state {
    int nvrtc_major, nvrtc_minor; /* 0: not opened yet, or not found */
    char nvrtc_path[512];
    char nvrtc_reason[256]; /* why there is none */
    char cache_folder[1024];
    uint64_t compiled, from_disk, loaded; /* programs */
};

void mu_gpu_state_of(struct mu_gpu *gpu, struct mu_gpu_state *state);

/* "hash", "nan_inf", "stats" or "compare", or NULL behind the last. */
const char *mu_gpu_source_name(int source);

/* Compiles a program by NVRTC for an architecture, past all caches. */
MU_MUST_CHECK int mu_gpu_compile(struct mu_gpu *gpu, const struct mu_gpu_program *program, int arch,
                                 enum mu_nvrtc_form form, struct mu_nvrtc_image *image,
                                 struct mu_error *err);

/* One device that kernels run on. */
struct mu_gpu_device {
    CUdevice device;
    CUcontext context;
    CUmemoryPool pool; /* keeps what is freed, so that a later call finds it at once */
    int arch;          /* 90 for compute capability 9.0 */
    int processors;    /* multiprocessors */
};

/* The device of that number, its primary context retained for good. MU_ERR_STATE in a forked child,
 * or where the driver fails. */
MU_MUST_CHECK int mu_gpu_device_of(struct mu_gpu *gpu, int index,
                                   const struct mu_gpu_device **device, struct mu_error *err);

/* The kernels of a program on a device, in the order of mu_gpu_kernel_names. The device's context
 * is current. */
MU_MUST_CHECK int mu_gpu_functions_of(struct mu_gpu *gpu, int index,
                                      const struct mu_gpu_program *program,
                                      const CUfunction **functions, struct mu_error *err);

/* MU_GPU_KERNELS_MAX names at most; NULL ends them. */
const char *const *mu_gpu_kernel_names(enum mu_gpu_source source);

/* The driver that the GPUs use. */
const struct mu_cuda_driver *mu_gpu_driver_of(const struct mu_gpu *gpu);

/* "cuLaunchKernel failed with CUDA_ERROR_... (700)": MU_ERR_STATE. */
MU_MUST_CHECK int mu_gpu_fail(const struct mu_gpu *gpu, const char *call, CUresult result,
                              struct mu_error *err);

#endif
