/* StageRows: the rows of stages in one part of a profile CSV, as an iterator of tuples. */
#include "core/heap_types.h"
#include "core/state.h"
#include "csv/py_csv_part.h"
#include "csv/stage_rows.h"

#include <stdbool.h>

struct stage_rows {
    PyObject_HEAD struct mu_stage_rows rows;
    PyObject *part;              /* owned: `rows` borrows its bytes from it */
    PyObject *name;              /* owned: bytes, which `rows` borrows */
    PyObject *tag;               /* owned: a str, or NULL for the stages of all timers */
    struct mu_span tag_text;     /* borrowed from `tag` */
    _Atomic uint64_t bytes_read; /* also those of the header */
    bool is_busy;                /* a thread waits for the file, without the GIL */
    struct mu_py_wait wait;      /* of that thread */
};

/* Indexed by the combination of enum mu_stage_row_bad. */
static const char *const bad_names[MU_BAD_COMBINATIONS] = {
    "",
    "step",
    "duration_ms",
    "step duration_ms",
    "cuda_ms",
    "step cuda_ms",
    "duration_ms cuda_ms",
    "step duration_ms cuda_ms",
    "timestamp_unix",
    "step timestamp_unix",
    "duration_ms timestamp_unix",
    "step duration_ms timestamp_unix",
    "cuda_ms timestamp_unix",
    "step cuda_ms timestamp_unix",
    "duration_ms cuda_ms timestamp_unix",
    "step duration_ms cuda_ms timestamp_unix",
};

static int set_tag(struct stage_rows *self, PyObject *tag) {
    struct mu_py_text text;
    if (tag == Py_None) {
        return 0;
    }
    if (mu_py_utf8(tag, "tag", &text) < 0) {
        return -1;
    }
    self->tag = Py_NewRef(tag);
    self->tag_text = (struct mu_span){text.bytes, (size_t)text.length};
    return 0;
}

/* Reads the header. */
static int open_part(struct stage_rows *self, PyObject *part) {
    struct mu_csv_input input = {.should_stop = mu_py_signal_raised, .stop_context = &self->wait};
    struct mu_error err;
    if (mu_py_csv_part(part, &input, &self->name) < 0) {
        return -1;
    }
    self->part = Py_NewRef(part);
    input.bytes_read = &self->bytes_read;
    self->wait.saved = PyEval_SaveThread();
    int code = mu_stage_rows_init(&self->rows, &input, &err);
    PyEval_RestoreThread(self->wait.saved);
    if (code != MU_OK) {
        mu_py_raise(&err);
        return -1;
    }
    return 0;
}

static PyObject *rows_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"part", "tag", NULL};
    PyObject *part, *tag = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:StageRows", names, &part, &tag)) {
        return NULL;
    }
    struct stage_rows *self = (struct stage_rows *)type->tp_alloc(type, 0);
    if (self != NULL && (set_tag(self, tag) < 0 || open_part(self, part) < 0)) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void rows_dealloc(PyObject *object) {
    struct stage_rows *self = (struct stage_rows *)object;
    PyTypeObject *type = Py_TYPE(object);
    mu_stage_rows_reset(&self->rows);
    Py_XDECREF(self->part);
    Py_XDECREF(self->name);
    Py_XDECREF(self->tag);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *text_of(struct mu_span text) {
    return PyUnicode_DecodeUTF8(text.text, (Py_ssize_t)text.length, "replace");
}

static PyObject *number_or_none(int64_t value, bool is_known) {
    return is_known ? PyLong_FromLongLong(value) : Py_NewRef(Py_None);
}

static PyObject *start_tuple(const struct mu_stage_row *row) {
    return Py_BuildValue("(sLLN)", "START", (long long)row->node, (long long)row->parent,
                         text_of(row->name));
}

static PyObject *end_tuple(const struct mu_stage_row *row) {
    return Py_BuildValue("(sLLNLsLNNLLN)", "END", (long long)row->node, (long long)row->parent,
                         text_of(row->name), (long long)row->line, bad_names[row->bad],
                         (long long)row->step, number_or_none(row->duration_ns, row->has_duration),
                         number_or_none(row->cuda_ns, row->has_cuda), (long long)row->end_ns,
                         (long long)row->tid, text_of(row->tag));
}

static PyObject *tuple_of(const struct mu_stage_row *row) {
    switch (row->kind) {
    case MU_STAGE_ROW_START:
        return start_tuple(row);
    case MU_STAGE_ROW_END:
        return end_tuple(row);
    case MU_STAGE_ROW_PROCESS:
        return Py_BuildValue("(sL)", "PROCESS", (long long)row->attempt);
    case MU_STAGE_ROW_BAD:
        return Py_BuildValue("(sLs)", "BAD", (long long)row->line, row->problem);
    default:
        return NULL;
    }
}

static void read_next(struct stage_rows *self, struct mu_stage_row *row, struct mu_error *err) {
    if (mu_stage_rows_at_hand(&self->rows)) {
        mu_stage_rows_next(&self->rows, row, err);
        return;
    }
    self->is_busy = true;
    self->wait.saved = PyEval_SaveThread();
    mu_stage_rows_next(&self->rows, row, err);
    PyEval_RestoreThread(self->wait.saved);
    self->is_busy = false;
}

static bool is_of_another_timer(const struct stage_rows *self, const struct mu_stage_row *row) {
    if (self->tag == NULL || (row->kind != MU_STAGE_ROW_START && row->kind != MU_STAGE_ROW_END)) {
        return false;
    }
    return row->node < 0 || row->tag.length != self->tag_text.length ||
           (row->tag.length > 0 &&
            memcmp(row->tag.text, self->tag_text.text, row->tag.length) != 0);
}

static PyObject *rows_next(PyObject *object) {
    struct stage_rows *self = (struct stage_rows *)object;
    struct mu_stage_row row;
    struct mu_error err;
    if (self->is_busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread reads these StageRows");
        return NULL;
    }
    do {
        read_next(self, &row, &err);
    } while (is_of_another_timer(self, &row));
    return row.kind == MU_STAGE_ROW_FAILED ? mu_py_raise(&err) : tuple_of(&row);
}

static PyObject *get_bytes_read(PyObject *object, void *Py_UNUSED(closure)) {
    struct stage_rows *self = (struct stage_rows *)object;
    return PyLong_FromUnsignedLongLong(
        atomic_load_explicit(&self->bytes_read, memory_order_relaxed));
}

MU_LOCKED_NEXT(rows_next)

static PyGetSetDef rows_properties[] = {
    {"bytes_read", get_bytes_read, NULL, "Bytes of the part that were read so far.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    rows_doc,
    "StageRows(part, tag=None)\n--\n\n"
    "Iterates over the rows of stages in a part of a profile CSV, in bounded memory.\n\n"
    "part: (name, fd, limit, data, has_header); see TraceJob. The file stays open as long as it\n"
    "is read. tag: the stages of one timer, as its tag stands in the metadata; None: of all.\n\n"
    "Yields one of\n\n"
    "    (\"START\", node, parent, name)\n"
    "    (\"END\", node, parent, name, line, bad, step, duration_ns, cuda_ns, end_ns, tid, tag)\n"
    "    (\"PROCESS\", attempt): who recorded the rows that follow; -1 where it does not say\n"
    "    (\"BAD\", line, problem): a row that is torn or has another number of columns;\n"
    "        UNFINISHED_ROW where the file ends within it\n\n"
    "node, parent and tid are -1 where the row has none. `bad` names the columns that are not\n"
    "what they should be, whose values are then 0. duration_ns and cuda_ns are None where the row\n"
    "has none. FormatError: the part has no header of a profile CSV. OSError. One thread at a\n"
    "time.");

static PyType_Slot rows_slots[] = {
    {Py_tp_doc, (void *)rows_doc},
    {Py_tp_new, rows_new},
    {Py_tp_dealloc, rows_dealloc},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, rows_next_locked},
    {Py_tp_getset, rows_properties},
    {0, NULL},
};

static PyType_Spec rows_spec = {
    .name = "my_utils._core.StageRows",
    .basicsize = sizeof(struct stage_rows),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = rows_slots,
};

int mu_py_stage_rows_exec(PyObject *module) {
    if (PyModule_AddStringConstant(module, "UNFINISHED_ROW", MU_STAGE_ROW_UNFINISHED) < 0) {
        return -1;
    }
    return mu_py_add_type(module, &rows_spec, NULL);
}
