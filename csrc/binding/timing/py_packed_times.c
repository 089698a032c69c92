/* Times of other ranks: histograms added up, durations as codes and back. */
#include "core/args.h"
#include "core/state.h"
#include "timing/duration_codes.h"
#include "timing/packed_histogram.h"

enum { BUFFERS_MAX = 5 };

/* What one argument must be: a contiguous buffer of elements of `width` bytes. */
struct wanted {
    Py_ssize_t width;
    int flags;
};

struct buffers {
    Py_buffer views[BUFFERS_MAX];
    int taken;
};

static void release(struct buffers *buffers) {
    while (buffers->taken > 0) {
        PyBuffer_Release(&buffers->views[--buffers->taken]);
    }
}

static int take_one(PyObject *value, const char *name, const struct wanted *wanted,
                    struct buffers *buffers) {
    Py_buffer *view = &buffers->views[buffers->taken];
    if (PyObject_GetBuffer(value, view, PyBUF_ND | wanted->flags) < 0) {
        return -1;
    }
    buffers->taken++;
    if (view->itemsize != wanted->width) {
        PyErr_Format(PyExc_TypeError, "%s must have elements of %zd bytes, not %zd", name,
                     wanted->width, view->itemsize);
        return -1;
    }
    return 0;
}

/* Calls `with` with the views of all arguments. */
static PyObject *call(const struct mu_py_signature *signature, const struct wanted *wanted,
                      PyObject *(*with)(const Py_buffer *views), PyObject *const *args,
                      Py_ssize_t count, PyObject *keywords) {
    PyObject *values[BUFFERS_MAX];
    struct buffers buffers = {.taken = 0};
    if (mu_py_bind(signature, args, count, keywords, values) < 0) {
        return NULL;
    }
    for (int i = 0; i < signature->required; i++) {
        if (take_one(values[i], signature->names[i], &wanted[i], &buffers) < 0) {
            release(&buffers);
            return NULL;
        }
    }
    PyObject *result = with(buffers.views);
    release(&buffers);
    return result;
}

static size_t length(const Py_buffer *view) {
    return (size_t)(view->len / view->itemsize);
}

static PyObject *different_lengths(void) {
    PyErr_SetString(PyExc_ValueError, "the arguments' lengths do not agree");
    return NULL;
}

/* --- histograms ----------------------------------------------------------------------------- */

static PyObject *add(const Py_buffer *views) {
    const Py_buffer *sum = &views[0], *places = &views[1], *used = &views[2];
    const Py_buffer *totals = &views[3], *packed = &views[4];
    struct mu_packed_histograms from = {
        .count = length(places),
        .places = places->buf,
        .used = used->buf,
        .totals = totals->buf,
        .bytes = packed->buf,
        .size = (size_t)packed->len,
    };
    if (length(used) != from.count || length(totals) != from.count ||
        length(sum) % MU_HISTOGRAM_BUCKETS != 0) {
        return different_lengths();
    }
    bool agree = mu_packed_histograms_agree(&from, length(sum) / MU_HISTOGRAM_BUCKETS);
    if (agree) {
        mu_packed_histograms_add(&from, sum->buf);
    }
    return PyBool_FromLong(agree);
}

static PyObject *add_histograms(PyObject *Py_UNUSED(module), PyObject *const *args,
                                Py_ssize_t count, PyObject *keywords) {
    static const struct wanted wanted[] = {{8, PyBUF_WRITABLE}, {8, 0}, {8, 0}, {8, 0}, {1, 0}};
    static const char *const names[] = {"sum", "places", "used", "totals", "packed", NULL};
    static const struct mu_py_signature signature = {"add_histograms", names, 5, 5};
    return call(&signature, wanted, add, args, count, keywords);
}

static PyObject *buckets(const Py_buffer *views) {
    size_t count = length(&views[0]);
    const int64_t *ns = views[0].buf;
    PyObject *found = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(int64_t)));
    int64_t *out = found == NULL ? NULL : (int64_t *)PyBytes_AS_STRING(found);
    for (size_t i = 0; out != NULL && i < count; i++) {
        out[i] = mu_histogram_bucket(ns[i] < 0 ? 0 : (uint64_t)ns[i]);
    }
    return found;
}

static PyObject *histogram_buckets(PyObject *Py_UNUSED(module), PyObject *const *args,
                                   Py_ssize_t count, PyObject *keywords) {
    static const struct wanted wanted[] = {{8, 0}};
    static const char *const names[] = {"ns", NULL};
    static const struct mu_py_signature signature = {"histogram_buckets", names, 1, 1};
    return call(&signature, wanted, buckets, args, count, keywords);
}

static PyObject *histogram_middles(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    double middles[MU_HISTOGRAM_BUCKETS];
    for (unsigned bucket = 0; bucket < MU_HISTOGRAM_BUCKETS; bucket++) {
        middles[bucket] = mu_histogram_bucket_middle(bucket);
    }
    return PyBytes_FromStringAndSize((const char *)middles, sizeof(middles));
}

/* --- durations ------------------------------------------------------------------------------ */

/* The other arguments of both directions. */
static struct mu_coded_names names_of(const Py_buffer *views) {
    return (struct mu_coded_names){
        .count = length(&views[1]),
        .values = views[1].buf,
        .shortest = views[2].buf,
        .longest = views[3].buf,
    };
}

static bool lengths_agree(const Py_buffer *views) {
    return length(&views[2]) == length(&views[1]) && length(&views[3]) == length(&views[1]);
}

static PyObject *encode(const Py_buffer *views) {
    struct mu_coded_names names = names_of(views);
    size_t total = length(&views[0]);
    if (!lengths_agree(views) || !mu_coded_names_agree(&names, total)) {
        return different_lengths();
    }
    PyObject *codes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(total * sizeof(uint16_t)));
    if (codes != NULL &&
        !mu_durations_encode(&names, views[0].buf, (uint16_t *)PyBytes_AS_STRING(codes))) {
        Py_CLEAR(codes);
        PyErr_SetString(PyExc_ValueError, "a duration is not between the shortest and the longest");
    }
    return codes;
}

static PyObject *decode(const Py_buffer *views) {
    struct mu_coded_names names = names_of(views);
    size_t total = length(&views[0]);
    if (!lengths_agree(views)) {
        return different_lengths();
    }
    if (!mu_coded_names_agree(&names, total)) {
        Py_RETURN_NONE;
    }
    PyObject *ns = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(total * sizeof(double)));
    if (ns != NULL && !mu_durations_decode(&names, views[0].buf, (double *)PyBytes_AS_STRING(ns))) {
        Py_DECREF(ns);
        Py_RETURN_NONE;
    }
    return ns;
}

static PyObject *encode_durations(PyObject *Py_UNUSED(module), PyObject *const *args,
                                  Py_ssize_t count, PyObject *keywords) {
    static const struct wanted wanted[] = {{8, 0}, {8, 0}, {8, 0}, {8, 0}};
    static const char *const names[] = {"ns", "values", "shortest", "longest", NULL};
    static const struct mu_py_signature signature = {"encode_durations", names, 4, 4};
    return call(&signature, wanted, encode, args, count, keywords);
}

static PyObject *decode_durations(PyObject *Py_UNUSED(module), PyObject *const *args,
                                  Py_ssize_t count, PyObject *keywords) {
    static const struct wanted wanted[] = {{2, 0}, {8, 0}, {8, 0}, {8, 0}};
    static const char *const names[] = {"codes", "values", "shortest", "longest", NULL};
    static const struct mu_py_signature signature = {"decode_durations", names, 4, 4};
    return call(&signature, wanted, decode, args, count, keywords);
}

PyDoc_STRVAR(
    add_doc,
    "add_histograms(sum, places, used, totals, packed)\n--\n\n"
    "Adds histograms as TimeRecorder.summary packs them, one after the other in `packed`,\n"
    "to rows of 2,880 int64 in `sum`. For each (int64): which row, how many buckets it\n"
    "has, and what its counts sum up to. False, with nothing added, where these do not\n"
    "agree. TypeError and ValueError for buffers of the wrong kind or length.");
PyDoc_STRVAR(buckets_doc,
             "histogram_buckets(ns)\n--\n\n"
             "The bucket of the histograms that each duration (int64) falls into, as int64.\n"
             "TypeError for a buffer of the wrong kind.");
PyDoc_STRVAR(middles_doc,
             "histogram_middles()\n--\n\n"
             "What stands for the durations of each bucket, in ns as float64: within 0.8 % of\n"
             "each of them.");
PyDoc_STRVAR(encode_doc,
             "encode_durations(ns, values, shortest, longest)\n--\n\n"
             "Durations (int64) as codes of two bytes each. For each name (int64): how many of\n"
             "them are its, the shortest and the longest. ValueError where these do not agree,\n"
             "TypeError for buffers of the wrong kind.");
PyDoc_STRVAR(decode_doc,
             "decode_durations(codes, values, shortest, longest)\n--\n\n"
             "What encode_durations made codes (uint16) of, as float64: exact where the name's\n"
             "are less than 65.5 us apart, never off by more than 1 part in 2,048. None where the\n"
             "parts do not agree. TypeError and ValueError for buffers of the wrong kind or\n"
             "length.");

static PyMethodDef functions[] = {
    {"add_histograms", (PyCFunction)(void (*)(void))add_histograms, METH_FASTCALL | METH_KEYWORDS,
     add_doc},
    {"histogram_buckets", (PyCFunction)(void (*)(void))histogram_buckets,
     METH_FASTCALL | METH_KEYWORDS, buckets_doc},
    {"histogram_middles", histogram_middles, METH_NOARGS, middles_doc},
    {"encode_durations", (PyCFunction)(void (*)(void))encode_durations,
     METH_FASTCALL | METH_KEYWORDS, encode_doc},
    {"decode_durations", (PyCFunction)(void (*)(void))decode_durations,
     METH_FASTCALL | METH_KEYWORDS, decode_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_packed_times_exec(PyObject *module) {
    if (PyModule_AddIntConstant(module, "HISTOGRAM_BUCKETS", MU_HISTOGRAM_BUCKETS) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
