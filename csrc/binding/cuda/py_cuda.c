/* GPU times from Python: finds the driver and torch's streams, and reports what failed. */
#include "cuda/py_cuda.h"

#include <limits.h>
#include <stdio.h>

#include "core/args.h"
#include "core/warnings.h"
#include "cuda/cuda_profiler.h"

/* Called in the middle of a stage's start, with the GIL and a CUDA context of the thread's own. No
 * Python runs there: who starts the stage has looked for torch. */
int mu_py_cuda_stream(void *owner, int32_t device, void **stream) {
    struct mu_state *state = owner;
    const struct mu_dlpack_exchange *table = state->exchange.table;
    if (table == NULL || table->current_work_stream == NULL ||
        table->current_work_stream(MU_DLPACK_CUDA, device, stream) != 0) {
        PyErr_Clear();
        return -1;
    }
    return 0;
}

/* --- the pool ----------------------------------------------------------------------------- */

int mu_py_cuda_use(struct mu_state *state) {
    const struct mu_cuda_driver *driver = mu_cuda_driver_get();
    if (!driver->available) {
        char message[256];
        snprintf(message, sizeof(message),
                 "use_cuda=True, but there is no CUDA driver (%.160s); stages have CPU times only",
                 driver->reason);
        mu_py_warn(state, "cuda_unavailable", message);
        return 0;
    }
    struct mu_cuda_pool_options options = {
        .driver = driver, .current_stream = mu_py_cuda_stream, .stream_owner = state};
    struct mu_error err = {0};
    int code = mu_recorder_use_gpu(state->recorder, &options, &err);
    if (code == MU_ERR_NO_MEMORY) {
        mu_py_warn(state, "cuda_memory",
                   "there is no memory for GPU times; stages have CPU times only");
    } else if (code != MU_OK) {
        mu_py_raise(&err);
        return -1;
    }
    return 0;
}

enum cuda_trouble {
    TROUBLE_ERROR = 1,
    TROUBLE_LATE = 2,
    TROUBLE_EMPTY = 4,
    TROUBLE_NO_STREAM = 8,
};

static bool report_once(struct mu_state *state, enum cuda_trouble trouble, bool happened) {
    return happened && (atomic_fetch_or(&state->reported_cuda, trouble) & trouble) == 0;
}

void mu_py_report_cuda(struct mu_state *state) {
    struct mu_recorder *recorder = state->recorder;
    struct mu_cuda_pool *pool = recorder == NULL ? NULL : recorder->gpu;
    struct mu_cuda_stats stats;
    if (pool == NULL) {
        return;
    }
    mu_cuda_pool_stats(pool, &stats);
    if (report_once(state, TROUBLE_ERROR, stats.errors > 0)) {
        char message[256];
        snprintf(message, sizeof(message),
                 "%s failed with %s (%d); stages of this CUDA context have CPU times only from "
                 "now on",
                 stats.first_call, mu_cuda_error_name(mu_cuda_driver_get(), stats.first_error),
                 stats.first_error);
        mu_py_warn(state, "cuda_error", message);
    }
    if (report_once(state, TROUBLE_NO_STREAM, stats.no_stream > 0)) {
        mu_py_warn(state, "cuda_no_stream",
                   "torch's current CUDA stream is not known: torch is not imported, or older than "
                   "2.10; stages have CPU times only");
    }
    if (report_once(state, TROUBLE_LATE, stats.late > 0)) {
        mu_py_warn(state, "cuda_late",
                   "GPU times were not ready 64 steps after their stage and were left out; the "
                   "GPU is far behind (step() with wait=True keeps it close)");
    }
    if (report_once(state, TROUBLE_EMPTY, stats.exhausted > 0)) {
        mu_py_warn(state, "cuda_pool_empty",
                   "more stages wait for their GPU times than the pool has events for; the others "
                   "have CPU times only (call step() more often, or narrow cuda_stages)");
    }
}

/* --- functions of the module -------------------------------------------------------------- */

static PyObject *cuda_state(PyObject *module, PyObject *Py_UNUSED(ignored)) {
    const struct mu_cuda_driver *driver = mu_cuda_driver_get();
    struct mu_state *state = mu_state_of(module);
    struct mu_recorder *recorder = state->recorder;
    struct mu_cuda_stats stats = {0};
    if (recorder != NULL) {
        mu_recorder_check_fork(recorder);
        mu_cuda_pool_stats(recorder->gpu, &stats);
    }
    return Py_BuildValue(
        "{s:N,s:s,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:s}", "available",
        PyBool_FromLong(driver->available), "reason", driver->reason, "spans",
        (unsigned long long)stats.spans, "pool_empty", (unsigned long long)stats.exhausted,
        "no_stream", (unsigned long long)stats.no_stream, "captured",
        (unsigned long long)stats.captured, "late", (unsigned long long)stats.late, "failed",
        (unsigned long long)stats.failed, "errors", (unsigned long long)stats.errors, "axis_resets",
        (unsigned long long)stats.axis_resets, "error",
        stats.first_error == 0 ? "" : mu_cuda_error_name(driver, stats.first_error));
}

PyDoc_STRVAR(
    cuda_state_doc,
    "cuda_state($module)\n--\n\n"
    "What became of GPU times: whether there is a driver and why not, and counts of\n"
    "spans begun, not begun (pool_empty, no_stream, captured), released too early (late), lost to\n"
    "an error (failed), and of errors; `error` names the first one.");

PyDoc_STRVAR(
    cuda_profiler_doc,
    "cuda_profiler($module, start, wait, device=-1)\n--\n\n"
    "Starts or stops the profiler that watches this process, as cudaProfilerStart and Stop do.\n\n"
    "start: False to stop. wait: for the GPU first. device: whose context serves a thread that "
    "has\n"
    "none; -1 for no device. Returns whether there is a driver and a context, without which "
    "nothing\n"
    "is done. RuntimeError names the call of the driver that failed.");

static PyObject *cuda_profiler(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count,
                               PyObject *keywords) {
    static const char *const names[] = {"start", "wait", "device", NULL};
    static const struct mu_py_signature signature = {"cuda_profiler", names, 2, 3};
    PyObject *values[3];
    int start, wait, code;
    int64_t device = MU_CUDA_NO_DEVICE;
    bool reached;
    struct mu_error err = {0};
    if (mu_py_bind(&signature, args, count, keywords, values) < 0 ||
        mu_py_bool(values[0], "start", &start) < 0 || mu_py_bool(values[1], "wait", &wait) < 0 ||
        (values[2] != NULL &&
         mu_py_int64_in(values[2], "device", MU_CUDA_NO_DEVICE, INT_MAX, &device) < 0)) {
        return NULL;
    }
    const struct mu_cuda_driver *driver = mu_cuda_driver_get();
    Py_BEGIN_ALLOW_THREADS;
    code = mu_cuda_profiler(driver, start != 0, wait != 0, (int)device, &reached, &err);
    Py_END_ALLOW_THREADS;
    return code == MU_OK ? PyBool_FromLong(reached) : mu_py_raise(&err);
}

static PyMethodDef functions[] = {
    {"cuda_profiler", (PyCFunction)(void (*)(void))cuda_profiler, METH_FASTCALL | METH_KEYWORDS,
     cuda_profiler_doc},
    {"cuda_state", cuda_state, METH_NOARGS, cuda_state_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_cuda_exec(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
