#include "timing/py_time.h"

#include <stdlib.h>

#include "core/args.h"
#include "core/free_threading.h"
#include "core/heap_types.h"
#include "core/warnings.h"
#include "timing/packed_histogram.h"

enum {
    DEFAULT_SAMPLES_MAX = 1 << 20, /* 8 MiB a name */
    NAMES_MAX = 4096,
};

struct time_recorder {
    PyObject_HEAD struct mu_state *state; /* borrowed from the module, which the type keeps alive */
    PyObject *index;                      /* owned: name -> place in `series` */
    struct mu_samples **series;           /* owned, as each of them; they live as long as this */
    size_t count;
    size_t allocated;
    size_t limit; /* durations that a name keeps one by one */
    uint64_t number;
    _Atomic Py_ssize_t enabled; /* blocks that are open, in all threads and tasks */
};

/* --- names ---------------------------------------------------------------------------------- */

PyObject *mu_py_exact_name(PyObject *value, const char *argument) {
    if (PyUnicode_CheckExact(value)) {
        return Py_NewRef(value);
    }
    if (!PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s must be a str, not %.100s (%.200R)", argument,
                     Py_TYPE(value)->tp_name, value);
        return NULL;
    }
    return PyUnicode_FromObject(value);
}

static int make_room(struct time_recorder *self) {
    if (self->count < self->allocated) {
        return 0;
    }
    size_t wanted = self->allocated == 0 ? 16 : self->allocated * 2;
    struct mu_samples **series = realloc(self->series, wanted * sizeof(*series));
    if (series == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->series = series;
    self->allocated = wanted;
    return 0;
}

/* NULL with an exception. */
static struct mu_samples *add_name(struct time_recorder *self, PyObject *name) {
    if (make_room(self) < 0) {
        return NULL;
    }
    struct mu_samples *samples = malloc(sizeof(*samples));
    PyObject *place = PyLong_FromSize_t(self->count);
    if (samples == NULL || place == NULL || PyDict_SetItem(self->index, name, place) < 0) {
        if (samples == NULL) {
            PyErr_NoMemory();
        }
        free(samples);
        Py_XDECREF(place);
        return NULL;
    }
    Py_DECREF(place);
    mu_samples_init(samples, self->limit);
    self->series[self->count++] = samples;
    return samples;
}

/* NULL with an exception, or without one when there is no such name. */
static struct mu_samples *find_name(struct time_recorder *self, PyObject *name) {
    PyObject *place = mu_py_dict_value(self->index, name);
    struct mu_samples *samples = place == NULL ? NULL : self->series[PyLong_AsSize_t(place)];
    Py_XDECREF(place);
    return samples;
}

/* The name for all further ones, when a run makes ever new names such as "step 17". */
static struct mu_samples *add_other(struct time_recorder *self) {
    PyObject *other = PyUnicode_FromString("(other)");
    if (other == NULL) {
        return NULL;
    }
    struct mu_samples *samples = find_name(self, other);
    if (samples == NULL && !PyErr_Occurred()) {
        samples = add_name(self, other);
        mu_py_warn(self->state, "time_names",
                   "a TimeManager has 4096 names; times of further ones go under '(other)'");
    }
    Py_DECREF(other);
    return samples;
}

/* The durations of a name, made when there are none yet. NULL when memory ran out. A pending
 * exception stays. */
static struct mu_samples *series_of(struct time_recorder *self, PyObject *name) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    struct mu_samples *samples = find_name(self, name);
    if (samples == NULL && !PyErr_Occurred()) {
        samples = self->count < NAMES_MAX ? add_name(self, name) : add_other(self);
    }
    PyErr_Restore(type, value, traceback); /* discards a new exception */
    return samples;
}

/* --- recording ------------------------------------------------------------------------------ */

static void record_locked(struct time_recorder *self, PyObject *name, uint64_t ns,
                          struct mu_py_series *cache) {
    struct mu_samples *samples;
    if (cache != NULL && cache->recorder == self->number) {
        samples = cache->samples;
    } else {
        samples = series_of(self, name);
        if (samples == NULL) {
            return;
        }
        if (cache != NULL) {
            *cache = (struct mu_py_series){self->number, samples};
        }
    }
    mu_samples_add(samples, ns);
}

/* Without a GIL nothing guards the cache, which threads share. */
static void record(struct time_recorder *self, PyObject *name, uint64_t ns,
                   struct mu_py_series *cache) {
    MU_BEGIN_SECTION((PyObject *)self);
    record_locked(self, name, ns, MU_FREE_THREADED ? NULL : cache);
    MU_END_SECTION();
}

void mu_py_record(PyObject *recorders, PyObject *name, uint64_t ns, struct mu_py_series *cache) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(recorders); i++) {
        record((struct time_recorder *)PyTuple_GET_ITEM(recorders, i), name, ns, cache);
    }
}

/* --- which are enabled ---------------------------------------------------------------------- */

static Py_ssize_t count_enabled(PyObject *recorders) {
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(recorders); i++) {
        count += ((struct time_recorder *)PyTuple_GET_ITEM(recorders, i))->enabled > 0;
    }
    return count;
}

/* Takes over `recorders`; NULL when memory ran out, without an exception. */
static PyObject *without_disabled(PyObject *recorders) {
    PyObject *left = PyList_New(0);
    for (Py_ssize_t i = 0; left != NULL && i < PyTuple_GET_SIZE(recorders); i++) {
        PyObject *recorder = PyTuple_GET_ITEM(recorders, i);
        if (((struct time_recorder *)recorder)->enabled > 0 && PyList_Append(left, recorder) < 0) {
            Py_CLEAR(left);
        }
    }
    PyObject *tuple = left == NULL ? NULL : PyList_AsTuple(left);
    PyErr_Clear();
    Py_XDECREF(left);
    Py_DECREF(recorders);
    return tuple;
}

PyObject *mu_py_enabled_recorders(struct mu_state *state) {
    PyObject *recorders = NULL;
    if (__builtin_expect(state->enabled_recorders == 0, 1)) {
        return NULL;
    }
    if (PyContextVar_Get(state->recorder_stack, NULL, &recorders) < 0) {
        PyErr_Clear();
        return NULL;
    }
    if (recorders == NULL) {
        return NULL;
    }
    /* A task keeps the recorders that were enabled where it was created, and may outlive them. */
    Py_ssize_t count = count_enabled(recorders);
    if (count == 0) {
        Py_CLEAR(recorders);
    } else if (count < PyTuple_GET_SIZE(recorders)) {
        recorders = without_disabled(recorders);
    }
    return recorders;
}

static int set_stack(struct mu_state *state, PyObject *recorders) {
    PyObject *token = PyContextVar_Set(state->recorder_stack, recorders);
    Py_XDECREF(token);
    return token == NULL ? -1 : 0;
}

/* The stack as a list; NULL with an exception. */
static PyObject *stack_list(struct mu_state *state) {
    PyObject *recorders = NULL;
    if (PyContextVar_Get(state->recorder_stack, NULL, &recorders) < 0) {
        return NULL;
    }
    PyObject *list = recorders == NULL ? PyList_New(0) : PySequence_List(recorders);
    Py_XDECREF(recorders);
    return list;
}

static Py_ssize_t place_in(PyObject *list, PyObject *recorder) {
    for (Py_ssize_t i = PyList_GET_SIZE(list) - 1; i >= 0; i--) {
        if (PyList_GET_ITEM(list, i) == recorder) {
            return i;
        }
    }
    return -1;
}

/* Counts a block that begins, or ends where one is open, in whatever thread or task. */
static void change_enabled(struct time_recorder *self, Py_ssize_t change) {
    struct mu_state *state = self->state;
    mu_py_lock_take(&state->timing_lock);
    if (change > 0 || self->enabled > 0) {
        self->enabled += change;
        state->enabled_recorders += change;
        mu_py_timing_switch_set(state, state->enabled_recorders > 0);
    }
    mu_py_lock_release(&state->timing_lock);
}

static PyObject *recorder_enable(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct mu_state *state = ((struct time_recorder *)object)->state;
    PyObject *list = stack_list(state);
    if (list == NULL) {
        return NULL;
    }
    int added = place_in(list, object) < 0;
    PyObject *recorders = NULL;
    if (added && PyList_Append(list, object) == 0) {
        recorders = PyList_AsTuple(list);
    }
    int rc = !added ? 0 : recorders == NULL ? -1 : set_stack(state, recorders);
    Py_XDECREF(recorders);
    Py_DECREF(list);
    if (rc < 0) {
        return NULL;
    }
    if (added) {
        change_enabled((struct time_recorder *)object, 1);
    }
    return PyBool_FromLong(added);
}

static PyObject *recorder_disable(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct mu_state *state = ((struct time_recorder *)object)->state;
    PyObject *list = stack_list(state);
    if (list == NULL) {
        return NULL;
    }
    /* A block may end in another thread or task than it began in. Then there is nothing to
     * remove. */
    Py_ssize_t place = place_in(list, object);
    int rc = place < 0 ? 0 : PyList_SetSlice(list, place, place + 1, NULL);
    PyObject *recorders = rc < 0 ? NULL : PyList_AsTuple(list);
    rc = recorders == NULL ? -1 : set_stack(state, recorders);
    Py_XDECREF(recorders);
    Py_DECREF(list);
    change_enabled((struct time_recorder *)object, -1);
    if (rc < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* --- methods -------------------------------------------------------------------------------- */

static PyObject *recorder_timer(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                PyObject *keywords) {
    static const char *const names[] = {"name", NULL};
    static const struct mu_py_signature signature = {"timer", names, 1, 1};
    PyObject *given;
    if (mu_py_bind(&signature, args, count, keywords, &given) < 0) {
        return NULL;
    }
    PyObject *name = mu_py_exact_name(given, "name");
    PyObject *recorders = name == NULL ? NULL : PyTuple_Pack(1, object);
    PyObject *block = NULL;
    if (recorders != NULL) {
        block = mu_py_timed_block(((struct time_recorder *)object)->state, name, recorders);
    }
    Py_XDECREF(name);
    Py_XDECREF(recorders);
    return block;
}

static PyObject *recorder_add(PyObject *object, PyObject *const *args, Py_ssize_t count,
                              PyObject *keywords) {
    static const char *const names[] = {"name", "ns", NULL};
    static const struct mu_py_signature signature = {"add", names, 2, 2};
    PyObject *values[2];
    int64_t ns;
    if (mu_py_bind(&signature, args, count, keywords, values) < 0 ||
        mu_py_int64_in(values[1], "ns", 0, INT64_MAX, &ns) < 0) {
        return NULL;
    }
    PyObject *name = mu_py_exact_name(values[0], "name");
    if (name == NULL) {
        return NULL;
    }
    record((struct time_recorder *)object, name, (uint64_t)ns, NULL);
    Py_DECREF(name);
    Py_RETURN_NONE;
}

static int append_name(PyObject *list, PyObject *name, const struct mu_samples *samples) {
    return mu_samples_total(samples) == 0 ? 0 : PyList_Append(list, name);
}

static int append_total(PyObject *list, PyObject *name, const struct mu_samples *samples) {
    if (mu_samples_total(samples) == 0) {
        return 0;
    }
    return mu_py_append_new(list, Py_BuildValue("(OKK)", name,
                                                (unsigned long long)mu_samples_total(samples),
                                                (unsigned long long)mu_samples_sum(samples)));
}

static int append_all(PyObject *list, PyObject *name, const struct mu_samples *samples) {
    return mu_py_append_new(list, Py_BuildValue("(OKKKK)", name,
                                                (unsigned long long)mu_samples_total(samples),
                                                (unsigned long long)mu_samples_sum(samples),
                                                (unsigned long long)samples->cleared,
                                                (unsigned long long)samples->cleared_ns));
}

/* What `append` takes of each name. */
static PyObject *list_names(PyObject *object,
                            int (*append)(PyObject *, PyObject *, const struct mu_samples *)) {
    struct time_recorder *self = (struct time_recorder *)object;
    PyObject *list = PyList_New(0);
    PyObject *name, *place;
    Py_ssize_t position = 0;
    while (list != NULL && PyDict_Next(self->index, &position, &name, &place)) {
        const struct mu_samples *samples = self->series[PyLong_AsSize_t(place)];
        if (append(list, name, samples) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *recorder_names(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    return list_names(object, append_name);
}

static PyObject *recorder_totals(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    return list_names(object, append_total);
}

static PyObject *recorder_all_totals(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    return list_names(object, append_all);
}

/* The durations of an argument; NULL with TypeError or KeyError. */
static struct mu_samples *asked_for(PyObject *object, PyObject *name) {
    PyObject *exact = mu_py_exact_name(name, "name");
    if (exact == NULL) {
        return NULL;
    }
    struct mu_samples *samples = find_name((struct time_recorder *)object, exact);
    if (samples == NULL && !PyErr_Occurred()) {
        PyErr_SetObject(PyExc_KeyError, exact);
    }
    Py_DECREF(exact);
    return samples;
}

static PyObject *kept_of(const struct mu_samples *samples) {
    return PyBytes_FromStringAndSize((const char *)samples->ns,
                                     (Py_ssize_t)(samples->count * sizeof(uint64_t)));
}

static PyObject *recorder_samples(PyObject *object, PyObject *name) {
    const struct mu_samples *samples = asked_for(object, name);
    if (samples == NULL) {
        return NULL;
    }
    return kept_of(samples);
}

/* Nobody else may record until all parts are made, so that they agree. */
static PyObject *summary_of(const struct mu_samples *samples, struct mu_aggregate *aggregate) {
    mu_aggregate_init(aggregate);
    mu_samples_summarise(samples, aggregate);
    size_t used = mu_histogram_used(aggregate);
    PyObject *kept = kept_of(samples);
    PyObject *packed = mu_py_packed_histogram(aggregate, used);
    if (kept == NULL || packed == NULL) {
        Py_XDECREF(kept);
        Py_XDECREF(packed);
        return NULL;
    }
    double std = mu_aggregate_std(aggregate);
    uint64_t min = aggregate->count == 0 ? 0 : aggregate->min;
    return Py_BuildValue("(KKKKdNnN)", (unsigned long long)aggregate->count,
                         (unsigned long long)aggregate->sum, (unsigned long long)min,
                         (unsigned long long)aggregate->max, std * std * (double)aggregate->count,
                         kept, (Py_ssize_t)used, packed);
}

static PyObject *recorder_summary(PyObject *object, PyObject *name) {
    const struct mu_samples *samples = asked_for(object, name);
    if (samples == NULL) {
        return NULL;
    }
    struct mu_aggregate *aggregate = malloc(sizeof(*aggregate));
    if (aggregate == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *summary = summary_of(samples, aggregate);
    free(aggregate);
    return summary;
}

static PyObject *recorder_state(PyObject *object, PyObject *name) {
    const struct mu_samples *samples = asked_for(object, name);
    return samples == NULL ? NULL : mu_py_samples_state(samples);
}

static PyObject *recorder_restore(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                  PyObject *keywords) {
    static const char *const names[] = {"name", "state", NULL};
    static const struct mu_py_signature signature = {"restore", names, 2, 2};
    PyObject *values[2];
    if (mu_py_bind(&signature, args, count, keywords, values) < 0) {
        return NULL;
    }
    PyObject *name = mu_py_exact_name(values[0], "name");
    if (name == NULL) {
        return NULL;
    }
    struct mu_samples *samples = series_of((struct time_recorder *)object, name);
    Py_DECREF(name);
    if (samples == NULL) {
        return PyErr_NoMemory();
    }
    if (mu_py_samples_restore(samples, values[1]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *recorder_clear_all(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct time_recorder *self = (struct time_recorder *)object;
    for (size_t i = 0; i < self->count; i++) {
        mu_samples_clear(self->series[i]);
    }
    Py_RETURN_NONE;
}

/* --- the type ------------------------------------------------------------------------------- */

static PyObject *recorder_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
                              PyObject *Py_UNUSED(kwargs)) {
    struct time_recorder *self = (struct time_recorder *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->state = mu_state_of_object((PyObject *)self);
    self->index = PyDict_New();
    if (self->state == NULL || self->index == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    self->limit = DEFAULT_SAMPLES_MAX;
    self->number = atomic_fetch_add(&self->state->time_recorders, 1) + 1;
    return (PyObject *)self;
}

static int recorder_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"max_samples", NULL};
    PyObject *given = NULL;
    int64_t limit = DEFAULT_SAMPLES_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:TimeRecorder", names, &given) ||
        (given != NULL && mu_py_int64_in(given, "max_samples", 0, INT32_MAX, &limit) < 0)) {
        return -1;
    }
    ((struct time_recorder *)object)->limit = (size_t)limit;
    return 0;
}

static int recorder_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((struct time_recorder *)object)->index);
    return 0;
}

static void recorder_dealloc(PyObject *object) {
    struct time_recorder *self = (struct time_recorder *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    change_enabled(self, -self->enabled); /* its thread or task may have died within the block */
    for (size_t i = 0; i < self->count; i++) {
        mu_samples_free(self->series[i]);
        free(self->series[i]);
    }
    free(self->series);
    Py_CLEAR(self->index);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *get_max_samples(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromSize_t(((struct time_recorder *)object)->limit);
}

static PyGetSetDef recorder_getset[] = {
    {"max_samples", get_max_samples, NULL,
     PyDoc_STR("int: how many durations a name keeps one by one; later ones go into a histogram."),
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(enable_doc,
             "enable($self)\n--\n\n"
             "Lets the calling thread or task time into this one as well; False: it did already.");
PyDoc_STRVAR(disable_doc, "disable($self)\n--\n\nEnds what `enable` began.");
PyDoc_STRVAR(timer_doc,
             "timer($self, name)\n--\n\n"
             "A block whose time is recorded under `name`, whatever is enabled: a context manager\n"
             "and a decorator. TypeError when `name` is not a str.");
PyDoc_STRVAR(add_doc, "add($self, name, ns)\n--\n\nRecords a duration in nanoseconds.");
PyDoc_STRVAR(names_doc, "names($self)\n--\n\nThe names that have times, the first one first.");
PyDoc_STRVAR(samples_doc,
             "samples($self, name, /)\n--\n\n"
             "The first durations in their order, at most `max_samples`, as bytes: uint64 of\n"
             "nanoseconds. KeyError for a name without any.");
PyDoc_STRVAR(totals_doc, "totals($self)\n--\n\n"
                         "(name, count, sum in ns) of each name, in the order in which they came.");
PyDoc_STRVAR(all_totals_doc,
             "all_totals($self)\n--\n\n"
             "(name, count, sum in ns, count and sum of what `clear` forgot) of each name at one\n"
             "moment.");
PyDoc_STRVAR(
    summary_doc,
    "summary($self, name, /)\n--\n\n"
    "(count, sum, min, max, squares, samples, used, packed) of all durations at one moment,\n"
    "in nanoseconds: `squares` is the sum of the squared distances from the mean, `samples`\n"
    "what `samples(name)` gives, `used` how many buckets of the histogram are not empty,\n"
    "`packed` these as bytes for `add_histograms`. KeyError for a name without any.");
PyDoc_STRVAR(state_doc, "state($self, name, /)\n--\n\n"
                        "All durations as plain values, for `restore`. KeyError for a name without "
                        "any.");
PyDoc_STRVAR(restore_doc,
             "restore($self, name, state)\n--\n\n"
             "Adds durations that `state` gave, here or in another process. TypeError or\n"
             "ValueError for what does not agree, and nothing is added then.");
PyDoc_STRVAR(clear_doc, "clear($self)\n--\n\nForgets all times.");

MU_LOCKED(recorder_names)
MU_LOCKED(recorder_samples)
MU_LOCKED(recorder_totals)
MU_LOCKED(recorder_all_totals)
MU_LOCKED(recorder_summary)
MU_LOCKED(recorder_state)
MU_LOCKED_FAST(recorder_restore)
MU_LOCKED(recorder_clear_all)

static PyMethodDef recorder_methods[] = {
    {"enable", recorder_enable, METH_NOARGS, enable_doc},
    {"disable", recorder_disable, METH_NOARGS, disable_doc},
    {"timer", (PyCFunction)(void (*)(void))recorder_timer, METH_FASTCALL | METH_KEYWORDS,
     timer_doc},
    {"add", (PyCFunction)(void (*)(void))recorder_add, METH_FASTCALL | METH_KEYWORDS, add_doc},
    {"names", recorder_names_locked, METH_NOARGS, names_doc},
    {"samples", recorder_samples_locked, METH_O, samples_doc},
    {"totals", recorder_totals_locked, METH_NOARGS, totals_doc},
    {"all_totals", recorder_all_totals_locked, METH_NOARGS, all_totals_doc},
    {"summary", recorder_summary_locked, METH_O, summary_doc},
    {"state", recorder_state_locked, METH_O, state_doc},
    {"restore", (PyCFunction)(void (*)(void))recorder_restore_locked, METH_FASTCALL | METH_KEYWORDS,
     restore_doc},
    {"clear", recorder_clear_all_locked, METH_NOARGS, clear_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(
    recorder_doc,
    "TimeRecorder(max_samples=1048576)\n--\n\n"
    "Durations by name. A name keeps its first `max_samples` durations one by one, 8 bytes\n"
    "each, and later ones in a histogram. The base of my_utils.timing.TimeManager.\n"
    "Thread-safe.");

static PyType_Slot recorder_slots[] = {
    {Py_tp_doc, (void *)recorder_doc},   {Py_tp_new, recorder_new},
    {Py_tp_init, recorder_init},         {Py_tp_dealloc, recorder_dealloc},
    {Py_tp_traverse, recorder_traverse}, {Py_tp_methods, recorder_methods},
    {Py_tp_getset, recorder_getset},     {0, NULL},
};

static PyType_Spec recorder_spec = {
    .name = "my_utils._core.TimeRecorder",
    .basicsize = sizeof(struct time_recorder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = recorder_slots,
};

/* --- functions of the module ---------------------------------------------------------------- */

static PyObject *enabled_recorders(PyObject *module, PyObject *Py_UNUSED(ignored)) {
    PyObject *recorders = mu_py_enabled_recorders(mu_state_of(module));
    return recorders == NULL ? PyTuple_New(0) : recorders;
}

PyDoc_STRVAR(enabled_doc,
             "enabled_recorders()\n--\n\n"
             "The TimeRecorders that the calling thread or task times into, outermost first.");

static PyMethodDef functions[] = {
    {"enabled_recorders", enabled_recorders, METH_NOARGS, enabled_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_time_recorder_exec(PyObject *module) {
    struct mu_state *state = mu_state_of(module);
    state->recorder_stack = PyContextVar_New("my_utils.timing", NULL);
    if (state->recorder_stack == NULL ||
        mu_py_add_type(module, &recorder_spec, &state->time_recorder_type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
