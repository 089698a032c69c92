#include "tensor/py_gpu_kernels.h"

#include <stdio.h>
#include <string.h>

#include "core/args.h"
#include "core/warnings.h"
#include "gpu_kernels/gpu_kernels.h"
#include "gpu_kernels/gpu_operations.h"
#include "stats/stats.h"

/* --- the kinds of work -------------------------------------------------------------------- */

static void finish_stats(const struct mu_tensor *tensor, const void *fetched, void *out) {
    mu_stats_finish_as(tensor->dtype, fetched, out);
}

const struct mu_py_gpu_work mu_py_gpu_hash = {MU_GPU_OP_HASH, NULL};
const struct mu_py_gpu_work mu_py_gpu_nan_inf = {MU_GPU_OP_NAN_INF, NULL};
const struct mu_py_gpu_work mu_py_gpu_stats = {MU_GPU_OP_STATS_PART, finish_stats};

/* --- failures ----------------------------------------------------------------------------- */

/* Warns once, and everything is copied from then on: returns 0. Under a graph capture the mistake
 * is the caller's: returns -1 with an exception. */
static int without_kernels(struct mu_state *state, const struct mu_error *err, bool captured) {
    char message[MU_ERROR_MESSAGE_MAX + 128];
    if (captured) {
        mu_py_raise(err);
        return -1;
    }
    state->gpu_kernels_off = true;
    snprintf(message, sizeof(message),
             "%s; tensors on a GPU are copied to the CPU to be looked at from now on",
             err->message);
    mu_py_warn(state, "gpu_kernels", message);
    return PyErr_Occurred() ? -1 : 0;
}

/* --- the tensors of one device ------------------------------------------------------------ */

enum { DEVICES_MAX = 64 };

struct share {
    int device_index;
    void *stream;
    Py_ssize_t count;
    struct mu_gpu_results results;
    char *fetched; /* owned: room for the results of all of them */
};

struct job {
    const struct mu_py_gpu_work *work;
    const struct mu_py_tensor *items; /* borrowed */
    size_t result_bytes;              /* on the device */
    Py_ssize_t count;
    struct share *shares; /* owned */
    int share_count;
};

/* The part of the work for a device, made at its first tensor; NULL with an exception. */
static struct share *share_of(struct mu_state *state, struct job *job, int device_index) {
    for (int i = 0; i < job->share_count; i++) {
        if (job->shares[i].device_index == device_index) {
            return &job->shares[i];
        }
    }
    if (job->share_count == DEVICES_MAX) {
        PyErr_SetString(PyExc_RuntimeError, "tensors on more than 64 GPUs in one call");
        return NULL;
    }
    struct share *share = &job->shares[job->share_count];
    *share = (struct share){.device_index = device_index};
    if (mu_py_current_stream(state, device_index, &share->stream) < 0) {
        return NULL;
    }
    job->share_count++;
    return share;
}

static int make_shares(struct mu_state *state, struct job *job) {
    job->shares = PyMem_New(struct share, DEVICES_MAX);
    if (job->shares == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < job->count; i++) {
        const struct mu_tensor *view = &job->items[i].view;
        if (view->device == MU_DEVICE_CUDA) {
            struct share *share = share_of(state, job, view->device_index);
            if (share == NULL) {
                return -1;
            }
            share->count++;
        }
    }
    for (int i = 0; i < job->share_count; i++) {
        struct share *share = &job->shares[i];
        share->fetched = PyMem_Malloc((size_t)share->count * job->result_bytes);
        if (share->fetched == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    return 0;
}

static void free_shares(struct job *job) {
    for (int i = 0; i < job->share_count; i++) {
        PyMem_Free(job->shares[i].fetched);
    }
    PyMem_Free(job->shares);
}

/* Without the GIL: all the work of one device, in its stream's order. */
static int enqueue_share(const struct job *job, struct share *share, struct mu_error *err) {
    size_t bytes = (size_t)share->count * job->result_bytes;
    struct mu_gpu *gpu = mu_gpu_get();
    if (gpu == NULL) {
        return mu_error_no_memory(err, "the table of GPUs");
    }
    int code =
        mu_gpu_results_open(&share->results, gpu, share->device_index, share->stream, bytes, err);
    char *place = share->results.memory;
    for (Py_ssize_t i = 0; code == MU_OK && i < job->count; i++) {
        const struct mu_tensor *view = &job->items[i].view;
        if (view->device == MU_DEVICE_CUDA && view->device_index == share->device_index) {
            code = mu_gpu_enqueue_on(gpu, job->work->operation, view, share->stream, place, err);
            place += job->result_bytes;
        }
    }
    return code;
}

/* Without the GIL. Every device has its work before the first one is waited for. */
static int run_shares(const struct job *job, struct mu_error *err) {
    int code = MU_OK;
    for (int i = 0; code == MU_OK && i < job->share_count; i++) {
        code = enqueue_share(job, &job->shares[i], err);
    }
    for (int i = 0; code == MU_OK && i < job->share_count; i++) {
        code = mu_gpu_results_fetch(&job->shares[i].results, job->shares[i].fetched, err);
    }
    for (int i = 0; i < job->share_count; i++) {
        if (job->shares[i].results.gpu != NULL) {
            mu_gpu_results_close(&job->shares[i].results);
        }
    }
    return code;
}

static bool any_captured(const struct job *job) {
    bool captured = false;
    for (int i = 0; i < job->share_count; i++) {
        captured = captured || job->shares[i].results.captured;
    }
    return captured;
}

static void finish_share(const struct job *job, const struct share *share, char *out,
                         size_t stride) {
    const char *fetched = share->fetched;
    for (Py_ssize_t i = 0; i < job->count; i++) {
        const struct mu_tensor *view = &job->items[i].view;
        if (view->device == MU_DEVICE_CUDA && view->device_index == share->device_index) {
            char *place = out + (size_t)i * stride;
            if (job->work->finish == NULL) {
                memcpy(place, fetched, job->result_bytes);
            } else {
                job->work->finish(view, fetched, place);
            }
            fetched += job->result_bytes;
        }
    }
}

static int run_job(struct mu_state *state, struct job *job, char *out, size_t stride) {
    struct mu_error err = {0};
    int code;
    if (make_shares(state, job) < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS;
    code = run_shares(job, &err);
    Py_END_ALLOW_THREADS;
    if (code != MU_OK) {
        return without_kernels(state, &err, any_captured(job));
    }
    for (int i = 0; i < job->share_count; i++) {
        finish_share(job, &job->shares[i], out, stride);
    }
    return 1;
}

int mu_py_gpu_results(struct mu_state *state, const struct mu_py_gpu_work *work,
                      const struct mu_py_tensor *items, Py_ssize_t count, void *out,
                      size_t stride) {
    struct job job = {.work = work,
                      .items = items,
                      .result_bytes = mu_gpu_result_bytes(work->operation),
                      .count = count};
    if (state->gpu_kernels_off) {
        return 0;
    }
    int status = run_job(state, &job, out, stride);
    free_shares(&job);
    return status;
}

/* --- parts of the hash -------------------------------------------------------------------- */

/* Without the GIL. `host` has room for mu_gpu_box_bytes(box). */
static int sum_box(const struct mu_hash_box *box, void *stream, struct mu_gpu_results *results,
                   void *host, struct mu_error *err) {
    struct mu_gpu *gpu = mu_gpu_get();
    if (gpu == NULL) {
        return mu_error_no_memory(err, "the table of GPUs");
    }
    int code = mu_gpu_results_open(results, gpu, box->tensor.device_index, stream,
                                   mu_gpu_box_bytes(box), err);
    if (code == MU_OK) {
        code = mu_gpu_box_on(gpu, box, stream, results->memory, err);
    }
    if (code == MU_OK) {
        code = mu_gpu_results_fetch(results, host, err);
    }
    mu_gpu_results_close(results);
    return code;
}

int mu_py_gpu_part(struct mu_state *state, const struct mu_hash_box *box,
                   struct mu_hash_part *part) {
    struct mu_error err = {0};
    struct mu_gpu_results results = {.captured = false};
    void *stream;
    int code;
    if (state->gpu_kernels_off) {
        return 0;
    }
    if (mu_py_current_stream(state, box->tensor.device_index, &stream) < 0) {
        return -1;
    }
    struct mu_hash_sums *found = PyMem_RawMalloc(mu_gpu_box_bytes(box));
    if (found == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS;
    code = sum_box(box, stream, &results, found, &err);
    Py_END_ALLOW_THREADS;
    int status = 1;
    if (code != MU_OK) {
        status = without_kernels(state, &err, results.captured);
    } else if (mu_hash_part_of_box(part, box, found, (const uint8_t *)(found + 1), &err) != MU_OK) {
        mu_py_raise(&err);
        status = -1;
    }
    PyMem_RawFree(found);
    return status;
}

/* --- comparison --------------------------------------------------------------------------- */

/* Fetches a longer list only when there is one. */
enum { LIST_FIRST = 4096 };

/* Without the GIL. */
static int compare_on(const struct mu_tensor *a, const struct mu_tensor *b,
                      const struct mu_compare_tolerance *tolerance, int64_t list_max, void *stream,
                      struct mu_gpu_results *results, struct mu_gpu_diff *host,
                      struct mu_error *err) {
    struct mu_gpu *gpu = mu_gpu_get();
    if (gpu == NULL) {
        return mu_error_no_memory(err, "the table of GPUs");
    }
    int code = mu_gpu_results_open(results, gpu, a->device_index, stream,
                                   mu_gpu_diff_bytes(list_max), err);
    if (code == MU_OK) {
        code = mu_gpu_compare_on(gpu, a, b, tolerance, list_max, stream, results->memory, err);
    }
    if (code == MU_OK) {
        code = mu_gpu_results_fetch(results, host, err);
    }
    mu_gpu_results_close(results);
    return code;
}

static void take_diff(const struct mu_tensor *a, const struct mu_tensor *b,
                      struct mu_gpu_diff *found, const struct mu_compare_options *options,
                      struct mu_diff *diff) {
    mu_diff_of_part(&found->part, a->elements, a->dtype, b->dtype, diff);
    diff->listed = found->listed;
    if (found->listed > 0) {
        memcpy(options->list, mu_gpu_diff_list(found),
               (size_t)found->listed * sizeof(*options->list));
    }
}

/* As mu_py_gpu_compare, with a list of `list_max` at most. */
static int compare_listing(struct mu_state *state, const struct mu_tensor *a,
                           const struct mu_tensor *b, const struct mu_compare_options *options,
                           int64_t list_max, void *stream, struct mu_diff *diff) {
    struct mu_error err = {0};
    struct mu_gpu_results results = {.captured = false};
    struct mu_gpu_diff *found = PyMem_RawMalloc(mu_gpu_diff_bytes(list_max));
    int code;
    if (found == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS;
    code = compare_on(a, b, &options->tolerance, list_max, stream, &results, found, &err);
    Py_END_ALLOW_THREADS;
    if (code == MU_OK) {
        take_diff(a, b, found, options, diff);
    }
    PyMem_RawFree(found);
    return code == MU_OK ? 1 : without_kernels(state, &err, results.captured);
}

int mu_py_gpu_compare(struct mu_state *state, const struct mu_tensor *a, const struct mu_tensor *b,
                      const struct mu_compare_options *options, struct mu_diff *diff) {
    void *stream;
    if (state->gpu_kernels_off || a->device != MU_DEVICE_CUDA || b->device != MU_DEVICE_CUDA ||
        a->device_index != b->device_index) {
        return 0;
    }
    if (mu_py_current_stream(state, a->device_index, &stream) < 0) {
        return -1;
    }
    int64_t most = options->list_max < LIST_FIRST ? options->list_max : LIST_FIRST;
    int status = compare_listing(state, a, b, options, most, stream, diff);
    if (status == 1 && diff->mismatches > most && options->list_max > most) {
        most = diff->mismatches < options->list_max ? diff->mismatches : options->list_max;
        status = compare_listing(state, a, b, options, most, stream, diff);
    }
    return status;
}

/* --- functions of the module -------------------------------------------------------------- */

static PyObject *gpu_state(PyObject *module, PyObject *Py_UNUSED(ignored)) {
    const struct mu_cuda_driver *driver = mu_cuda_driver_get();
    struct mu_gpu *gpu = mu_gpu_get();
    struct mu_gpu_state found;
    char version[32] = "";
    if (gpu == NULL) {
        return PyErr_NoMemory();
    }
    mu_gpu_state_of(gpu, &found);
    if (found.nvrtc_major > 0) {
        snprintf(version, sizeof(version), "%d.%d", found.nvrtc_major, found.nvrtc_minor);
    }
    return Py_BuildValue(
        "{s:N,s:s,s:N,s:s,s:s,s:s,s:s,s:K,s:K,s:K}", "driver", PyBool_FromLong(driver->available),
        "driver_reason", driver->reason, "used",
        PyBool_FromLong(!mu_state_of(module)->gpu_kernels_off), "nvrtc", version, "nvrtc_path",
        found.nvrtc_path, "nvrtc_reason", found.nvrtc_reason, "cache", found.cache_folder,
        "compiled", (unsigned long long)found.compiled, "from_disk",
        (unsigned long long)found.from_disk, "loaded", (unsigned long long)found.loaded);
}

PyDoc_STRVAR(gpu_state_doc,
             "gpu_state($module)\n--\n\n"
             "What there is for tensors on a GPU: the driver and NVRTC, or why not; whether the\n"
             "kernels are used (False after a failure: then tensors are copied); the folder of\n"
             "compiled kernels, and how many were compiled, read from it, and loaded.");

/* A path, or NULL where it was not given; 0, or -1 with an exception. */
static int optional_path(PyObject *value, const char *name, PyObject **owned, const char **out) {
    *out = NULL;
    if (value == NULL || value == Py_None) {
        return 0;
    }
    if (mu_py_path(value, name, owned) < 0) {
        return -1;
    }
    *out = PyBytes_AS_STRING(*owned);
    return 0;
}

static PyObject *gpu_configure(PyObject *module, PyObject *const *args, Py_ssize_t count,
                               PyObject *keywords) {
    static const char *const names[] = {"nvrtc", "cache", NULL};
    static const struct mu_py_signature signature = {"gpu_configure", names, 0, 0};
    PyObject *given[2], *owned[2] = {NULL, NULL};
    const char *paths[2];
    struct mu_error err;
    int code = MU_OK;
    (void)module;
    int status = mu_py_bind(&signature, args, count, keywords, given);
    for (int i = 0; status == 0 && i < 2; i++) {
        status = optional_path(given[i], names[i], &owned[i], &paths[i]);
    }
    if (status == 0) {
        code = mu_gpu_configure(paths[0], paths[1], &err);
    }
    Py_XDECREF(owned[0]);
    Py_XDECREF(owned[1]);
    if (status < 0) {
        return NULL;
    }
    return code == MU_OK ? Py_NewRef(Py_None) : mu_py_raise(&err);
}

PyDoc_STRVAR(gpu_configure_doc,
             "gpu_configure($module, *, nvrtc=None, cache=None)\n--\n\n"
             "Says, before the first use of a GPU kernel, where libnvrtc is and in which folder\n"
             "compiled kernels are kept ('' for none). None leaves a path as it is. RuntimeError\n"
             "after that first use.");

/* The number of the kernel source of that name, or -1 with ValueError. */
static int source_of(PyObject *value) {
    struct mu_py_text text;
    if (mu_py_utf8(value, "program", &text) < 0) {
        return -1;
    }
    for (int source = 0; mu_gpu_source_name(source) != NULL; source++) {
        if (strcmp(mu_gpu_source_name(source), text.bytes) == 0) {
            return source;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "program must be 'hash', 'nan_inf', 'stats' or 'compare', not %R", value);
    return -1;
}

static int dtype_named(PyObject *value, const char *name, int *out) {
    struct mu_py_text text;
    *out = -1;
    if (value == NULL || value == Py_None) {
        return 0;
    }
    if (mu_py_utf8(value, name, &text) < 0) {
        return -1;
    }
    *out = mu_dtype_by_name(text.bytes);
    if (*out < 0) {
        PyErr_Format(PyExc_ValueError, "%s must be the name of a dtype, not %R", name, value);
        return -1;
    }
    return 0;
}

/* As many types as the source asks for. */
static int check_dtypes(const struct mu_gpu_program *program) {
    int wanted = program->source == MU_GPU_STATS ? 1 : program->source == MU_GPU_COMPARE ? 2 : 0;
    if ((program->a >= 0) + (program->b >= 0) != wanted || (program->b >= 0 && wanted < 2)) {
        PyErr_Format(PyExc_ValueError, "the program '%s' takes %d dtypes",
                     mu_gpu_source_name((int)program->source), wanted);
        return -1;
    }
    return 0;
}

static PyObject *compiled(const struct mu_gpu_program *program, int arch, int cubin) {
    struct mu_gpu *gpu = mu_gpu_get();
    struct mu_nvrtc_image image;
    struct mu_error err;
    PyObject *result = NULL;
    int code;
    if (gpu == NULL) {
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS;
    code = mu_gpu_compile(gpu, program, arch, cubin ? MU_NVRTC_CUBIN : MU_NVRTC_PTX, &image, &err);
    Py_END_ALLOW_THREADS;
    if (code == MU_OK) {
        result = Py_BuildValue("y#s", image.bytes, (Py_ssize_t)image.size, image.log);
    } else {
        mu_py_raise(&err);
    }
    mu_nvrtc_image_release(&image);
    return result;
}

static PyObject *gpu_compile(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords) {
    enum { PROGRAM, ARCH, A, B, CUBIN, ALL };
    static const char *const names[] = {"program", "arch", "a", "b", "cubin", NULL};
    static const struct mu_py_signature signature = {"gpu_compile", names, 2, 4};
    PyObject *given[ALL];
    int64_t arch;
    int cubin = 0;
    struct mu_gpu_program program;
    (void)module;
    if (mu_py_bind(&signature, args, count, keywords, given) < 0) {
        return NULL;
    }
    int source = source_of(given[PROGRAM]);
    if (source < 0 || mu_py_int64_in(given[ARCH], "arch", 50, 999, &arch) < 0 ||
        dtype_named(given[A], "a", &program.a) < 0 || dtype_named(given[B], "b", &program.b) < 0 ||
        (given[CUBIN] != NULL && mu_py_bool(given[CUBIN], "cubin", &cubin) < 0)) {
        return NULL;
    }
    program.source = (enum mu_gpu_source)source;
    return check_dtypes(&program) < 0 ? NULL : compiled(&program, (int)arch, cubin);
}

PyDoc_STRVAR(gpu_compile_doc,
             "gpu_compile($module, program, arch, a=None, b=None, *, cubin=False)\n--\n\n"
             "Compiles a GPU program by NVRTC, no GPU needed: the image as bytes, and the log.\n\n"
             "Args:\n"
             "    program: 'hash', 'nan_inf', 'stats' (of the dtype named `a`) or 'compare' (of\n"
             "        `a` and `b`).\n"
             "    arch: 90 for compute capability 9.0.\n"
             "    cubin: code for that GPU, with its registers in the log; else PTX.\n\n"
             "Raises RuntimeError without NVRTC, ValueError with its log for what does not\n"
             "compile.");

static PyMethodDef functions[] = {
    {"gpu_state", gpu_state, METH_NOARGS, gpu_state_doc},
    {"gpu_configure", (PyCFunction)(void (*)(void))gpu_configure, METH_FASTCALL | METH_KEYWORDS,
     gpu_configure_doc},
    {"gpu_compile", (PyCFunction)(void (*)(void))gpu_compile, METH_FASTCALL | METH_KEYWORDS,
     gpu_compile_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_gpu_kernels_exec(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
