#include "gpu_kernels/gpu_loader.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "gpu_kernels/gpu_cache.h"
#include "gpu_kernels/kernel_sources.h"
#include "tensor/tensor.h"

enum {
    DEVICES_MAX = 64,
    STATS_FIRST = 2, /* hash and nan_inf ask for no type */
    COMPARE_FIRST = STATS_FIRST + MU_DTYPE_COUNT,
    PROGRAMS = COMPARE_FIRST + MU_DTYPE_COUNT * MU_DTYPE_COUNT,
};

struct functions {
    CUfunction entries[MU_GPU_KERNELS_MAX];
};

/* A program compiled for an architecture. */
struct image {
    struct image *next; /* owned */
    int program;
    int arch;
    char *bytes; /* owned */
};

struct device {
    struct mu_gpu_device public;
    _Atomic(struct functions *) programs[PROGRAMS]; /* owned; NULL: not loaded yet */
};

struct mu_gpu {
    const struct mu_cuda_driver *driver; /* borrowed */
    mu_gpu_compiler compiler;
    pid_t pid;
    _Atomic(struct device *) devices[DEVICES_MAX]; /* owned */

    pthread_mutex_t lock; /* for all that follows, and for what is put into the tables above */
    struct mu_nvrtc nvrtc;
    bool nvrtc_opened;
    char *nvrtc_path; /* owned, or NULL */
    char cache_folder[MU_GPU_CACHE_PATH_MAX];
    struct image *images; /* owned */
    uint64_t compiled, from_disk, loaded;
};

/* --- programs ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    const char *file;
    const char *kernels[MU_GPU_KERNELS_MAX + 1];
} sources[MU_GPU_SOURCES] = {
    [MU_GPU_HASH] = {"hash",
                     "hash.cu",
                     {"mu_hash_blocks", "mu_hash_rows", "mu_hash_ends", "mu_hash_finish"}},
    [MU_GPU_NAN_INF] = {"nan_inf", "nan_inf.cu", {"mu_nan_inf_dense", "mu_nan_inf_strided"}},
    [MU_GPU_STATS] = {"stats", "stats.cu", {"mu_stats_dense", "mu_stats_strided", "mu_stats_end"}},
    [MU_GPU_COMPARE] = {"compare", "compare.cu", {"mu_compare_pairs", "mu_compare_end"}},
};

const char *const *mu_gpu_kernel_names(enum mu_gpu_source source) {
    return sources[source].kernels;
}

const char *mu_gpu_source_name(int source) {
    return source >= 0 && source < MU_GPU_SOURCES ? sources[source].name : NULL;
}

static int index_of(const struct mu_gpu_program *program) {
    switch (program->source) {
    case MU_GPU_STATS:
        return STATS_FIRST + program->a;
    case MU_GPU_COMPARE:
        return COMPARE_FIRST + program->a * MU_DTYPE_COUNT + program->b;
    default:
        return (int)program->source;
    }
}

void mu_gpu_build_of(const struct mu_gpu_program *program, struct mu_gpu_build *build) {
    const int types[] = {program->a, program->b};
    int count = 0;
    build->options[count++] = "--std=c++17";
    /* The same roundings as on the processor. */
    build->options[count++] = "--fmad=false";
    for (int i = 0; i < 2; i++) {
        if (types[i] >= 0) {
            snprintf(build->defines[i], sizeof(build->defines[i]), "-DMU_GPU_DTYPE_%c=%d", "AB"[i],
                     types[i]);
            build->options[count++] = build->defines[i];
        }
    }
    build->job = (struct mu_nvrtc_job){.source = sources[program->source].file,
                                       .options = build->options,
                                       .option_count = count,
                                       .form = MU_NVRTC_PTX};
}

/* --- life --------------------------------------------------------------------------------- */

int mu_gpu_open(struct mu_gpu **gpu, const struct mu_gpu_options *options, struct mu_error *err) {
    struct mu_gpu *made = calloc(1, sizeof(*made));
    *gpu = NULL;
    if (made == NULL) {
        return mu_error_no_memory(err, "the table of GPUs");
    }
    made->driver = options->driver;
    made->compiler = options->compiler;
    made->pid = getpid();
    pthread_mutex_init(&made->lock, NULL);
    if (options->nvrtc_path != NULL) {
        made->nvrtc_path = strdup(options->nvrtc_path);
        if (made->nvrtc_path == NULL) {
            mu_gpu_close(made);
            return mu_error_no_memory(err, "the path of NVRTC");
        }
    }
    if (options->cache_folder == NULL) {
        mu_gpu_cache_folder(made->cache_folder);
    } else {
        snprintf(made->cache_folder, sizeof(made->cache_folder), "%s", options->cache_folder);
    }
    *gpu = made;
    return MU_OK;
}

static void free_device(struct device *device) {
    for (int i = 0; device != NULL && i < PROGRAMS; i++) {
        free(atomic_load(&device->programs[i]));
    }
    free(device);
}

void mu_gpu_close(struct mu_gpu *gpu) {
    if (gpu == NULL) {
        return;
    }
    for (int i = 0; i < DEVICES_MAX; i++) {
        free_device(atomic_load(&gpu->devices[i]));
    }
    while (gpu->images != NULL) {
        struct image *next = gpu->images->next;
        free(gpu->images->bytes);
        free(gpu->images);
        gpu->images = next;
    }
    pthread_mutex_destroy(&gpu->lock);
    free(gpu->nvrtc_path);
    free(gpu);
}

const struct mu_cuda_driver *mu_gpu_driver_of(const struct mu_gpu *gpu) {
    return gpu->driver;
}

int mu_gpu_fail(const struct mu_gpu *gpu, const char *call, CUresult result, struct mu_error *err) {
    return mu_error_set(err, MU_ERR_STATE, "%s failed with %s (%d)", call,
                        mu_cuda_error_name(gpu->driver, (int)result), (int)result);
}

MU_MUST_CHECK static int check_process(const struct mu_gpu *gpu, struct mu_error *err) {
    if (!gpu->driver->available) {
        return mu_error_set(err, MU_ERR_STATE, "a CUDA tensor, but no CUDA driver (%s)",
                            gpu->driver->reason);
    }
    if (getpid() != gpu->pid) {
        return mu_error_set(err, MU_ERR_STATE,
                            "CUDA tensors cannot be used in a forked child; start it by spawn");
    }
    return MU_OK;
}

static void open_nvrtc_lock_held(struct mu_gpu *gpu) {
    if (!gpu->nvrtc_opened) {
        mu_nvrtc_open(&gpu->nvrtc, gpu->nvrtc_path);
        gpu->nvrtc_opened = true;
    }
}

void mu_gpu_state_of(struct mu_gpu *gpu, struct mu_gpu_state *state) {
    *state = (struct mu_gpu_state){.compiled = 0};
    if (getpid() != gpu->pid) {
        return;
    }
    pthread_mutex_lock(&gpu->lock);
    state->nvrtc_major = gpu->nvrtc.major;
    state->nvrtc_minor = gpu->nvrtc.minor;
    snprintf(state->nvrtc_path, sizeof(state->nvrtc_path), "%s", gpu->nvrtc.path);
    snprintf(state->nvrtc_reason, sizeof(state->nvrtc_reason), "%s", gpu->nvrtc.reason);
    snprintf(state->cache_folder, sizeof(state->cache_folder), "%s", gpu->cache_folder);
    state->compiled = gpu->compiled;
    state->from_disk = gpu->from_disk;
    state->loaded = gpu->loaded;
    pthread_mutex_unlock(&gpu->lock);
}

/* --- devices ------------------------------------------------------------------------------ */

/* While any stream of the process is under capture, loading and making a pool are forbidden, unless
 * the thread has set a mode that allows them. */
static CUstreamCaptureMode relax_capture(const struct mu_gpu *gpu) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    gpu->driver->thread_exchange_capture_mode(&mode);
    return mode;
}

static void restore_capture(const struct mu_gpu *gpu, CUstreamCaptureMode mode) {
    gpu->driver->thread_exchange_capture_mode(&mode);
}

/* Memory that is freed stays with the pool; a device without pools has none. */
static void make_pool(const struct mu_gpu *gpu, int index, struct mu_gpu_device *device) {
    CUmemPoolProps properties;
    cuuint64_t keep = UINT64_MAX;
    memset(&properties, 0, sizeof(properties));
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = index;
    if (gpu->driver->mem_pool_create(&device->pool, &properties) != CUDA_SUCCESS) {
        device->pool = NULL;
        return;
    }
    gpu->driver->mem_pool_set_attribute(device->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
}

MU_MUST_CHECK static int fill_device(const struct mu_gpu *gpu, int index,
                                     struct mu_gpu_device *device, struct mu_error *err) {
    const struct mu_cuda_driver *driver = gpu->driver;
    int major = 0;
    int minor = 0;
    CUresult result = driver->device_get(&device->device, index);
    if (result != CUDA_SUCCESS) {
        return mu_gpu_fail(gpu, "cuDeviceGet", result, err);
    }
    result = driver->primary_ctx_retain(&device->context, device->device);
    if (result != CUDA_SUCCESS) {
        return mu_gpu_fail(gpu, "cuDevicePrimaryCtxRetain", result, err);
    }
    const struct {
        CUdevice_attribute attribute;
        int *value;
    } wanted[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &device->processors},
    };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        result = driver->device_get_attribute(wanted[i].value, wanted[i].attribute, device->device);
        if (result != CUDA_SUCCESS) {
            return mu_gpu_fail(gpu, "cuDeviceGetAttribute", result, err);
        }
    }
    device->arch = major * 10 + minor;
    CUstreamCaptureMode mode = relax_capture(gpu);
    make_pool(gpu, index, device);
    restore_capture(gpu, mode);
    return MU_OK;
}

MU_MUST_CHECK static int add_device_lock_held(struct mu_gpu *gpu, int index, struct mu_error *err) {
    if (atomic_load(&gpu->devices[index]) != NULL) {
        return MU_OK;
    }
    struct device *device = calloc(1, sizeof(*device));
    if (device == NULL) {
        return mu_error_no_memory(err, "a GPU's kernels");
    }
    int code = fill_device(gpu, index, &device->public, err);
    if (code != MU_OK) {
        free(device);
        return code;
    }
    atomic_store_explicit(&gpu->devices[index], device, memory_order_release);
    return MU_OK;
}

int mu_gpu_device_of(struct mu_gpu *gpu, int index, const struct mu_gpu_device **device,
                     struct mu_error *err) {
    int code = check_process(gpu, err);
    if (code != MU_OK) {
        return code;
    }
    if (index < 0 || index >= DEVICES_MAX) {
        return mu_error_set(err, MU_ERR_LIMIT, "CUDA device %d; %d devices are known", index,
                            DEVICES_MAX);
    }
    struct device *found = atomic_load_explicit(&gpu->devices[index], memory_order_acquire);
    if (found == NULL) {
        pthread_mutex_lock(&gpu->lock);
        code = add_device_lock_held(gpu, index, err);
        pthread_mutex_unlock(&gpu->lock);
        if (code != MU_OK) {
            return code;
        }
        found = atomic_load_explicit(&gpu->devices[index], memory_order_acquire);
    }
    *device = &found->public;
    return MU_OK;
}

/* --- compiling ---------------------------------------------------------------------------- */

/* Code for the GPU itself where NVRTC knows its generation, else PTX, which the driver translates.
 */
MU_MUST_CHECK static int choose_arch(const struct mu_gpu *gpu, int arch, struct mu_nvrtc_job *job,
                                     struct mu_error *err) {
    job->arch = gpu->compiler != NULL ? arch : mu_nvrtc_best_arch(&gpu->nvrtc, arch);
    if (job->arch == 0 && gpu->nvrtc.available) {
        return mu_error_set(err, MU_ERR_STATE,
                            "NVRTC %d.%d compiles for no GPU of compute capability %d.%d",
                            gpu->nvrtc.major, gpu->nvrtc.minor, arch / 10, arch % 10);
    }
    job->form = job->arch / 10 == arch / 10 ? MU_NVRTC_CUBIN : MU_NVRTC_PTX;
    return MU_OK;
}

int mu_gpu_compile(struct mu_gpu *gpu, const struct mu_gpu_program *program, int arch,
                   enum mu_nvrtc_form form, struct mu_nvrtc_image *image, struct mu_error *err) {
    struct mu_gpu_build build;
    mu_gpu_build_of(program, &build);
    build.job.arch = arch;
    build.job.form = form;
    build.job.verbose = true;
    pthread_mutex_lock(&gpu->lock);
    open_nvrtc_lock_held(gpu);
    pthread_mutex_unlock(&gpu->lock);
    return mu_nvrtc_compile(&gpu->nvrtc, &build.job, image, err);
}

/* What an image depends on, and the name of its file. */
static void describe(const struct mu_gpu *gpu, const struct mu_gpu_program *program,
                     const struct mu_nvrtc_job *job, char *name, size_t name_capacity, char *key,
                     size_t key_capacity) {
    int length = snprintf(name, name_capacity, "%s", sources[program->source].name);
    const int types[] = {program->a, program->b};
    for (int i = 0; i < 2 && types[i] >= 0; i++) {
        length += snprintf(name + length, name_capacity - (size_t)length, "-%s",
                           mu_dtype_info(types[i])->name);
    }
    snprintf(name + length, name_capacity - (size_t)length, "-%s_%d-nvrtc_%d.%d-%.16s",
             job->form == MU_NVRTC_CUBIN ? "sm" : "compute", job->arch, gpu->nvrtc.major,
             gpu->nvrtc.minor, mu_kernel_sources_digest);
    length = snprintf(key, key_capacity, "%s %s", name, mu_kernel_sources_digest);
    for (int i = 0; i < job->option_count; i++) {
        length += snprintf(key + length, key_capacity - (size_t)length, " %s", job->options[i]);
    }
}

MU_MUST_CHECK static int compile_lock_held(struct mu_gpu *gpu, const struct mu_gpu_program *program,
                                           int arch, char **bytes, struct mu_error *err) {
    struct mu_gpu_build build;
    struct mu_nvrtc_image image = {.bytes = NULL};
    char name[200];
    char key[600];
    size_t size;
    mu_gpu_build_of(program, &build);
    if (gpu->compiler == NULL) {
        open_nvrtc_lock_held(gpu);
    }
    int code = choose_arch(gpu, arch, &build.job, err);
    if (code != MU_OK) {
        return code;
    }
    describe(gpu, program, &build.job, name, sizeof(name), key, sizeof(key));
    if (mu_gpu_cache_load(gpu->cache_folder, name, key, bytes, &size)) {
        gpu->from_disk++;
        return MU_OK;
    }
    code = gpu->compiler != NULL ? gpu->compiler(&build.job, &image, err)
                                 : mu_nvrtc_compile(&gpu->nvrtc, &build.job, &image, err);
    if (code == MU_OK) {
        gpu->compiled++;
        mu_gpu_cache_store(gpu->cache_folder, name, key, image.bytes, image.size);
        *bytes = image.bytes;
        image.bytes = NULL;
    }
    mu_nvrtc_image_release(&image);
    return code;
}

MU_MUST_CHECK static int image_lock_held(struct mu_gpu *gpu, const struct mu_gpu_program *program,
                                         int arch, const char **bytes, struct mu_error *err) {
    int index = index_of(program);
    for (struct image *image = gpu->images; image != NULL; image = image->next) {
        if (image->program == index && image->arch == arch) {
            *bytes = image->bytes;
            return MU_OK;
        }
    }
    struct image *made = calloc(1, sizeof(*made));
    if (made == NULL) {
        return mu_error_no_memory(err, "a compiled kernel");
    }
    int code = compile_lock_held(gpu, program, arch, &made->bytes, err);
    if (code != MU_OK) {
        free(made);
        return code;
    }
    made->program = index;
    made->arch = arch;
    made->next = gpu->images;
    gpu->images = made;
    *bytes = made->bytes;
    return MU_OK;
}

/* --- loading ------------------------------------------------------------------------------ */

/* Loads all functions at once. With lazy loading each would be loaded by its first launch, which a
 * capture does not allow. */
MU_MUST_CHECK static int load_functions(const struct mu_gpu *gpu, enum mu_gpu_source source,
                                        const char *image, struct functions *functions,
                                        struct mu_error *err) {
    CUmodule module = NULL;
    CUresult result = gpu->driver->module_load_data(&module, image);
    if (result != CUDA_SUCCESS) {
        return mu_gpu_fail(gpu, "cuModuleLoadData", result, err);
    }
    for (int i = 0; sources[source].kernels[i] != NULL; i++) {
        result = gpu->driver->module_get_function(&functions->entries[i], module,
                                                  sources[source].kernels[i]);
        if (result != CUDA_SUCCESS) {
            return mu_gpu_fail(gpu, "cuModuleGetFunction", result, err);
        }
    }
    return MU_OK;
}

MU_MUST_CHECK static int load_lock_held(struct mu_gpu *gpu, struct device *device,
                                        const struct mu_gpu_program *program,
                                        struct mu_error *err) {
    _Atomic(struct functions *) *place = &device->programs[index_of(program)];
    const char *image = NULL;
    if (atomic_load(place) != NULL) {
        return MU_OK;
    }
    int code = image_lock_held(gpu, program, device->public.arch, &image, err);
    if (code != MU_OK) {
        return code;
    }
    struct functions *functions = calloc(1, sizeof(*functions));
    if (functions == NULL) {
        return mu_error_no_memory(err, "a GPU's kernels");
    }
    CUstreamCaptureMode mode = relax_capture(gpu);
    code = load_functions(gpu, program->source, image, functions, err);
    restore_capture(gpu, mode);
    if (code != MU_OK) {
        free(functions);
        return code;
    }
    gpu->loaded++;
    atomic_store_explicit(place, functions, memory_order_release);
    return MU_OK;
}

int mu_gpu_functions_of(struct mu_gpu *gpu, int index, const struct mu_gpu_program *program,
                        const CUfunction **functions, struct mu_error *err) {
    struct device *device = atomic_load_explicit(&gpu->devices[index], memory_order_acquire);
    _Atomic(struct functions *) *place = &device->programs[index_of(program)];
    if (atomic_load_explicit(place, memory_order_acquire) == NULL) {
        pthread_mutex_lock(&gpu->lock);
        int code = load_lock_held(gpu, device, program, err);
        pthread_mutex_unlock(&gpu->lock);
        if (code != MU_OK) {
            return code;
        }
    }
    *functions = atomic_load_explicit(place, memory_order_acquire)->entries;
    return MU_OK;
}
