/* read_stages: the finished stages of a file set as columns of bytes, for numpy and Arrow.
 * read_notes: only what the rows about the run say. read_run_metadata: the same, of the beginning
 * and the end of each part, at a cost that does not depend on their length. */
#include "core/state.h"
#include "csv/py_csv_part.h"
#include "csv/stage_table.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

struct column {
    const char *name;
    void **data; /* freed once it is in Python's memory, so that only one column is there twice */
    size_t element;
};

/* How many bytes of a column say it all: of one that has the same value everywhere, one value. */
static size_t size_of(const struct column *column, size_t count) {
    const char *data = *column->data;
    size_t rest = count > 1 ? (count - 1) * column->element : 0;
    bool is_same = rest > 0 && memcmp(data, data + column->element, rest) == 0;
    return column->element * (is_same ? 1 : count);
}

/* A new dict of name -> bytes of machine order: `count` elements, or the one that all are. */
static PyObject *as_bytes(const struct column *columns, size_t column_count, size_t count) {
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < column_count; i++) {
        PyObject *bytes =
            PyBytes_FromStringAndSize(*columns[i].data, (Py_ssize_t)size_of(&columns[i], count));
        free(*columns[i].data);
        *columns[i].data = NULL;
        if (bytes == NULL || PyDict_SetItemString(dict, columns[i].name, bytes) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(bytes);
    }
    return dict;
}

static PyObject *columns_of(struct mu_stage_table *table) {
    const struct column columns[] = {
        {"step", (void **)&table->step, sizeof(*table->step)},
        {"begin_ns", (void **)&table->begin_ns, sizeof(*table->begin_ns)},
        {"end_ns", (void **)&table->end_ns, sizeof(*table->end_ns)},
        {"tid", (void **)&table->tid, sizeof(*table->tid)},
        {"cuda_ms", (void **)&table->cuda_ms, sizeof(*table->cuda_ms)},
        {"cuda_begin_ns", (void **)&table->cuda_begin_ns, sizeof(*table->cuda_begin_ns)},
        {"cuda_error_ns", (void **)&table->cuda_error_ns, sizeof(*table->cuda_error_ns)},
        {"path", (void **)&table->path, sizeof(*table->path)},
        {"tag", (void **)&table->tag, sizeof(*table->tag)},
        {"attempt", (void **)&table->attempt, sizeof(*table->attempt)},
    };
    return as_bytes(columns, sizeof(columns) / sizeof(*columns), table->count);
}

static PyObject *counters_of(struct mu_run_rows *rows) {
    const struct column columns[] = {
        {"step", (void **)&rows->step, sizeof(*rows->step)},
        {"value", (void **)&rows->value, sizeof(*rows->value)},
        {"name", (void **)&rows->name, sizeof(*rows->name)},
        {"attempt", (void **)&rows->attempt, sizeof(*rows->attempt)},
    };
    return as_bytes(columns, sizeof(columns) / sizeof(*columns), rows->count);
}

/* A new list of (parent, name). A path without a parent has its own number as the parent. */
static PyObject *paths_of(const struct mu_stage_table *table) {
    PyObject *list = PyList_New(table->path_count);
    for (uint32_t i = 0; list != NULL && i < table->path_count; i++) {
        const struct mu_stage_path *path = &table->paths[i];
        PyObject *name = PyUnicode_DecodeUTF8(path->name, path->length, "replace");
        PyObject *pair = name == NULL ? NULL : Py_BuildValue("IN", path->parent, name);
        if (pair == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, pair);
        }
    }
    return list;
}

static PyObject *text_of(const char *text) {
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

/* A new list of the names by their numbers. */
static PyObject *names_of(const struct mu_name_list *names) {
    PyObject *list = PyList_New(names->count);
    for (uint32_t i = 0; list != NULL && i < names->count; i++) {
        struct mu_span name = names->names[i];
        PyObject *text =
            PyUnicode_DecodeUTF8(i == 0 ? "" : name.text, (Py_ssize_t)name.length, "replace");
        if (text == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, text);
        }
    }
    return list;
}

/* A new list of (attempt, at_ns, tid, text). */
static PyObject *notes_of(const struct mu_run_rows *rows) {
    PyObject *list = PyList_New((Py_ssize_t)rows->note_count);
    for (size_t i = 0; list != NULL && i < rows->note_count; i++) {
        const struct mu_run_note *note = &rows->notes[i];
        PyObject *text = text_of(note->text);
        PyObject *tuple = text == NULL
                              ? NULL
                              : Py_BuildValue("LLLN", (long long)note->attempt,
                                              (long long)note->at_ns, (long long)note->tid, text);
        if (tuple == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)i, tuple);
        }
    }
    return list;
}

/* Puts a new reference, which may be NULL for an error, into the dict; -1 for an error. */
static int put(PyObject *dict, const char *name, PyObject *value) {
    int code = value == NULL ? -1 : PyDict_SetItemString(dict, name, value);
    Py_XDECREF(value);
    return code;
}

/* Takes the columns out of the table. */
static PyObject *result_of(struct mu_stage_table *table, PyObject *errors) {
    const struct mu_process_metadata *process = &table->process;
    PyObject *result = Py_BuildValue(
        "{sOsnsnsLsLsLsKsKsKsK}", "errors", errors, "count", (Py_ssize_t)table->count,
        "counter_count", (Py_ssize_t)table->run_rows.count, "world_size",
        (long long)process->world_size, "attempt", (long long)process->attempt, "clock_error_ns",
        (long long)process->clock_error_ns, "dropped", (unsigned long long)process->dropped, "rows",
        (unsigned long long)table->counts.rows, "bad_rows",
        (unsigned long long)table->counts.bad_rows, "open",
        (unsigned long long)table->counts.open + table->open_by_node.count);
    if (result == NULL || put(result, "columns", columns_of(table)) < 0 ||
        put(result, "paths", paths_of(table)) < 0 ||
        put(result, "host", text_of(process->host)) < 0 ||
        put(result, "label", text_of(process->label)) < 0 ||
        put(result, "tags", names_of(&table->tags)) < 0 ||
        put(result, "counters", counters_of(&table->run_rows)) < 0 ||
        put(result, "counter_names", names_of(&table->run_rows.names)) < 0 ||
        put(result, "notes", notes_of(&table->run_rows)) < 0) {
        Py_CLEAR(result);
    }
    return result;
}

/* A new dict of the last value of each counter that was taken. */
static PyObject *last_values_of(const struct mu_run_rows *rows) {
    PyObject *names = names_of(&rows->names), *dict = names == NULL ? NULL : PyDict_New();
    for (size_t i = 0; dict != NULL && i < rows->count; i++) {
        PyObject *value = PyFloat_FromDouble(rows->value[i]);
        if (value == NULL ||
            PyDict_SetItem(dict, PyList_GET_ITEM(names, rows->name[i]), value) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(value);
    }
    Py_XDECREF(names);
    return dict;
}

static PyObject *notes_result_of(const struct mu_stage_table *table, PyObject *errors) {
    const struct mu_process_metadata *process = &table->process;
    return Py_BuildValue("{sOsNsNsnsNsLsL}", "errors", errors, "notes", notes_of(&table->run_rows),
                         "last_values", last_values_of(&table->run_rows), "first_note",
                         (Py_ssize_t)process->first_note, "host", text_of(process->host), "attempt",
                         (long long)process->attempt, "clock_error_ns",
                         (long long)process->clock_error_ns);
}

/* A part that cannot be read, or is not a profile CSV, adds a message to `errors`. The other parts
 * are read. */
static int read_part(struct mu_stage_table *table, PyObject *part, PyObject *errors) {
    struct mu_py_wait wait;
    struct mu_csv_input input = {.should_stop = mu_py_signal_raised, .stop_context = &wait};
    struct mu_error err;
    PyObject *name;
    if (mu_py_csv_part(part, &input, &name) < 0) {
        return -1;
    }
    wait.saved = PyEval_SaveThread();
    int code = mu_stage_table_read(table, &input, &err);
    PyEval_RestoreThread(wait.saved);
    Py_DECREF(name);
    if (code == MU_ERR_FORMAT || code == MU_ERR_IO) {
        return mu_py_add_error(errors, &err);
    }
    if (code != MU_OK) {
        mu_py_raise(&err);
        return -1;
    }
    return PyErr_CheckSignals();
}

static PyObject *read_parts(PyObject *parts, bool only_notes, bool only_ends) {
    struct mu_stage_table table;
    struct mu_error err;
    if (!PyList_Check(parts)) {
        return PyErr_Format(PyExc_TypeError, "parts must be a list, not %.200R", parts);
    }
    if (mu_stage_table_init(&table, &err) != MU_OK) {
        return mu_py_raise(&err);
    }
    table.only_notes = only_notes;
    table.only_ends = only_ends;
    PyObject *errors = PyList_New(0), *result = NULL;
    int failed = errors == NULL;
    for (Py_ssize_t at = 0; !failed && at < PyList_GET_SIZE(parts); at++) {
        PyObject *part = mu_py_list_item(parts, at); /* the list may change meanwhile */
        failed = part == NULL || read_part(&table, part, errors) != 0;
        Py_XDECREF(part);
    }
    if (!failed) {
        result = only_notes ? notes_result_of(&table, errors) : result_of(&table, errors);
    }
    Py_XDECREF(errors);
    mu_stage_table_reset(&table);
    return result;
}

static PyObject *read_stages(PyObject *module, PyObject *parts) {
    (void)module;
    return read_parts(parts, false, false);
}

static PyObject *read_notes(PyObject *module, PyObject *parts) {
    (void)module;
    return read_parts(parts, true, false);
}

static PyObject *read_run_metadata(PyObject *module, PyObject *parts) {
    (void)module;
    return read_parts(parts, true, true);
}

static PyObject *give_back_memory(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
#ifdef __GLIBC__
    Py_BEGIN_ALLOW_THREADS malloc_trim(0);
    Py_END_ALLOW_THREADS
#endif
        Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"read_stages", read_stages, METH_O,
     "read_stages($module, parts, /)\n--\n\n"
     "The finished stages in the parts of one file set: columns, paths, counters and metadata."},
    {"read_notes", read_notes, METH_O,
     "read_notes($module, parts, /)\n--\n\n"
     "The rows about the run in the parts of one file set, with their time and thread."},
    {"read_run_metadata", read_run_metadata, METH_O,
     "read_run_metadata($module, parts, /)\n--\n\n"
     "The same of the beginning and the end of each part, and the last values of counters."},
    {"give_back_memory", give_back_memory, METH_NOARGS,
     "give_back_memory($module, /)\n--\n\n"
     "Gives back to the system what was freed by threads that read, where the allocator keeps it."},
    {NULL, NULL, 0, NULL},
};

int mu_py_stage_table_exec(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
