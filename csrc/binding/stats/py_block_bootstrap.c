/* Trimmed means of steps, and draws of them. */
#include "core/args.h"
#include "core/state.h"
#include "stats/block_bootstrap.h"

enum { DRAWS_MAX = 1000000 };

/* `view` is the caller's to release where 0 is returned. */
static int take_rows(PyObject *values, PyObject *trimmed, Py_buffer *view,
                     struct mu_step_rows *rows) {
    int64_t left_out;
    if (mu_py_int64_in(trimmed, "trimmed", 0, UINT32_MAX, &left_out) < 0 ||
        PyObject_GetBuffer(values, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
        return -1;
    }
    if (view->ndim != 2 || view->itemsize != 8 || strcmp(view->format, "d") != 0) {
        PyErr_Format(PyExc_TypeError,
                     "values must have two dimensions of float64, steps and figures, not %d of %s",
                     view->ndim, view->format);
        PyBuffer_Release(view);
        return -1;
    }
    *rows = (struct mu_step_rows){
        .values = view->buf,
        .steps = (size_t)view->shape[0],
        .figures = (size_t)view->shape[1],
        .trimmed = (size_t)left_out,
    };
    return 0;
}

/* Room for so many rows of figures. */
static PyObject *new_figures(const struct mu_step_rows *rows, size_t count) {
    if (rows->figures > (size_t)PY_SSIZE_T_MAX / sizeof(double) / count) {
        return PyErr_NoMemory();
    }
    return PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * rows->figures * sizeof(double)));
}

static PyObject *result_of(int code, PyObject *found, const struct mu_error *err) {
    if (code != MU_OK) {
        Py_DECREF(found);
        return mu_py_raise(err);
    }
    return found;
}

static PyObject *trimmed_means(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count,
                               PyObject *keywords) {
    static const char *const names[] = {"values", "trimmed", NULL};
    static const struct mu_py_signature signature = {"trimmed_means", names, 2, 2};
    PyObject *given[2];
    Py_buffer view;
    struct mu_step_rows rows;
    if (mu_py_bind(&signature, args, count, keywords, given) < 0 ||
        take_rows(given[0], given[1], &view, &rows) < 0) {
        return NULL;
    }
    struct mu_error err;
    PyObject *found = new_figures(&rows, 1);
    if (found != NULL) {
        int code;
        Py_BEGIN_ALLOW_THREADS code =
            mu_trimmed_means(&rows, (double *)PyBytes_AS_STRING(found), &err);
        Py_END_ALLOW_THREADS found = result_of(code, found, &err);
    }
    PyBuffer_Release(&view);
    return found;
}

static int take_draws(PyObject *const *given, struct mu_draws *draws) {
    int64_t block, count, seed = 0;
    if (mu_py_int64_in(given[0], "block", 1, UINT32_MAX, &block) < 0 ||
        mu_py_int64_in(given[1], "count", 1, DRAWS_MAX, &count) < 0 ||
        (given[2] != NULL && mu_py_int64_in(given[2], "seed", 0, INT64_MAX, &seed) < 0)) {
        return -1;
    }
    *draws = (struct mu_draws){(size_t)block, (size_t)count, (uint64_t)seed};
    return 0;
}

static PyObject *block_bootstrap(PyObject *Py_UNUSED(module), PyObject *const *args,
                                 Py_ssize_t count, PyObject *keywords) {
    static const char *const names[] = {"values", "trimmed", "block", "count", "seed", NULL};
    static const struct mu_py_signature signature = {"block_bootstrap", names, 4, 4};
    PyObject *given[5];
    Py_buffer view;
    struct mu_step_rows rows;
    struct mu_draws draws;
    if (mu_py_bind(&signature, args, count, keywords, given) < 0 ||
        take_draws(given + 2, &draws) < 0 || take_rows(given[0], given[1], &view, &rows) < 0) {
        return NULL;
    }
    struct mu_error err;
    PyObject *found = new_figures(&rows, draws.count);
    if (found != NULL) {
        int code;
        Py_BEGIN_ALLOW_THREADS code =
            mu_block_bootstrap(&rows, &draws, (double *)PyBytes_AS_STRING(found), &err);
        Py_END_ALLOW_THREADS found = result_of(code, found, &err);
    }
    PyBuffer_Release(&view);
    return found;
}

PyDoc_STRVAR(means_doc,
             "trimmed_means(values, trimmed)\n--\n\n"
             "The mean of each figure over the steps that are kept, as float64. values: an array\n"
             "of steps and figures (float64); the first figure says which steps are left out,\n"
             "`trimmed` at each end. TypeError for an array of another kind, ValueError where no\n"
             "step is left or a figure is not finite.");
PyDoc_STRVAR(bootstrap_doc,
             "block_bootstrap(values, trimmed, block, count, *, seed=0)\n--\n\n"
             "The trimmed means of `count` draws, as float64, one draw after the other. A draw\n"
             "has as many steps as there are, in blocks of `block` steps that begin anywhere and\n"
             "go on at the first step after the last. values, trimmed: as of trimmed_means.");

static PyMethodDef functions[] = {
    {"trimmed_means", (PyCFunction)(void (*)(void))trimmed_means, METH_FASTCALL | METH_KEYWORDS,
     means_doc},
    {"block_bootstrap", (PyCFunction)(void (*)(void))block_bootstrap, METH_FASTCALL | METH_KEYWORDS,
     bootstrap_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_block_bootstrap_exec(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
