/* Histograms of other ranks, added up. */
#include "args.h"
#include "histogram_sum.h"
#include "state.h"

enum { SUM, PLACES, USED, TOTALS, BUCKETS, COUNTS, ARGUMENTS };

static const char *const argument_names[] = {"sum",     "places", "used", "totals",
                                             "buckets", "counts", NULL};

/* The bytes of an element that each argument may have. */
static bool has_width(int argument, Py_ssize_t width) {
    switch (argument) {
    case BUCKETS:
        return width == 2;
    case COUNTS:
        return width == 1 || width == 2 || width == 4;
    default:
        return width == 8;
    }
}

static int take(PyObject *value, int argument, Py_buffer *view) {
    int flags = PyBUF_ND | (argument == SUM ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(value, view, flags) < 0) {
        return -1;
    }
    if (!has_width(argument, view->itemsize)) {
        PyErr_Format(PyExc_TypeError, "%s cannot have elements of %zd bytes",
                     argument_names[argument], view->itemsize);
        PyBuffer_Release(view);
        return -1;
    }
    return 0;
}

static size_t length(const Py_buffer *view) {
    return (size_t)(view->len / view->itemsize);
}

/* Adds them where they agree; -1 with an exception, else whether they did. */
static int add(const Py_buffer *views) {
    size_t count = length(&views[PLACES]);
    struct mu_sparse_histograms from = {
        .count = count,
        .places = views[PLACES].buf,
        .used = views[USED].buf,
        .totals = views[TOTALS].buf,
        .buckets_count = length(&views[BUCKETS]),
        .buckets = views[BUCKETS].buf,
        .counts = views[COUNTS].buf,
        .width = (unsigned)views[COUNTS].itemsize,
    };
    if (length(&views[USED]) != count || length(&views[TOTALS]) != count ||
        length(&views[COUNTS]) != from.buckets_count ||
        length(&views[SUM]) % MU_HISTOGRAM_BUCKETS != 0) {
        PyErr_SetString(PyExc_ValueError, "the arguments' lengths do not agree");
        return -1;
    }
    if (!mu_sparse_histograms_agree(&from, length(&views[SUM]) / MU_HISTOGRAM_BUCKETS)) {
        return 0;
    }
    mu_sparse_histograms_add(&from, views[SUM].buf);
    return 1;
}

static PyObject *add_histograms(PyObject *Py_UNUSED(module), PyObject *const *args,
                                Py_ssize_t count, PyObject *keywords) {
    static const struct mu_py_signature signature = {"add_histograms", argument_names, ARGUMENTS,
                                                     ARGUMENTS};
    PyObject *values[ARGUMENTS];
    Py_buffer views[ARGUMENTS];
    int taken = 0;
    if (mu_py_bind(&signature, args, count, keywords, values) < 0) {
        return NULL;
    }
    while (taken < ARGUMENTS && take(values[taken], taken, &views[taken]) == 0) {
        taken++;
    }
    int agreed = taken == ARGUMENTS ? add(views) : -1;
    while (taken > 0) {
        PyBuffer_Release(&views[--taken]);
    }
    return agreed < 0 ? NULL : PyBool_FromLong(agreed);
}

PyDoc_STRVAR(add_doc,
             "add_histograms(sum, places, used, totals, buckets, counts)\n--\n\n"
             "Adds histograms of which only the buckets in use are there, in order, to rows of\n"
             "2,880 int64 in `sum`. For each: which row, how many buckets it has, and what its\n"
             "counts sum up to (int64); `buckets` (uint16) and `counts` (uint8, 16 or 32) hold\n"
             "those of all. False, with nothing added, where these do not agree. TypeError and\n"
             "ValueError for buffers of the wrong kind or length.");

static PyMethodDef functions[] = {
    {"add_histograms", (PyCFunction)(void (*)(void))add_histograms, METH_FASTCALL | METH_KEYWORDS,
     add_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_histograms_exec(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
