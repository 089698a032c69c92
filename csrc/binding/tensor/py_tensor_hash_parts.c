/* The tensor hash of a tensor whose parts are on several ranks: my_utils.tensors.dtensor calls
 * these.
 *
 * States and accumulators are bytearrays of 64-bit numbers, so that torch can take them as they are
 * and sum or gather them; they come back as tensors.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "hash/tensor_hash_part.h"

#include <string.h>

#include "core/args.h"
#include "tensor/py_tensor.h"
#include "tensor/py_tensor_hash.h"

/* --- arguments ---------------------------------------------------------------------------- */

/* Checks that a function got exactly `wanted` arguments. Returns 0, or -1 with TypeError. */
static int check_count(const char *function, Py_ssize_t count, Py_ssize_t wanted) {
    if (count == wanted) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, not %zd", function, wanted, count);
    return -1;
}

/* A view that is on the CPU and, on request, contiguous. */
static int view_on_cpu(struct mu_state *state, PyObject *object, const char *name, bool contiguous,
                       struct mu_py_tensor *out) {
    if (mu_py_tensor_view(state, object, name, out) < 0) {
        return -1;
    }
    if (out->view.device == MU_DEVICE_CPU && (!contiguous || mu_tensor_is_contiguous(&out->view))) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "%s must be on the CPU%s", name,
                 contiguous ? " and contiguous" : "");
    mu_py_tensor_release(out);
    return -1;
}

/* A whole tensor, of which this process has only parts, and its size in bytes. */
struct whole {
    int64_t shape[MU_TENSOR_DIMS_MAX];
    struct mu_tensor view; /* without memory */
    uint64_t bytes;
};

static int parse_whole(int dtype, PyObject *shape, struct whole *whole) {
    int ndim = dtype < 0 ? -1 : mu_py_sizes(shape, "shape", whole->shape);
    if (ndim < 0) {
        return -1;
    }
    whole->view = (struct mu_tensor){
        .data = whole, .shape = whole->shape, .ndim = ndim, .dtype = (uint8_t)dtype};
    struct mu_error err;
    if (mu_tensor_check(&whole->view, &err) != MU_OK) {
        mu_py_raise(&err);
        return -1;
    }
    whole->bytes = (uint64_t)mu_tensor_bytes(&whole->view);
    return 0;
}

static PyObject *digest_of(struct mu_state *state, const struct whole *whole,
                           const struct mu_digest *content) {
    return mu_py_digest(state, content, whole->view.dtype, whole->view.ndim, whole->shape);
}

/* --- runs of bytes ------------------------------------------------------------------------ */

PyDoc_STRVAR(part_doc,
             "tensor_hash_part(tensor, first_byte, /)\n--\n\n"
             "The state, 128 bytes, of a part of a larger tensor: of `tensor`, whose row-major\n"
             "bytes begin at `first_byte` of the larger one's.");

static PyObject *part(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    int64_t first_byte;
    struct mu_py_tensor tensor;
    struct mu_hash_part state;
    if (check_count("tensor_hash_part", count, 2) < 0 ||
        mu_py_int64_in(args[1], "first_byte", 0, INT64_MAX, &first_byte) < 0 ||
        view_on_cpu(mu_state_of(module), args[0], "tensor", false, &tensor) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    mu_hash_part_of(&tensor.view, (uint64_t)first_byte, &state);
    Py_END_ALLOW_THREADS;
    mu_py_tensor_release(&tensor);
    return PyByteArray_FromStringAndSize((const char *)&state, sizeof(state));
}

PyDoc_STRVAR(merge_doc,
             "tensor_hash_merge(parts, dtype, shape, /)\n--\n\n"
             "The TensorDigest of a tensor from the states of all its parts, one behind the other\n"
             "in a tensor or buffer, in any order.");

static PyObject *merge_parts(struct mu_state *state, const struct mu_tensor *parts,
                             const struct whole *whole) {
    struct mu_error err;
    struct mu_digest content;
    size_t bytes = (size_t)mu_tensor_bytes(parts), count = bytes / sizeof(struct mu_hash_part);
    struct mu_hash_part *copy = PyMem_Malloc(bytes + 1);
    if (copy == NULL) {
        return PyErr_NoMemory();
    }
    if (bytes > 0) {
        memcpy(copy, parts->data, bytes);
    }
    int code = mu_hash_merge(copy, count, whole->bytes, &content, &err);
    PyMem_Free(copy);
    return code == MU_OK ? digest_of(state, whole, &content) : mu_py_raise(&err);
}

static PyObject *merge(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    struct mu_state *state = mu_state_of(module);
    struct mu_py_tensor parts;
    struct whole whole;
    PyObject *result = NULL;
    if (check_count("tensor_hash_merge", count, 3) < 0 ||
        parse_whole(mu_py_dtype(args[1]), args[2], &whole) < 0 ||
        view_on_cpu(state, args[0], "parts", true, &parts) < 0) {
        return NULL;
    }
    if (mu_tensor_bytes(&parts.view) % (int64_t)sizeof(struct mu_hash_part) != 0) {
        PyErr_Format(PyExc_ValueError, "parts must be states of %zu bytes each, not %lld bytes",
                     sizeof(struct mu_hash_part), (long long)mu_tensor_bytes(&parts.view));
    } else {
        result = merge_parts(state, &parts.view, &whole);
    }
    mu_py_tensor_release(&parts);
    return result;
}

/* --- boxes -------------------------------------------------------------------------------- */

PyDoc_STRVAR(box_doc,
             "tensor_hash_box(tensor, shape, offset, /)\n--\n\n"
             "What a box of a larger tensor adds to the accumulators of each of the larger one's\n"
             "blocks, 32 bytes a block. `tensor`, contiguous, stands at `offset` in a tensor of\n"
             "`shape`. ValueError when a row of it begins or ends within 16 bytes.");

static PyObject *sum_box(const struct mu_tensor *box, const struct whole *whole,
                         const int64_t *offset) {
    struct mu_error err;
    uint64_t blocks = mu_hash_blocks_of(whole->bytes);
    PyObject *sums =
        PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(blocks * sizeof(struct mu_hash_sums)));
    if (sums == NULL) {
        return NULL;
    }
    struct mu_hash_sums *out = (struct mu_hash_sums *)(void *)PyByteArray_AS_STRING(sums);
    int code;
    Py_BEGIN_ALLOW_THREADS;
    code = mu_hash_box_sums(box, whole->shape, offset, out, &err);
    Py_END_ALLOW_THREADS;
    if (code != MU_OK) {
        Py_DECREF(sums);
        return mu_py_raise(&err);
    }
    return sums;
}

static PyObject *box(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    struct mu_py_tensor tensor;
    struct whole whole;
    int64_t offset[MU_TENSOR_DIMS_MAX];
    int ndim;
    PyObject *result = NULL;
    if (check_count("tensor_hash_box", count, 3) < 0 ||
        (ndim = mu_py_sizes(args[2], "offset", offset)) < 0 ||
        view_on_cpu(mu_state_of(module), args[0], "tensor", true, &tensor) < 0) {
        return NULL;
    }
    if (parse_whole(tensor.view.dtype, args[1], &whole) < 0) {
        result = NULL;
    } else if (ndim != tensor.view.ndim || whole.view.ndim != tensor.view.ndim) {
        PyErr_Format(PyExc_ValueError, "shape and offset must have the tensor's %d dimensions",
                     (int)tensor.view.ndim);
    } else {
        result = sum_box(&tensor.view, &whole, offset);
    }
    mu_py_tensor_release(&tensor);
    return result;
}

PyDoc_STRVAR(close_doc,
             "tensor_hash_close(sums, dtype, shape, /)\n--\n\n"
             "The TensorDigest of a tensor from the accumulators of all its blocks: what\n"
             "tensor_hash_box gave for each box, added up as 64-bit integers.");

static PyObject *close_sums(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    struct mu_state *state = mu_state_of(module);
    struct mu_py_tensor sums;
    struct whole whole;
    struct mu_digest content;
    if (check_count("tensor_hash_close", count, 3) < 0 ||
        parse_whole(mu_py_dtype(args[1]), args[2], &whole) < 0 ||
        view_on_cpu(state, args[0], "sums", true, &sums) < 0) {
        return NULL;
    }
    uint64_t wanted = mu_hash_blocks_of(whole.bytes) * sizeof(struct mu_hash_sums);
    uint64_t bytes = (uint64_t)mu_tensor_bytes(&sums.view);
    if (bytes == wanted) {
        mu_hash_close_sums(sums.view.data, whole.bytes, &content);
    } else {
        PyErr_Format(PyExc_ValueError, "sums must have %llu bytes for this shape, not %llu",
                     (unsigned long long)wanted, (unsigned long long)bytes);
    }
    mu_py_tensor_release(&sums);
    return bytes == wanted ? digest_of(state, &whole, &content) : NULL;
}

#define FAST(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef functions[] = {
    {"tensor_hash_part", FAST(part), METH_FASTCALL, part_doc},
    {"tensor_hash_merge", FAST(merge), METH_FASTCALL, merge_doc},
    {"tensor_hash_box", FAST(box), METH_FASTCALL, box_doc},
    {"tensor_hash_close", FAST(close_sums), METH_FASTCALL, close_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_tensor_hash_parts_exec(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
