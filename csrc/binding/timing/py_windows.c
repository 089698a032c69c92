/* read_windows: the windows of steps of one process as bytes, for numpy. */
#include "core/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/own_files.h"
#include "base/read_at.h"
#include "csv/py_csv_part.h"
#include "timing/window_table.h"

enum { FILE_BYTES_MAX = 1 << 30 };

/* The last `most` bytes of a file, all for 0. The caller frees them. */
MU_MUST_CHECK static int read_end(const char *path, uint64_t most, char **bytes, size_t *length,
                                  struct mu_error *err) {
    struct stat status;
    *bytes = NULL;
    int fd = mu_open_regular(path, O_RDONLY, 0);
    if (fd < 0) {
        return mu_error_sys(err, "open", path);
    }
    int code = fstat(fd, &status) == 0 ? MU_OK : mu_error_sys(err, "stat", path);
    uint64_t size = code == MU_OK ? (uint64_t)status.st_size : 0;
    uint64_t wanted = most > 0 && most < size ? most : size;
    if (wanted > FILE_BYTES_MAX) {
        code = mu_error_set(err, MU_ERR_LIMIT, "%s has more than %d bytes", path, FILE_BYTES_MAX);
    }
    *bytes = code == MU_OK ? malloc(wanted + 1) : NULL;
    if (code == MU_OK && *bytes == NULL) {
        code = mu_error_no_memory(err, "windows of steps");
    }
    ssize_t got = code == MU_OK ? mu_read_at(fd, *bytes, wanted, size - wanted) : 0;
    if (got < 0) {
        code = mu_error_sys(err, "read", path);
    }
    *length = got > 0 ? (size_t)got : 0;
    close(fd);
    return code;
}

MU_MUST_CHECK static int add_file(struct mu_window_table *table, const char *path, uint64_t most,
                                  struct mu_error *err) {
    char *bytes;
    size_t length;
    int code = read_end(path, most, &bytes, &length, err);
    if (code == MU_OK) {
        code = mu_window_table_add(table, bytes, length, err);
    }
    free(bytes);
    return code;
}

/* Adds one file; a message to `errors` where it cannot be read. -1 with an exception. */
static int take_file(struct mu_window_table *table, PyObject *pair, PyObject *errors) {
    PyObject *path = NULL;
    unsigned long long most;
    struct mu_error err = {0};
    if (!PyTuple_Check(pair)) {
        PyErr_Format(PyExc_TypeError, "files must be pairs of path and bytes, not %.200R", pair);
        return -1;
    }
    if (!PyArg_ParseTuple(pair, "O&K:read_windows", PyUnicode_FSConverter, &path, &most)) {
        return -1;
    }
    int code;
    Py_BEGIN_ALLOW_THREADS code = add_file(table, PyBytes_AS_STRING(path), most, &err);
    Py_END_ALLOW_THREADS Py_DECREF(path);
    if (code == MU_OK || (code == MU_ERR_IO && err.sys_errno == ENOENT)) {
        return 0;
    }
    if (code == MU_ERR_IO || code == MU_ERR_LIMIT) {
        return mu_py_add_error(errors, &err);
    }
    mu_py_raise(&err);
    return -1;
}

/* A new list of (parent, name), -1 for no parent. */
static PyObject *paths_of(const struct mu_window_table *table) {
    PyObject *list = PyList_New((Py_ssize_t)table->path_count);
    for (size_t i = 0; list != NULL && i < table->path_count; i++) {
        const struct mu_window_path *path = &table->paths[i];
        long parent = path->parent == MU_WINDOW_NO_PARENT ? -1 : (long)path->parent;
        PyObject *name = PyUnicode_DecodeUTF8(path->name, path->length, "replace");
        PyObject *pair = name == NULL ? NULL : Py_BuildValue("lN", parent, name);
        if (pair == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)i, pair);
        }
    }
    return list;
}

/* A new list of (attempt, tid, tag). */
static PyObject *tracks_of(const struct mu_window_table *table) {
    PyObject *list = PyList_New((Py_ssize_t)table->track_count);
    for (size_t i = 0; list != NULL && i < table->track_count; i++) {
        const struct mu_table_track *track = &table->tracks[i];
        PyObject *tag = PyUnicode_DecodeUTF8(track->tag, track->tag_length, "replace");
        PyObject *tuple =
            tag == NULL ? NULL : Py_BuildValue("IIN", track->attempt, track->tid, tag);
        if (tuple == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)i, tuple);
        }
    }
    return list;
}

static PyObject *bytes_of(const void *from, size_t bytes) {
    return PyBytes_FromStringAndSize(bytes == 0 ? "" : from, (Py_ssize_t)bytes);
}

static PyObject *result_of(const struct mu_window_table *table, PyObject *errors) {
    return Py_BuildValue("{sNsNsNsNsKsKsO}", "windows",
                         bytes_of(table->heads, table->head_count * sizeof(*table->heads)), "cells",
                         bytes_of(table->entries, table->entry_count * sizeof(*table->entries)),
                         "paths", paths_of(table), "tracks", tracks_of(table), "damaged_bytes",
                         (unsigned long long)table->damaged_bytes, "newer_blocks",
                         (unsigned long long)table->newer_blocks, "errors", errors);
}

static PyObject *read_windows(PyObject *module, PyObject *files) {
    struct mu_window_table table;
    struct mu_error err;
    (void)module;
    if (!PyList_Check(files)) {
        return PyErr_Format(PyExc_TypeError, "files must be a list, not %.200R", files);
    }
    if (mu_window_table_init(&table, &err) != MU_OK) {
        return mu_py_raise(&err);
    }
    PyObject *errors = PyList_New(0), *result = NULL;
    int failed = errors == NULL;
    for (Py_ssize_t at = 0; !failed && at < PyList_GET_SIZE(files); at++) {
        PyObject *pair = Py_NewRef(PyList_GET_ITEM(files, at)); /* the list may change meanwhile */
        failed = take_file(&table, pair, errors) != 0;
        Py_DECREF(pair);
    }
    if (!failed) {
        result = result_of(&table, errors);
    }
    Py_XDECREF(errors);
    mu_window_table_reset(&table);
    return result;
}

static PyMethodDef functions[] = {
    {"read_windows", read_windows, METH_O,
     "read_windows($module, files, /)\n--\n\n"
     "The windows of steps in the files of one process, and their cells, as bytes; paths, tracks."},
    {NULL, NULL, 0, NULL},
};

int mu_py_windows_exec(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
