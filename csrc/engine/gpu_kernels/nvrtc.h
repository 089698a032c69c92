/* NVRTC, NVIDIA's compiler for CUDA at run time: finds it, opens it, and compiles our kernels.
 *
 * A process uses one library, opened at its first use and never closed. It is torch's own where
 * torch has one, so that its output fits the driver and the runtime that torch uses. All functions
 * may be called from any thread. They take seconds: never call them with the GIL.
 */
#ifndef MU_NVRTC_H
#define MU_NVRTC_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct mu_nvrtc_functions; /* those of the library */

struct mu_nvrtc {
    bool available;
    char reason[256];                           /* why not; empty when available */
    char path[512];                             /* of the library, "" where it is not known */
    int major, minor;                           /* its version */
    const struct mu_nvrtc_functions *functions; /* owned, for good */
};

/* Opens the library at `path`, or, where that is NULL, the first of these that is there:
 *   - a libnvrtc that is loaded already;
 *   - those that belong to the libcudart that is loaded;
 *   - those of the packages nvidia-cuda-nvrtc beside the torch that is loaded;
 *   - those that the dynamic linker finds by name.
 * Each in the order CUDA 13, 12, 11. */
void mu_nvrtc_open(struct mu_nvrtc *nvrtc, const char *path);

enum mu_nvrtc_form { MU_NVRTC_PTX, MU_NVRTC_CUBIN };

/* One of our .cu files (kernel_sources.h) for one GPU. */
struct mu_nvrtc_job {
    const char *source;         /* "hash.cu" */
    const char *const *options; /* borrowed; without --gpu-architecture */
    int option_count;
    int arch;                /* 90 for compute capability 9.0 */
    enum mu_nvrtc_form form; /* PTX is for compute_<arch>, CUBIN for sm_<arch> */
    bool verbose;            /* the log lists registers and shared memory; for CUBIN only */
};

/* The result of a compilation. Release it with mu_nvrtc_image_release, also after an error. */
struct mu_nvrtc_image {
    char *bytes; /* owned; PTX ends in NUL */
    size_t size;
    char *log; /* owned; NUL-terminated; NULL where there is none */
};

/* MU_ERR_STATE without a library, MU_ERR_ARGUMENT with the beginning of the log when it does not
 * compile. */
MU_MUST_CHECK int mu_nvrtc_compile(const struct mu_nvrtc *nvrtc, const struct mu_nvrtc_job *job,
                                   struct mu_nvrtc_image *image, struct mu_error *err);

void mu_nvrtc_image_release(struct mu_nvrtc_image *image);

/* The newest architecture that the library knows and a GPU of `arch` can run; 0 for none. */
int mu_nvrtc_best_arch(const struct mu_nvrtc *nvrtc, int arch);

#endif
