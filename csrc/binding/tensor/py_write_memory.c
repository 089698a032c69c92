/* Writes the memory of many tensors to a file, for dumps. */
#include "core/args.h"
#include "core/state.h"

#include "base/write_pieces.h"

/* Both tuples have `count` items; 0, or -1 with an exception. */
static int take_pieces(PyObject *addresses, PyObject *sizes, Py_ssize_t count,
                       struct iovec *pieces) {
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t address, size;
        if (mu_py_int64_in(PyTuple_GET_ITEM(addresses, i), "addresses", 0, INT64_MAX, &address) <
                0 ||
            mu_py_int64_in(PyTuple_GET_ITEM(sizes, i), "sizes", 0, INT64_MAX, &size) < 0) {
            return -1;
        }
        if (address == 0 && size > 0) {
            PyErr_Format(PyExc_ValueError,
                         "addresses must not be 0 where there are bytes, got 0 "
                         "for %lld bytes",
                         (long long)size);
            return -1;
        }
        pieces[i] = (struct iovec){(void *)(uintptr_t)address, (size_t)size};
    }
    return 0;
}

static int check_tuples(PyObject *addresses, PyObject *sizes) {
    if (!PyTuple_Check(addresses) || !PyTuple_Check(sizes)) {
        PyErr_SetString(PyExc_TypeError, "addresses and sizes must be tuples of int");
        return -1;
    }
    if (PyTuple_GET_SIZE(addresses) != PyTuple_GET_SIZE(sizes)) {
        PyErr_Format(PyExc_ValueError, "addresses and sizes must be of one length, not %zd and %zd",
                     PyTuple_GET_SIZE(addresses), PyTuple_GET_SIZE(sizes));
        return -1;
    }
    return 0;
}

static PyObject *write_memory(PyObject *Py_UNUSED(module), PyObject *args) {
    int fd;
    PyObject *addresses, *sizes;
    if (!PyArg_ParseTuple(args, "iOO:write_memory", &fd, &addresses, &sizes) ||
        check_tuples(addresses, sizes) < 0) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(addresses);
    struct iovec *pieces = PyMem_New(struct iovec, (size_t)count + 1);
    if (pieces == NULL) {
        return PyErr_NoMemory();
    }
    int taken = take_pieces(addresses, sizes, count, pieces);
    struct mu_error err = {0};
    int code = MU_OK;
    if (taken == 0) {
        Py_BEGIN_ALLOW_THREADS;
        code = mu_write_pieces(fd, pieces, (size_t)count, &err);
        Py_END_ALLOW_THREADS;
    }
    PyMem_Free(pieces);
    if (taken < 0) {
        return NULL;
    }
    if (code != MU_OK) {
        return mu_py_raise(&err);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(write_memory_doc,
             "write_memory(fd, addresses, sizes, /)\n--\n\n"
             "Writes pieces of memory to a file, one after the other.\n\n"
             "fd: open for writing. addresses and sizes: a tuple of int each, of one length; the\n"
             "caller keeps that memory alive until the function returns. Lets the GIL go.\n\n"
             "Raises OSError, when some of it may be written; TypeError and ValueError for what\n"
             "is not a tuple or do not match.");

static PyMethodDef functions[] = {
    {"write_memory", write_memory, METH_VARARGS, write_memory_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_write_memory_exec(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
