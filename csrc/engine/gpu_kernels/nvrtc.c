#include "gpu_kernels/nvrtc.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_kernels/kernel_sources.h"

/* Of nvrtc.h, as it is since CUDA 11.2; a result other than 0 is an error. */
typedef struct program *program_t;

struct mu_nvrtc_functions {
    int (*version)(int *major, int *minor);
    int (*arch_count)(int *count);
    int (*archs)(int *list);
    int (*create)(program_t *program, const char *source, const char *name, int header_count,
                  const char *const *headers, const char *const *header_names);
    int (*destroy)(program_t *program);
    int (*compile)(program_t program, int option_count, const char *const *options);
    int (*ptx_size)(program_t program, size_t *size);
    int (*ptx)(program_t program, char *out);
    int (*cubin_size)(program_t program, size_t *size);
    int (*cubin)(program_t program, char *out);
    int (*log_size)(program_t program, size_t *size);
    int (*log)(program_t program, char *out);
    const char *(*error_name)(int result);
};

static const char *const symbols[] = {
    "nvrtcVersion",           "nvrtcGetNumSupportedArchs",
    "nvrtcGetSupportedArchs", "nvrtcCreateProgram",
    "nvrtcDestroyProgram",    "nvrtcCompileProgram",
    "nvrtcGetPTXSize",        "nvrtcGetPTX",
    "nvrtcGetCUBINSize",      "nvrtcGetCUBIN",
    "nvrtcGetProgramLogSize", "nvrtcGetProgramLog",
    "nvrtcGetErrorString",
};

enum { SYMBOL_COUNT = sizeof(symbols) / sizeof(symbols[0]) };

_Static_assert(sizeof(struct mu_nvrtc_functions) == SYMBOL_COUNT * sizeof(void *),
               "a symbol for each function");

static const char *const sonames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"};

enum { SONAME_COUNT = sizeof(sonames) / sizeof(sonames[0]) };

/* --- the search --------------------------------------------------------------------------- */

/* The folder of a library that is loaded already, without the last slash. */
MU_MUST_CHECK static bool folder_of_loaded(const char *name, char *folder, size_t capacity) {
    void *library = dlopen(name, RTLD_NOLOAD | RTLD_LAZY);
    struct link_map *map = NULL;
    if (library == NULL) {
        return false;
    }
    bool found = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && strrchr(map->l_name, '/') != NULL;
    if (found) {
        int length = (int)(strrchr(map->l_name, '/') - map->l_name);
        found = snprintf(folder, capacity, "%.*s", length, map->l_name) < (int)capacity;
    }
    dlclose(library);
    return found;
}

/* The first library that a pattern of file names leads to. */
static void *open_matching(const char *folder, const char *between, const char *name) {
    char pattern[1024];
    glob_t matches;
    void *library = NULL;
    if (snprintf(pattern, sizeof(pattern), "%s/%s%s", folder, between, name) >=
            (int)sizeof(pattern) ||
        glob(pattern, 0, NULL, &matches) != 0) {
        return NULL;
    }
    for (size_t i = 0; i < matches.gl_pathc && library == NULL; i++) {
        library = dlopen(matches.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
    }
    globfree(&matches);
    return library;
}

static void *open_loaded(const char *name) {
    return dlopen(name, RTLD_NOLOAD | RTLD_NOW);
}

/* torch is in site-packages/torch/lib, NVIDIA's packages in site-packages/nvidia. */
static void *open_beside_torch(const char *name) {
    char folder[512];
    return folder_of_loaded("libtorch_cpu.so", folder, sizeof(folder))
               ? open_matching(folder, "../../nvidia/*/lib/", name)
               : NULL;
}

/* Where the package of the runtime holds NVRTC too (CUDA 13), or has a package beside it. */
static void *open_beside_cudart(const char *name) {
    static const char *const runtimes[SONAME_COUNT] = {"libcudart.so.13", "libcudart.so.12",
                                                       "libcudart.so.11.0"};
    char folder[512];
    for (size_t i = 0; i < SONAME_COUNT; i++) {
        if (strcmp(name, sonames[i]) == 0 &&
            folder_of_loaded(runtimes[i], folder, sizeof(folder))) {
            void *library = open_matching(folder, "", name);
            return library != NULL ? library : open_matching(folder, "../../*/lib/", name);
        }
    }
    return NULL;
}

static void *open_anywhere(const char *name) {
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

static void *search(void) {
    void *(*const places[])(const char *) = {open_loaded, open_beside_cudart, open_beside_torch,
                                             open_anywhere};
    for (size_t place = 0; place < sizeof(places) / sizeof(places[0]); place++) {
        for (size_t i = 0; i < SONAME_COUNT; i++) {
            void *library = places[place](sonames[i]);
            if (library != NULL) {
                return library;
            }
        }
    }
    return NULL;
}

/* --- opening ------------------------------------------------------------------------------ */

static struct mu_nvrtc_functions *find_functions(struct mu_nvrtc *nvrtc, void *library) {
    struct mu_nvrtc_functions *functions = calloc(1, sizeof(*functions));
    if (functions == NULL) {
        snprintf(nvrtc->reason, sizeof(nvrtc->reason), "no memory for the functions of NVRTC");
        return NULL;
    }
    for (size_t i = 0; i < SYMBOL_COUNT; i++) {
        void *address = dlsym(library, symbols[i]);
        if (address == NULL) {
            snprintf(nvrtc->reason, sizeof(nvrtc->reason), "%.180s has no %s",
                     nvrtc->path[0] == '\0' ? "libnvrtc" : nvrtc->path, symbols[i]);
            free(functions);
            return NULL;
        }
        /* POSIX lets a data pointer of dlsym hold a function. */
        memcpy((char *)functions + i * sizeof(void *), &address, sizeof(address));
    }
    return functions;
}

/* NVRTC opens it by its name when it compiles. Not every package of NVRTC says where it is (that of
 * CUDA 13.0 does not); one that is loaded already is found. It stays loaded, as NVRTC does. */
static void load_builtins(const struct mu_nvrtc *nvrtc) {
    const char *slash = strrchr(nvrtc->path, '/');
    char path[sizeof(nvrtc->path) + 64];
    if (slash != NULL) {
        snprintf(path, sizeof(path), "%.*s/libnvrtc-builtins.so.%d.%d", (int)(slash - nvrtc->path),
                 nvrtc->path, nvrtc->major, nvrtc->minor);
        dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
}

void mu_nvrtc_open(struct mu_nvrtc *nvrtc, const char *path) {
    *nvrtc = (struct mu_nvrtc){.available = false};
    void *library = path == NULL ? search() : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    struct link_map *map = NULL;
    if (library == NULL) {
        const char *why = path == NULL ? NULL : dlerror();
        snprintf(nvrtc->reason, sizeof(nvrtc->reason), "%s",
                 why != NULL ? why : "no libnvrtc.so.13, .12 or .11.2 (package nvidia-cuda-nvrtc)");
        return;
    }
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) {
        snprintf(nvrtc->path, sizeof(nvrtc->path), "%s", map->l_name);
    }
    nvrtc->functions = find_functions(nvrtc, library);
    nvrtc->available =
        nvrtc->functions != NULL && nvrtc->functions->version(&nvrtc->major, &nvrtc->minor) == 0;
    if (nvrtc->available) {
        load_builtins(nvrtc);
    }
}

int mu_nvrtc_best_arch(const struct mu_nvrtc *nvrtc, int arch) {
    int list[64];
    int count = 0;
    int best = 0;
    if (!nvrtc->available || nvrtc->functions->arch_count(&count) != 0 ||
        count > (int)(sizeof(list) / sizeof(list[0])) || nvrtc->functions->archs(list) != 0) {
        return 0;
    }
    for (int i = 0; i < count; i++) {
        best = list[i] <= arch && list[i] > best ? list[i] : best;
    }
    return best;
}

/* --- compiling ---------------------------------------------------------------------------- */

enum { OPTIONS_MAX = 16, SOURCES_MAX = 32 };

MU_MUST_CHECK static int fail(const struct mu_nvrtc *nvrtc, const char *call, int result,
                              struct mu_error *err) {
    return mu_error_set(err, MU_ERR_STATE, "NVRTC %d.%d: %s failed with %s", nvrtc->major,
                        nvrtc->minor, call, nvrtc->functions->error_name(result));
}

static const char *source_text(const char *name) {
    for (int i = 0; i < mu_kernel_source_count; i++) {
        if (strcmp(mu_kernel_sources[i].name, name) == 0) {
            return mu_kernel_sources[i].text;
        }
    }
    return NULL;
}

/* The program with all our sources as headers, by the names that they are included by. */
MU_MUST_CHECK static int create(const struct mu_nvrtc *nvrtc, const char *name, program_t *program,
                                struct mu_error *err) {
    const char *texts[SOURCES_MAX];
    const char *names[SOURCES_MAX];
    const char *text = source_text(name);
    if (text == NULL || mu_kernel_source_count > SOURCES_MAX) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "no GPU kernels named %.100s", name);
    }
    for (int i = 0; i < mu_kernel_source_count; i++) {
        names[i] = mu_kernel_sources[i].name;
        texts[i] = mu_kernel_sources[i].text;
    }
    int result =
        nvrtc->functions->create(program, text, name, mu_kernel_source_count, texts, names);
    return result == 0 ? MU_OK : fail(nvrtc, "nvrtcCreateProgram", result, err);
}

/* The text that two functions of the library hand out: first its size, then its bytes. */
MU_MUST_CHECK static int take(const struct mu_nvrtc *nvrtc, program_t program,
                              int (*size_of)(program_t, size_t *), int (*copy)(program_t, char *),
                              char **out, size_t *size, struct mu_error *err) {
    int result = size_of(program, size);
    if (result != 0) {
        return fail(nvrtc, "the size of an output", result, err);
    }
    *out = calloc(1, *size + 1);
    if (*out == NULL) {
        return mu_error_no_memory(err, "a compiled kernel");
    }
    result = copy(program, *out);
    return result == 0 ? MU_OK : fail(nvrtc, "taking an output", result, err);
}

MU_MUST_CHECK static int compile(const struct mu_nvrtc *nvrtc, const struct mu_nvrtc_job *job,
                                 program_t program, struct mu_nvrtc_image *image,
                                 struct mu_error *err) {
    const struct mu_nvrtc_functions *functions = nvrtc->functions;
    const char *options[OPTIONS_MAX];
    char arch[48];
    bool cubin = job->form == MU_NVRTC_CUBIN;
    int count = 0;
    size_t log_size = 0;
    snprintf(arch, sizeof(arch), "--gpu-architecture=%s_%d", cubin ? "sm" : "compute", job->arch);
    options[count++] = arch;
    for (int i = 0; i < job->option_count && count < OPTIONS_MAX - 1; i++) {
        options[count++] = job->options[i];
    }
    if (job->verbose && cubin) {
        options[count++] = "--ptxas-options=-v";
    }
    int result = functions->compile(program, count, options);
    int code =
        take(nvrtc, program, functions->log_size, functions->log, &image->log, &log_size, err);
    if (result != 0) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "NVRTC %d.%d cannot compile %.60s for %s: %.380s",
                            nvrtc->major, nvrtc->minor, job->source, strchr(arch, '=') + 1,
                            image->log != NULL && image->log[0] != '\0'
                                ? image->log
                                : functions->error_name(result));
    }
    if (code != MU_OK) {
        return code;
    }
    return take(nvrtc, program, cubin ? functions->cubin_size : functions->ptx_size,
                cubin ? functions->cubin : functions->ptx, &image->bytes, &image->size, err);
}

int mu_nvrtc_compile(const struct mu_nvrtc *nvrtc, const struct mu_nvrtc_job *job,
                     struct mu_nvrtc_image *image, struct mu_error *err) {
    program_t program = NULL;
    *image = (struct mu_nvrtc_image){.bytes = NULL};
    if (!nvrtc->available) {
        return mu_error_set(err, MU_ERR_STATE, "the kernels for CUDA tensors need NVRTC: %s",
                            nvrtc->reason);
    }
    int code = create(nvrtc, job->source, &program, err);
    if (code == MU_OK) {
        code = compile(nvrtc, job, program, image, err);
        nvrtc->functions->destroy(&program);
    }
    return code;
}

void mu_nvrtc_image_release(struct mu_nvrtc_image *image) {
    free(image->bytes);
    free(image->log);
    *image = (struct mu_nvrtc_image){.bytes = NULL};
}
