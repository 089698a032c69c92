/* Converts arguments from Python to C, and results and errors of the engine to Python.
 *
 * Every converter returns 0, or -1 with a TypeError or ValueError that names the argument, what
 * came and what is allowed. What they return is borrowed from the argument unless a comment says
 * otherwise. All functions need the GIL.
 */
#ifndef MU_ARGS_H
#define MU_ARGS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "base/error.h"

/* The UTF-8 of a str. The bytes end in NUL, and may hold others; they live as long as the str. */
struct mu_py_text {
    const char *bytes;
    Py_ssize_t length;
};

int mu_py_utf8(PyObject *value, const char *name, struct mu_py_text *out);

/* Takes an int, or what has __index__; not a bool. */
int mu_py_int64(PyObject *value, const char *name, int64_t *out);
int mu_py_int64_in(PyObject *value, const char *name, int64_t low, int64_t high, int64_t *out);

/* Takes a float or an int; not NaN, not infinite. */
int mu_py_double(PyObject *value, const char *name, double *out);

/* Takes True and False only. */
int mu_py_bool(PyObject *value, const char *name, int *out);

/* Takes str, bytes or os.PathLike. `*out` is a new bytes object in the encoding of the file system,
 * without a NUL inside. */
int mu_py_path(PyObject *value, const char *name, PyObject **out);

/* The parameters of a METH_FASTCALL | METH_KEYWORDS function, in the order of its signature. */
struct mu_py_signature {
    const char *function;     /* for the messages, "start" */
    const char *const *names; /* ends in NULL; 16 names at most */
    int required;             /* how many of the first must be given */
    int positional;           /* how many of the first may be given by position */
};

/* Puts the arguments into `out`, one place for each name. A place is NULL when the argument was not
 * given. The references are borrowed. */
int mu_py_bind(const struct mu_py_signature *signature, PyObject *const *args, Py_ssize_t count,
               PyObject *keywords, PyObject **out);

/* Appends a new object, whose reference it takes: 0, or -1 with an exception. `item` may be NULL
 * with an exception set. */
int mu_py_append_new(PyObject *list, PyObject *item);

/* A new str of a message, in which paths may be. Bytes that are not UTF-8 become `\xNN`, so that it
 * can be printed whatever is in it. */
PyObject *mu_py_message(const char *message);

/* Sets the exception that belongs to the code of `err`; returns NULL. */
PyObject *mu_py_raise(const struct mu_error *err);

#endif
