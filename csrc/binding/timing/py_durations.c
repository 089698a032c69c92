/* Durations: those of one stage, and their figures. */
#include "core/args.h"
#include "core/free_threading.h"
#include "core/heap_types.h"
#include "core/state.h"
#include "timing/duration_figures.h"

enum { EXACT_MAX = 131072 }; /* kept one by one; 1 MiB */

struct durations {
    PyObject_HEAD struct mu_samples samples;
};

static PyObject *durations_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Durations", names)) {
        return NULL;
    }
    struct durations *self = (struct durations *)type->tp_alloc(type, 0);
    if (self != NULL) {
        mu_samples_init(&self->samples, EXACT_MAX);
    }
    return (PyObject *)self;
}

static void durations_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    mu_samples_free(&((struct durations *)object)->samples);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *none_unless_lost(struct mu_samples *samples) {
    if (samples->lost > 0) {
        samples->lost = 0;
        return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

static PyObject *add(PyObject *object, PyObject *argument) {
    struct mu_samples *samples = &((struct durations *)object)->samples;
    int64_t ns;
    if (mu_py_int64_in(argument, "ns", 0, INT64_MAX, &ns) < 0) {
        return NULL;
    }
    mu_samples_add(samples, (uint64_t)ns);
    return none_unless_lost(samples);
}

static PyObject *merge_locked(PyObject *object, PyObject *argument) {
    struct mu_samples *samples = &((struct durations *)object)->samples;
    struct mu_error err;
    if (mu_samples_merge(samples, &((struct durations *)argument)->samples, &err) != MU_OK) {
        return mu_py_raise(&err);
    }
    return none_unless_lost(samples);
}

static PyObject *merge(PyObject *object, PyObject *argument) {
    PyObject *result;
    if (!Py_IS_TYPE(argument, Py_TYPE(object))) {
        return PyErr_Format(PyExc_TypeError, "other must be Durations, not %.100s (%.200R)",
                            Py_TYPE(argument)->tp_name, argument);
    }
    MU_BEGIN_SECTION2(object, argument);
    result = merge_locked(object, argument);
    MU_END_SECTION2();
    return result;
}

static PyObject *figures(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct mu_duration_figures found;
    struct mu_error err;
    if (mu_duration_figures(&((struct durations *)object)->samples, &found, &err) != MU_OK) {
        return mu_py_raise(&err);
    }
    return Py_BuildValue("(KKKKdddd)", (unsigned long long)found.count,
                         (unsigned long long)found.sum, (unsigned long long)found.min,
                         (unsigned long long)found.max, found.std, found.p50, found.p90, found.p99);
}

static PyObject *get_exact(PyObject *object, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((struct durations *)object)->samples.rest == NULL);
}

MU_LOCKED(add)
MU_LOCKED(figures)
MU_LOCKED_GET(get_exact)

static PyMethodDef methods[] = {
    {"add", add_locked, METH_O, "add($self, ns, /)\n--\n\nOne more, in ns; 0 or more."},
    {"merge", merge, METH_O, "merge($self, other, /)\n--\n\nAdds all durations of `other`."},
    {"figures", figures_locked, METH_NOARGS,
     "figures($self, /)\n--\n\n"
     "(count, total, min, max, std, p50, p90, p99) in ns, all 0 without a duration. std is that\n"
     "of the population, a percentile the smallest duration that this share does not exceed."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"exact", get_exact_locked, NULL, "False when the percentiles come from a histogram.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(durations_doc,
             "Durations()\n--\n\n"
             "Collects durations in ns in bounded memory: exact up to 131,072 of them; above,\n"
             "percentiles are within 1 %. Safe to use from several threads.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)durations_doc}, {Py_tp_new, durations_new},
    {Py_tp_dealloc, durations_dealloc}, {Py_tp_methods, methods},
    {Py_tp_getset, properties},         {0, NULL},
};

static PyType_Spec spec = {
    .name = "my_utils._core.Durations",
    .basicsize = sizeof(struct durations),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

int mu_py_durations_exec(PyObject *module) {
    return mu_py_add_type(module, &spec, NULL);
}
