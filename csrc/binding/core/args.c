#include "core/args.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static int wrong_type(const char *name, const char *allowed, PyObject *value) {
    PyErr_Format(PyExc_TypeError, "%s must be %s, not %.100s (%.200R)", name, allowed,
                 Py_TYPE(value)->tp_name, value);
    return -1;
}

int mu_py_utf8(PyObject *value, const char *name, struct mu_py_text *out) {
    if (!PyUnicode_Check(value)) {
        return wrong_type(name, "str", value);
    }
    out->bytes = PyUnicode_AsUTF8AndSize(value, &out->length);
    if (out->bytes == NULL) {
        if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
            PyErr_Clear();
            PyErr_Format(PyExc_ValueError, "%s must be text without lone surrogates, not %.200R",
                         name, value);
        }
        return -1;
    }
    return 0;
}

int mu_py_int64_in(PyObject *value, const char *name, int64_t low, int64_t high, int64_t *out) {
    bool plain = PyLong_CheckExact(value);
    if (!plain && (PyBool_Check(value) || !PyIndex_Check(value))) {
        return wrong_type(name, "int", value);
    }
    PyObject *number = plain ? Py_NewRef(value) : PyNumber_Index(value);
    if (number == NULL) {
        return -1;
    }
    int overflow;
    long long result = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    if (result == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (overflow != 0 || result < low || result > high) {
        PyErr_Format(PyExc_ValueError, "%s must be from %lld to %lld, not %.200R", name,
                     (long long)low, (long long)high, value);
        return -1;
    }
    *out = result;
    return 0;
}

int mu_py_int64(PyObject *value, const char *name, int64_t *out) {
    return mu_py_int64_in(value, name, INT64_MIN, INT64_MAX, out);
}

int mu_py_double(PyObject *value, const char *name, double *out) {
    if (PyBool_Check(value) || !(PyFloat_Check(value) || PyIndex_Check(value))) {
        return wrong_type(name, "a number", value);
    }
    double result = PyFloat_AsDouble(value);
    if (result == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    if (!isfinite(result)) {
        PyErr_Format(PyExc_ValueError, "%s must be finite, not %R", name, value);
        return -1;
    }
    *out = result;
    return 0;
}

int mu_py_bool(PyObject *value, const char *name, int *out) {
    if (!PyBool_Check(value)) {
        return wrong_type(name, "True or False", value);
    }
    *out = value == Py_True;
    return 0;
}

int mu_py_path(PyObject *value, const char *name, PyObject **out) {
    PyObject *bytes = NULL;
    if (PyUnicode_FSConverter(value, &bytes)) {
        *out = bytes;
        return 0;
    }
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        return wrong_type(name, "a path (str, bytes or os.PathLike)", value);
    }
    if (PyErr_ExceptionMatches(PyExc_ValueError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%s must be a path that the system can hold, not %.200R",
                     name, value);
    }
    return -1;
}

enum { NAMES_MAX = 16 };

static int count_names(const struct mu_py_signature *signature) {
    int count = 0;
    while (count < NAMES_MAX && signature->names[count] != NULL) {
        count++;
    }
    return count;
}

static int bind_keyword(const struct mu_py_signature *signature, PyObject *keyword, PyObject *value,
                        PyObject **out) {
    for (int i = 0; i < NAMES_MAX && signature->names[i] != NULL; i++) {
        if (PyUnicode_CompareWithASCIIString(keyword, signature->names[i]) != 0) {
            continue;
        }
        if (out[i] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%s'",
                         signature->function, signature->names[i]);
            return -1;
        }
        out[i] = value;
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'",
                 signature->function, keyword);
    return -1;
}

int mu_py_bind(const struct mu_py_signature *signature, PyObject *const *args, Py_ssize_t count,
               PyObject *keywords, PyObject **out) {
    int names = count_names(signature);
    if (count > signature->positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments (%zd given)",
                     signature->function, signature->positional, count);
        return -1;
    }
    for (int i = 0; i < names; i++) {
        out[i] = i < count ? args[i] : NULL;
    }
    Py_ssize_t named = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    for (Py_ssize_t i = 0; i < named; i++) {
        if (bind_keyword(signature, PyTuple_GET_ITEM(keywords, i), args[count + i], out) < 0) {
            return -1;
        }
    }
    for (int i = 0; i < signature->required; i++) {
        if (out[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() misses the argument '%s'", signature->function,
                         signature->names[i]);
            return -1;
        }
    }
    return 0;
}

int mu_py_append_new(PyObject *list, PyObject *item) {
    int status = item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    return status;
}
