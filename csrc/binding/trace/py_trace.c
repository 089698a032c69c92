/* The type TraceJob: one trace that is being written, from rows of profile CSVs.
 *
 * `convert` releases the GIL while it works. Calls from several threads run in parallel, each with
 * its own converter. The engine's job does its own locking.
 */
#include "core/args.h"
#include "core/free_threading.h"
#include "core/heap_types.h"
#include "core/state.h"
#include "csv/py_csv_part.h"
#include "trace/convert.h"

struct trace_job {
    PyObject_HEAD struct mu_trace_job job;
    int is_open;
    int busy; /* conversions that run now */
};

/* What the engine calls while this thread is without the GIL. */
struct conversion {
    struct trace_job *job; /* borrowed */
    PyObject *filter;      /* the user's, borrowed */
    const char *foreign;   /* the name of another tool's trace, borrowed; NULL for profile CSVs */
    struct mu_py_wait wait;
};

static int should_stop(void *context) {
    struct conversion *conversion = context;
    return atomic_load(&conversion->job->job.cancelled) || mu_py_signal_raised(&conversion->wait);
}

static int ask_filter(void *context, const char *name, size_t length) {
    struct conversion *conversion = context;
    PyEval_RestoreThread(conversion->wait.saved);
    int wanted = 1;
    PyObject *answer = PyObject_CallFunction(conversion->filter, "s#", name, (Py_ssize_t)length);
    if (answer != NULL) {
        wanted = PyObject_IsTrue(answer) != 0;
        Py_DECREF(answer);
    }
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable(conversion->filter);
    }
    conversion->wait.saved = PyEval_SaveThread();
    return wanted;
}

static int parse_format(PyObject *value, enum mu_trace_format *format) {
    static const char *const names[] = {
        [MU_TRACE_JSON] = "json", [MU_TRACE_SEED_JSON] = "seed", [MU_TRACE_PERFETTO] = "perfetto"};
    struct mu_py_text text;
    if (mu_py_utf8(value, "format", &text) < 0) {
        return -1;
    }
    for (int i = MU_TRACE_JSON; i <= MU_TRACE_PERFETTO; i++) {
        if (strcmp(text.bytes, names[i]) == 0) {
            *format = (enum mu_trace_format)i;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "format must be 'json', 'seed' or 'perfetto', not %R", value);
    return -1;
}

static PyObject *job_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"fd", "format", "sort", NULL};
    PyObject *fd_object, *format_object, *sort_object = Py_False;
    int64_t fd;
    int sort;
    enum mu_trace_format format;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:TraceJob", names, &fd_object,
                                     &format_object, &sort_object) ||
        mu_py_int64_in(fd_object, "fd", -1, INT32_MAX, &fd) < 0 ||
        parse_format(format_object, &format) < 0 || mu_py_bool(sort_object, "sort", &sort) < 0) {
        return NULL;
    }
    struct trace_job *self = (struct trace_job *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    struct mu_error err;
    if (mu_trace_job_init(&self->job, (int)fd, format, sort, &err) != MU_OK) {
        Py_DECREF(self);
        return mu_py_raise(&err);
    }
    self->is_open = 1;
    return (PyObject *)self;
}

static void job_dealloc(PyObject *object) {
    struct trace_job *self = (struct trace_job *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->is_open) {
        mu_trace_job_reset(&self->job);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *list_notes(const struct mu_notes *notes) {
    PyObject *list = PyList_New(0);
    for (int kind = 0; list != NULL && kind < MU_NOTE_KIND_COUNT; kind++) {
        const struct mu_note *note = &notes->of[kind];
        if (note->count == 0) {
            continue;
        }
        PyObject *item =
            Py_BuildValue("sNKNKs", mu_note_name(kind), PyBool_FromLong(mu_note_is_loss(kind)),
                          (unsigned long long)note->count, mu_py_message(note->file),
                          (unsigned long long)note->line, note->text);
        if (mu_py_append_new(list, item) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *list_offsets(const struct mu_converter *converter) {
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < converter->offset_count; i++) {
        PyObject *item = Py_BuildValue("LL", (long long)converter->offsets[i].at_ns,
                                       (long long)converter->offsets[i].offset_ns);
        if (mu_py_append_new(list, item) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* Steals `errors`. */
static PyObject *summary_of(const struct mu_converter *converter, PyObject *errors) {
    const struct mu_convert_counts *counts = &converter->counts;
    PyObject *notes = list_notes(&converter->notes), *offsets = list_offsets(converter);
    if (notes == NULL || offsets == NULL) {
        Py_XDECREF(notes);
        Py_XDECREF(offsets);
        Py_DECREF(errors);
        return NULL;
    }
    return Py_BuildValue(
        "{sK sK sK sK sK sK sN sN sN}", "rows", (unsigned long long)counts->rows, "slices",
        (unsigned long long)counts->slices, "instants", (unsigned long long)counts->instants,
        "counters", (unsigned long long)counts->counters, "flows",
        (unsigned long long)counts->flows, "open", (unsigned long long)counts->open, "notes", notes,
        "offsets", offsets, "errors", errors);
}

/* Without the GIL. A part that is not a profile CSV, or cannot be read, is left out. */
static int convert_part(struct mu_converter *converter, struct conversion *conversion,
                        const struct mu_csv_input *input, struct mu_error *err) {
    conversion->wait.saved = PyEval_SaveThread();
    int code = mu_converter_part(converter, input, err);
    PyEval_RestoreThread(conversion->wait.saved);
    return code;
}

/* parts: a tuple. names: a list that takes the names of the parts, which live as long as it. */
static int convert_parts(struct mu_converter *converter, struct conversion *conversion,
                         PyObject *parts, PyObject *names, PyObject *errors) {
    struct mu_error err;
    PyObject *name;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); i++) {
        struct mu_csv_input input = {.bytes_read = &conversion->job->job.bytes_read,
                                     .should_stop = should_stop,
                                     .stop_context = conversion};
        if (mu_py_csv_part(PyTuple_GET_ITEM(parts, i), &input, &name) < 0 ||
            mu_py_append_new(names, name) < 0) {
            return -1;
        }
        int code = convert_part(converter, conversion, &input, &err);
        int is_fatal = converter->error.code != MU_OK || converter->writer.sink.error.code != MU_OK;
        if (code != MU_OK && (is_fatal || (code != MU_ERR_FORMAT && code != MU_ERR_IO))) {
            mu_py_raise(&err);
            return -1;
        }
        if (code != MU_OK && mu_py_add_error(errors, &err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Borrows the texts from the tuple. */
static int parse_row(PyObject *tuple, struct mu_foreign_row *row) {
    const char *type;
    Py_ssize_t type_length, name_length, metadata_length;
    long long at_ns;
    if (!PyTuple_Check(tuple)) {
        PyErr_Format(PyExc_TypeError, "a row must be a tuple, not %.200R", tuple);
        return -1;
    }
    if (!PyArg_ParseTuple(tuple, "s#Ly#y#:row", &type, &type_length, &at_ns, &row->name.text,
                          &name_length, &row->metadata.text, &metadata_length)) {
        return -1;
    }
    row->type = mu_event_from_name(type, (size_t)type_length);
    row->at_ns = at_ns;
    row->name.length = (size_t)name_length;
    row->metadata.length = (size_t)metadata_length;
    if (row->type == 0) {
        PyErr_Format(PyExc_ValueError, "unknown type of a row: %s", type);
        return -1;
    }
    return 0;
}

/* batch: a tuple of rows. */
static int convert_batch(struct mu_converter *converter, struct conversion *conversion,
                         PyObject *batch) {
    size_t count = (size_t)PyTuple_GET_SIZE(batch), parsed = 0;
    struct mu_foreign_row *rows = PyMem_Calloc(count, sizeof(*rows));
    struct mu_error err;
    if (rows == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    while (parsed < count &&
           parse_row(PyTuple_GET_ITEM(batch, (Py_ssize_t)parsed), &rows[parsed]) == 0) {
        parsed++;
    }
    if (parsed == count) {
        conversion->wait.saved = PyEval_SaveThread();
        int code = mu_converter_foreign(converter, conversion->foreign, rows, count, &err);
        PyEval_RestoreThread(conversion->wait.saved);
        if (code != MU_OK) {
            mu_py_raise(&err);
        }
    }
    PyMem_Free(rows);
    return PyErr_Occurred() ? -1 : 0;
}

/* batches: an iterator. */
static int convert_batches(struct mu_converter *converter, struct conversion *conversion,
                           PyObject *batches) {
    PyObject *item, *batch;
    while ((item = PyIter_Next(batches)) != NULL) {
        batch = PySequence_Tuple(item);
        Py_DECREF(item);
        int code = batch == NULL ? -1 : convert_batch(converter, conversion, batch);
        Py_XDECREF(batch);
        if (code < 0) {
            return -1;
        }
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int finish(struct mu_converter *converter, struct conversion *conversion) {
    struct mu_error err;
    conversion->wait.saved = PyEval_SaveThread();
    int code = mu_converter_finish(converter, &err);
    PyEval_RestoreThread(conversion->wait.saved);
    if (code != MU_OK) {
        mu_py_raise(&err);
        return -1;
    }
    return 0;
}

/* source: a tuple of parts, or an iterator of batches. */
static PyObject *convert(struct conversion *conversion, PyObject *source,
                         struct mu_convert_options *options) {
    struct mu_converter *converter = PyMem_Calloc(1, sizeof(*converter));
    PyObject *errors = PyList_New(0), *names = PyList_New(0), *summary = NULL;
    struct mu_error err;
    int code = -1;
    if (converter == NULL || errors == NULL || names == NULL) {
        PyErr_NoMemory();
    } else if (mu_converter_init(converter, &conversion->job->job, options, &err) != MU_OK) {
        mu_py_raise(&err);
    } else if (conversion->foreign != NULL) {
        code = convert_batches(converter, conversion, source);
    } else {
        code = convert_parts(converter, conversion, source, names, errors);
    }
    if (code == 0 && finish(converter, conversion) == 0) {
        summary = summary_of(converter, Py_NewRef(errors));
    }
    if (converter != NULL) {
        mu_converter_reset(converter);
    }
    PyMem_Free(converter);
    Py_XDECREF(errors);
    Py_XDECREF(names);
    return summary;
}

static int check_open(struct trace_job *self) {
    if (!self->is_open) {
        PyErr_SetString(PyExc_ValueError, "the trace is finished");
        return -1;
    }
    return 0;
}

static int parse_steps(PyObject *steps, struct mu_convert_options *options) {
    long long begin, end;
    if (steps == NULL || steps == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(steps) || !PyArg_ParseTuple(steps, "LL:steps", &begin, &end)) {
        PyErr_Format(PyExc_TypeError, "steps must be None or a pair of ints, not %.200R", steps);
        return -1;
    }
    options->has_steps = 1;
    options->step_begin = begin;
    options->step_end = end;
    return 0;
}

static PyObject *job_convert(PyObject *object, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords) {
    enum { PARTS, RANK, SLOT, MANY, WITH_ARGS, STEPS, FILTER, FOREIGN, ALL };
    static const char *const names[] = {"parts", "rank",        "slot",    "many", "with_args",
                                        "steps", "name_filter", "foreign", NULL};
    static const struct mu_py_signature signature = {"convert", names, 2, 2};
    struct trace_job *self = (struct trace_job *)object;
    struct mu_convert_options options = {.with_args = 1};
    PyObject *given[ALL], *name = NULL, *source, *summary = NULL;
    int64_t slot = 0;
    if (mu_py_bind(&signature, args, count, keywords, given) < 0 || check_open(self) < 0 ||
        mu_py_int64(given[RANK], "rank", &options.rank) < 0 ||
        (given[SLOT] && mu_py_int64_in(given[SLOT], "slot", 0, 1 << 20, &slot) < 0) ||
        (given[MANY] && mu_py_bool(given[MANY], "many", &options.is_one_of_many) < 0) ||
        (given[WITH_ARGS] && mu_py_bool(given[WITH_ARGS], "with_args", &options.with_args) < 0) ||
        parse_steps(given[STEPS], &options) < 0) {
        return NULL;
    }
    options.is_foreign = given[FOREIGN] != NULL;
    if (!options.is_foreign && !PyList_Check(given[PARTS])) {
        return PyErr_Format(PyExc_TypeError, "parts must be a list, not %.200R", given[PARTS]);
    }
    if (options.is_foreign && mu_py_path(given[FOREIGN], "foreign", &name) < 0) {
        return NULL;
    }
    options.slot = (int)slot;
    struct conversion conversion = {.job = self, .filter = given[FILTER]};
    if (name != NULL) {
        conversion.foreign = PyBytes_AS_STRING(name);
    }
    if (given[FILTER] != NULL && given[FILTER] != Py_None) {
        options.filter = ask_filter;
        options.filter_context = &conversion;
    }
    self->busy++;
    source = name != NULL ? PyObject_GetIter(given[PARTS])
                          : PyList_AsTuple(given[PARTS]); /* the filter may change the list */
    summary = source == NULL ? NULL : convert(&conversion, source, &options);
    self->busy--;
    Py_XDECREF(source);
    Py_XDECREF(name);
    return summary;
}

static PyObject *job_set_base(PyObject *object, PyObject *value) {
    struct trace_job *self = (struct trace_job *)object;
    int64_t first_ns;
    if (check_open(self) < 0 || mu_py_int64(value, "first_ns", &first_ns) < 0) {
        return NULL;
    }
    return PyLong_FromLongLong(mu_trace_job_base(&self->job, first_ns));
}

static PyObject *job_finish(PyObject *object, PyObject *unused) {
    struct trace_job *self = (struct trace_job *)object;
    struct mu_error err;
    (void)unused;
    if (check_open(self) < 0) {
        return NULL;
    }
    if (self->busy > 0) {
        PyErr_SetString(PyExc_RuntimeError, "a conversion is still running");
        return NULL;
    }
    self->is_open = 0;
    int code;
    Py_BEGIN_ALLOW_THREADS;
    code = mu_trace_job_finish(&self->job, &err);
    Py_END_ALLOW_THREADS;
    unsigned long long written = mu_trace_job_bytes_written(&self->job);
    mu_trace_job_reset(&self->job);
    return code == MU_OK ? PyLong_FromUnsignedLongLong(written) : mu_py_raise(&err);
}

static PyObject *job_cancel(PyObject *object, PyObject *unused) {
    (void)unused;
    atomic_store(&((struct trace_job *)object)->job.cancelled, 1);
    Py_RETURN_NONE;
}

static PyObject *job_bytes_read(PyObject *object, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(atomic_load(&((struct trace_job *)object)->job.bytes_read));
}

MU_LOCKED_FAST(job_convert)
MU_LOCKED(job_set_base)
MU_LOCKED(job_finish)

static PyMethodDef job_methods[] = {
    {"convert", (PyCFunction)(void (*)(void))job_convert_locked, METH_FASTCALL | METH_KEYWORDS,
     "Converts the parts of one rank's file set, or tuples of the rows of the trace `foreign`; "
     "returns counts, notes and errors."},
    {"set_base", job_set_base_locked, METH_O,
     "Fixes the base time by the time of the first event, Unix nanoseconds; returns the base."},
    {"finish", job_finish_locked, METH_NOARGS,
     "Writes the rest; returns the size of the trace in bytes."},
    {"cancel", job_cancel, METH_NOARGS, "Makes running conversions stop with RuntimeError."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef job_getset[] = {
    {"bytes_read", job_bytes_read, NULL, "Bytes of input read so far.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot job_slots[] = {
    {Py_tp_new, job_new},
    {Py_tp_dealloc, job_dealloc},
    {Py_tp_methods, job_methods},
    {Py_tp_getset, job_getset},
    {Py_tp_doc, "One trace that is being written. Safe to use from several threads."},
    {0, NULL},
};

static PyType_Spec job_spec = {
    .name = "my_utils._core.TraceJob",
    .basicsize = sizeof(struct trace_job),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = job_slots,
};

/* The time of the first good row, Unix nanoseconds; FormatError when there is none. */
static PyObject *trace_first_ns(PyObject *module, PyObject *part) {
    struct mu_py_wait wait;
    struct mu_csv_input input = {.should_stop = mu_py_signal_raised, .stop_context = &wait};
    struct mu_error err;
    int64_t first_ns = 0;
    (void)module;
    PyObject *name;
    if (mu_py_csv_part(part, &input, &name) < 0) {
        return NULL;
    }
    wait.saved = PyEval_SaveThread();
    int code = mu_convert_first_ns(&input, &first_ns, &err);
    PyEval_RestoreThread(wait.saved);
    Py_DECREF(name);
    return code == MU_OK ? PyLong_FromLongLong(first_ns) : mu_py_raise(&err);
}

static PyMethodDef functions[] = {
    {"trace_first_ns", trace_first_ns, METH_O,
     "The time of the first good row of a part, Unix nanoseconds."},
    {NULL, NULL, 0, NULL},
};

int mu_py_trace_exec(PyObject *module) {
    if (mu_py_add_type(module, &job_spec, NULL) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
