#include "run/py_gpu_marks.h"

#include "core/args.h"
#include "cuda/cuda_axis.h"

enum { NS_IN_US = 1000, RESOLUTION_NS = 2 * MU_CUDA_EVENT_RESOLUTION_NS };

int mu_py_gpu_marks_init(struct mu_py_gpu_marks *marks, Py_ssize_t count) {
    marks->spans = PyMem_Calloc((size_t)count, sizeof(*marks->spans));
    if (marks->spans == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    marks->count = count;
    return 0;
}

void mu_py_gpu_marks_begin(struct mu_py_gpu_marks *marks, struct mu_cuda_pool *live) {
    for (Py_ssize_t i = 0; i < marks->count; i++) {
        if (marks->pool == live) {
            mu_cuda_span_cancel(live, marks->spans[i]);
        }
        marks->spans[i] = 0;
    }
    marks->pool = live;
}

void mu_py_gpu_marks_free(struct mu_py_gpu_marks *marks, struct mu_cuda_pool *live) {
    mu_py_gpu_marks_begin(marks, live);
    PyMem_Free(marks->spans);
    *marks = (struct mu_py_gpu_marks){0};
}

void mu_py_gpu_marks_set(struct mu_py_gpu_marks *marks, Py_ssize_t at) {
    mu_cuda_span_cancel(marks->pool, marks->spans[at]);
    marks->spans[at] = mu_cuda_span_begin(marks->pool);
    mu_cuda_span_end(marks->pool, marks->spans[at]);
}

static bool is_decided(const struct mu_py_gpu_marks *marks) {
    struct mu_cuda_times times;
    for (Py_ssize_t i = 0; i < marks->count; i++) {
        if (mu_cuda_span_poll(marks->pool, marks->spans[i], &times) == MU_CUDA_SPAN_PENDING) {
            return false;
        }
    }
    return true;
}

/* The mark whose place on the host's clock is known best; false: none is. */
static bool find_best(const struct mu_py_gpu_marks *marks, struct mu_cuda_times *best) {
    struct mu_cuda_times times;
    bool found = false;
    for (Py_ssize_t i = 0; i < marks->count; i++) {
        if (mu_cuda_span_poll(marks->pool, marks->spans[i], &times) == MU_CUDA_SPAN_READY &&
            (!found || times.error_ns < best->error_ns)) {
            *best = times;
            found = true;
        }
    }
    return found;
}

/* By the GPU's clock from the best mark on, so that distances are right whenever each was seen. A
 * mark of another device has its own place. */
static PyObject *time_of(const struct mu_py_gpu_marks *marks, Py_ssize_t at, int64_t origin_ns,
                         const struct mu_cuda_times *best, int64_t *error_ns) {
    struct mu_cuda_times times;
    if (mu_cuda_span_poll(marks->pool, marks->spans[at], &times) != MU_CUDA_SPAN_READY) {
        Py_RETURN_NONE;
    }
    bool same = times.device == best->device;
    int64_t apart_ns = same ? times.device_ns - best->device_ns : 0;
    int64_t at_ns = same ? best->start_ns + apart_ns : times.start_ns;
    int64_t error =
        same ? best->error_ns + mu_cuda_drift_ns(apart_ns) + RESOLUTION_NS : times.error_ns;
    *error_ns = error > *error_ns ? error : *error_ns;
    int64_t after_ns = at_ns > origin_ns ? at_ns - origin_ns : 0; /* not before it was asked to */
    return PyLong_FromLongLong(after_ns / NS_IN_US);
}

PyObject *mu_py_gpu_marks_read(struct mu_py_gpu_marks *marks, struct mu_cuda_pool *live,
                               int64_t origin_ns) {
    bool is_there = marks->pool == live;
    if (is_there && !is_decided(marks)) {
        Py_RETURN_NONE;
    }
    int64_t error_ns = 0;
    struct mu_cuda_times best = {0};
    bool is_known = is_there && find_best(marks, &best);
    PyObject *times = PyList_New(0);
    for (Py_ssize_t i = 0; times != NULL && is_known && i < marks->count; i++) {
        if (mu_py_append_new(times, time_of(marks, i, origin_ns, &best, &error_ns)) < 0) {
            Py_CLEAR(times);
        }
    }
    mu_py_gpu_marks_begin(marks, live);
    return times == NULL
               ? NULL
               : Py_BuildValue("(NL)", times, (long long)((error_ns + NS_IN_US - 1) / NS_IN_US));
}
