/* row_hashes: the tensor hash of each row of a tensor, without an object for any of them. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core/args.h"
#include "hash/tensor_hash.h"
#include "tensor/py_tensor.h"
#include "tensor/tensor_batch.h"

#include <string.h>

enum { DIGEST_BYTES = 16 };

struct rows {
    struct mu_tensor *views;         /* owned: one a row */
    const struct mu_tensor **places; /* owned: their addresses */
    Py_ssize_t count;
    char *digests; /* borrowed: DIGEST_BYTES a row */
    bool combined; /* with dtype and shape */
};

static void free_rows(struct rows *rows) {
    PyMem_Free(rows->views);
    PyMem_Free((void *)rows->places);
}

/* How many elements are from one row to the next. */
static int64_t row_step(const struct mu_tensor *tensor, int64_t row_elements) {
    return tensor->strides == NULL ? row_elements : tensor->strides[0];
}

/* 0, or -1 with an exception; free_rows is due either way. */
static int make_rows(struct rows *rows, const struct mu_tensor *tensor) {
    int64_t item = mu_dtype_info(tensor->dtype)->size;
    int64_t elements = rows->count == 0 ? 0 : tensor->elements / rows->count;
    int64_t step_bytes = row_step(tensor, elements) * item;
    rows->views = PyMem_New(struct mu_tensor, (size_t)rows->count + 1);
    rows->places = PyMem_New(const struct mu_tensor *, (size_t)rows->count + 1);
    if (rows->views == NULL || rows->places == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < rows->count; i++) {
        rows->views[i] = *tensor;
        rows->views[i].data =
            elements == 0 ? NULL : (const char *)tensor->data + (int64_t)i * step_bytes;
        rows->views[i].elements = elements;
        rows->views[i].ndim--;
        rows->views[i].shape++;
        rows->views[i].strides += tensor->strides == NULL ? 0 : 1;
        rows->places[i] = &rows->views[i];
    }
    return 0;
}

/* As the hexadecimal digits of a digest read: the high half first, its first digits first. */
static void put_digest(const struct mu_digest *digest, char *out) {
    uint64_t halves[2] = {__builtin_bswap64(digest->hi), __builtin_bswap64(digest->lo)};
    memcpy(out, halves, sizeof(halves));
}

static void hash_row(const struct mu_tensor *row, int64_t index, void *context) {
    const struct rows *rows = context;
    struct mu_digest content, combined;
    mu_tensor_hash(row, &content);
    if (rows->combined) {
        mu_tensor_hash_combine(&content, row->dtype, row->ndim, row->shape, &combined);
    }
    put_digest(rows->combined ? &combined : &content, rows->digests + index * DIGEST_BYTES);
}

static PyObject *hashes_of(const struct mu_tensor *tensor, bool combined) {
    struct rows rows = {.count = (Py_ssize_t)tensor->shape[0], .combined = combined};
    if (rows.count > PY_SSIZE_T_MAX / (Py_ssize_t)sizeof(struct mu_tensor) - 1) {
        return PyErr_NoMemory();
    }
    PyObject *digests = PyBytes_FromStringAndSize(NULL, rows.count * DIGEST_BYTES);
    if (digests == NULL || make_rows(&rows, tensor) < 0) {
        free_rows(&rows);
        Py_XDECREF(digests);
        return NULL;
    }
    rows.digests = PyBytes_AS_STRING(digests);
    if (mu_tensor_bytes(tensor) <= MU_PY_GIL_BYTES) {
        mu_tensors_each(rows.places, rows.count, hash_row, &rows);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        mu_tensors_each(rows.places, rows.count, hash_row, &rows);
        Py_END_ALLOW_THREADS;
    }
    free_rows(&rows);
    return digests;
}

PyDoc_STRVAR(row_hashes_doc,
             "row_hashes($module, tensor, combined=True, /)\n--\n\n"
             "The tensor hash of each index along dim 0, 16 bytes a row, in one bytes.\n\n"
             "combined: of content, dtype and shape, as `TensorDigest.combined`; False: as\n"
             "`TensorDigest.content`. A tensor on a GPU is copied to the CPU, which waits for it.\n"
             "TypeError for what has no memory, ValueError for a tensor without a dimension.");

static PyObject *row_hashes(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    struct mu_state *state = mu_state_of(module);
    struct mu_py_tensor tensor;
    int combined = 1;
    if (count < 1 || count > 2) {
        return PyErr_Format(PyExc_TypeError, "row_hashes() takes 1 or 2 arguments, not %zd", count);
    }
    if ((count == 2 && mu_py_bool(args[1], "combined", &combined) < 0) ||
        mu_py_tensor_view(state, args[0], "tensor", &tensor) < 0) {
        return NULL;
    }
    PyObject *digests = NULL;
    if (tensor.view.ndim == 0) {
        PyErr_SetString(PyExc_ValueError, "tensor must have a dimension, not none");
    } else if (mu_py_tensor_to_cpu(state, "tensor", &tensor) == 0) {
        digests = hashes_of(&tensor.view, combined != 0);
    }
    mu_py_tensor_release(&tensor);
    return digests;
}

static PyMethodDef functions[] = {
    {"row_hashes", (PyCFunction)(void (*)(void))row_hashes, METH_FASTCALL, row_hashes_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_row_hashes_exec(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
