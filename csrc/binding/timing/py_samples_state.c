/* The durations of one name as plain values of Python, for pickles, and back. */
#include "timing/py_time.h"

#include <stdlib.h>
#include <string.h>

#include "core/args.h"
#include "timing/packed_histogram.h"

#define LOAD(field) atomic_load_explicit(&(field), memory_order_relaxed)
#define STORE(field, value) atomic_store_explicit(&(field), (value), memory_order_relaxed)

/* --- as values ------------------------------------------------------------------------------ */

PyObject *mu_py_packed_histogram(const struct mu_aggregate *aggregate, size_t used) {
    PyObject *packed = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(used * MU_PACKED_BUCKET_MAX));
    if (packed != NULL) {
        size_t size = mu_histogram_pack(aggregate, PyBytes_AS_STRING(packed));
        _PyBytes_Resize(&packed, (Py_ssize_t)size);
    }
    return packed;
}

static PyObject *rest_state(const struct mu_aggregate *rest) {
    if (rest == NULL || LOAD(rest->count) == 0) {
        Py_RETURN_NONE;
    }
    size_t used = mu_histogram_used(rest);
    PyObject *packed = mu_py_packed_histogram(rest, used);
    if (packed == NULL) {
        return NULL;
    }
    return Py_BuildValue("(KKKKKdnN)", (unsigned long long)LOAD(rest->count),
                         (unsigned long long)LOAD(rest->sum), (unsigned long long)LOAD(rest->min),
                         (unsigned long long)LOAD(rest->max), (unsigned long long)LOAD(rest->shift),
                         LOAD(rest->sum_squares), (Py_ssize_t)used, packed);
}

PyObject *mu_py_samples_state(const struct mu_samples *samples) {
    PyObject *rest = rest_state(samples->rest);
    PyObject *kept = PyBytes_FromStringAndSize((const char *)samples->ns,
                                               (Py_ssize_t)(samples->count * sizeof(uint64_t)));
    if (rest == NULL || kept == NULL) {
        Py_XDECREF(rest);
        Py_XDECREF(kept);
        return NULL;
    }
    return Py_BuildValue("(NN)", kept, rest);
}

/* --- and back ------------------------------------------------------------------------------- */

static int refuse(const char *why) {
    PyErr_Format(PyExc_ValueError, "state is not that of durations: %s", why);
    return -1;
}

/* `rows` is of one histogram, whose counts fit. */
static int fill_buckets(struct mu_aggregate *into, const struct mu_packed_histograms *from) {
    int64_t *rows = calloc(MU_HISTOGRAM_BUCKETS, sizeof(*rows));
    if (rows == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    mu_packed_histograms_add(from, rows);
    for (int i = 0; i < MU_HISTOGRAM_BUCKETS; i++) {
        STORE(into->buckets[i], (uint32_t)rows[i]);
    }
    free(rows);
    return 0;
}

/* What is read must be what durations could have left behind. */
static int read_rest(PyObject *state, struct mu_aggregate *into) {
    unsigned long long count, sum, min, max, shift;
    double squares;
    Py_ssize_t used, size;
    const char *packed;
    if (!PyTuple_Check(state)) {
        return refuse("its rest is not a tuple");
    }
    if (!PyArg_ParseTuple(state, "KKKKKdny#", &count, &sum, &min, &max, &shift, &squares, &used,
                          &packed, &size)) {
        return -1;
    }
    if (count == 0 || count > INT64_MAX || min > max || max > sum || !(squares >= 0) ||
        squares > 1e300) {
        return refuse("its figures do not agree");
    }
    int64_t place = 0, buckets = used, total = (int64_t)count;
    struct mu_packed_histograms from = {
        1, &place, &buckets, &total, (const unsigned char *)packed, (size_t)size,
    };
    if (!mu_packed_histograms_agree(&from, 1)) {
        return refuse("its histogram does not agree with the count");
    }
    mu_aggregate_init(into);
    STORE(into->count, count);
    STORE(into->sum, sum);
    STORE(into->min, min);
    STORE(into->max, max);
    STORE(into->shift, shift);
    STORE(into->sum_squares, squares);
    return fill_buckets(into, &from);
}

static int add_kept(struct mu_samples *into, const struct mu_samples *from) {
    struct mu_error err;
    if (mu_samples_merge(into, from, &err) != MU_OK) {
        mu_py_raise(&err);
        return -1;
    }
    return 0;
}

static int add_with_rest(struct mu_samples *into, struct mu_samples *from, PyObject *rest) {
    from->rest = malloc(sizeof(*from->rest));
    if (from->rest == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int rc = read_rest(rest, from->rest);
    if (rc == 0) {
        rc = add_kept(into, from);
    }
    free(from->rest);
    return rc;
}

int mu_py_samples_restore(struct mu_samples *into, PyObject *state) {
    const char *kept;
    Py_ssize_t size;
    PyObject *rest;
    if (!PyTuple_Check(state)) {
        return refuse("it is not a tuple");
    }
    if (!PyArg_ParseTuple(state, "y#O", &kept, &size, &rest)) {
        return -1;
    }
    if (size % (Py_ssize_t)sizeof(uint64_t) != 0) {
        return refuse("the durations are cut");
    }
    size_t count = (size_t)size / sizeof(uint64_t);
    uint64_t *ns = malloc(size > 0 ? (size_t)size : 1); /* a copy: bytes need not be aligned */
    if (ns == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(ns, kept, (size_t)size);
    struct mu_samples from = {.ns = ns, .count = count, .allocated = count, .limit = count};
    int rc = rest == Py_None ? add_kept(into, &from) : add_with_rest(into, &from, rest);
    free(ns);
    return rc;
}
