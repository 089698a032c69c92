/* read_stages: the finished stages of a file set as columns of bytes, for numpy and Arrow. */
#include "core/state.h"
#include "csv/py_csv_part.h"
#include "csv/stage_table.h"

/* A new dict of name -> bytes; each column has `count` elements of machine order. */
static PyObject *columns_of(const struct mu_stage_table *table) {
    const struct {
        const char *name;
        const void *data;
        size_t element;
    } columns[] = {
        {"step", table->step, sizeof(*table->step)},
        {"begin_ns", table->begin_ns, sizeof(*table->begin_ns)},
        {"end_ns", table->end_ns, sizeof(*table->end_ns)},
        {"tid", table->tid, sizeof(*table->tid)},
        {"cuda_ms", table->cuda_ms, sizeof(*table->cuda_ms)},
        {"path", table->path, sizeof(*table->path)},
        {"attempt", table->attempt, sizeof(*table->attempt)},
    };
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < sizeof(columns) / sizeof(*columns); i++) {
        PyObject *bytes = PyBytes_FromStringAndSize(
            columns[i].data, (Py_ssize_t)(columns[i].element * table->count));
        if (bytes == NULL || PyDict_SetItemString(dict, columns[i].name, bytes) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(bytes);
    }
    return dict;
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

static PyObject *result_of(const struct mu_stage_table *table, PyObject *errors) {
    const struct mu_process_metadata *process = &table->process;
    PyObject *columns = columns_of(table), *paths = paths_of(table);
    PyObject *host = text_of(process->host), *label = text_of(process->label);
    if (columns == NULL || paths == NULL || host == NULL || label == NULL) {
        Py_XDECREF(columns);
        Py_XDECREF(paths);
        Py_XDECREF(host);
        Py_XDECREF(label);
        return NULL;
    }
    return Py_BuildValue(
        "{sNsNsNsNsOsLsLsLsKsKsKsKsK}", "columns", columns, "paths", paths, "host", host, "label",
        label, "errors", errors, "world_size", (long long)process->world_size, "attempt",
        (long long)process->attempt, "clock_error_ns", (long long)process->clock_error_ns,
        "dropped", (unsigned long long)process->dropped, "clock_steps",
        (unsigned long long)process->clock_steps, "rows", (unsigned long long)table->counts.rows,
        "bad_rows", (unsigned long long)table->counts.bad_rows, "open",
        (unsigned long long)table->counts.open + table->open_by_node.count);
}

/* A part that cannot be read, or is no profile CSV, adds a message to `errors`. The other parts are
 * read. */
static int read_part(struct mu_stage_table *table, PyObject *part, PyObject *errors) {
    struct mu_csv_input input = {0};
    struct mu_error err;
    int code;
    if (mu_py_csv_part(part, &input) < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS;
    code = mu_stage_table_read(table, &input, &err);
    Py_END_ALLOW_THREADS;
    if (code == MU_ERR_FORMAT || code == MU_ERR_IO) {
        return mu_py_add_error(errors, &err);
    }
    if (code != MU_OK) {
        mu_py_raise(&err);
        return -1;
    }
    return PyErr_CheckSignals();
}

static PyObject *read_stages(PyObject *module, PyObject *parts) {
    struct mu_stage_table table;
    struct mu_error err;
    (void)module;
    if (!PyList_Check(parts)) {
        return PyErr_Format(PyExc_TypeError, "parts must be a list, not %.200R", parts);
    }
    if (mu_stage_table_init(&table, &err) != MU_OK) {
        return mu_py_raise(&err);
    }
    PyObject *errors = PyList_New(0), *result = NULL;
    int failed = errors == NULL;
    for (Py_ssize_t at = 0; !failed && at < PyList_GET_SIZE(parts); at++) {
        PyObject *part = Py_NewRef(PyList_GET_ITEM(parts, at)); /* the list may change meanwhile */
        failed = read_part(&table, part, errors) != 0;
        Py_DECREF(part);
    }
    if (!failed) {
        result = result_of(&table, errors);
    }
    Py_XDECREF(errors);
    mu_stage_table_reset(&table);
    return result;
}

static PyMethodDef functions[] = {
    {"read_stages", read_stages, METH_O,
     "read_stages($module, parts, /)\n--\n\n"
     "The finished stages in the parts of one file set: columns, paths and facts."},
    {NULL, NULL, 0, NULL},
};

int mu_py_stage_table_exec(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
