/* What parts of a tensor add to its hash: the type TensorSums, and the functions that make one and
 * take it apart. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "hash/tensor_hash_part.h"

#include <string.h>

#include "core/args.h"
#include "core/heap_types.h"
#include "tensor/py_gpu_kernels.h"
#include "tensor/py_tensor.h"
#include "tensor/py_tensor_hash.h"

enum { SUMS = 2 * MU_HASH_LANES };

struct sums {
    PyObject_HEAD struct mu_hash_part part; /* owned */
};

static const struct mu_hash_part *part_of(PyObject *object) {
    return &((struct sums *)object)->part;
}

/* --- making one --------------------------------------------------------------------------- */

/* Takes the part: it is freed when there is no memory for the object. */
static PyObject *make_sums(PyTypeObject *type, struct mu_hash_part *part) {
    struct sums *self = PyObject_New(struct sums, type);
    if (self == NULL) {
        mu_hash_part_free(part);
        return NULL;
    }
    self->part = *part;
    return (PyObject *)self;
}

static void sums_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    mu_hash_part_free(&((struct sums *)self)->part);
    PyObject_Free(self);
    Py_DECREF(type);
}

static uint64_t *lane_of(struct mu_hash_sums *sums, int i) {
    return i < MU_HASH_LANES ? &sums->s[i] : &sums->t[i - MU_HASH_LANES];
}

static int parse_sums(PyObject *value, struct mu_hash_sums *out) {
    PyObject *items = PySequence_Tuple(value);
    int code = items == NULL ? -1 : 0;
    if (code == 0 && PyTuple_GET_SIZE(items) != SUMS) {
        PyErr_Format(PyExc_ValueError, "sums must be %d numbers, not %zd", (int)SUMS,
                     PyTuple_GET_SIZE(items));
        code = -1;
    }
    for (int i = 0; code == 0 && i < SUMS; i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        *lane_of(out, i) = PyLong_Check(item) ? PyLong_AsUnsignedLongLong(item) : UINT64_MAX;
        if (!PyLong_Check(item) || PyErr_Occurred()) {
            PyErr_Format(PyLong_Check(item) ? PyExc_ValueError : PyExc_TypeError,
                         "sums must be ints from 0 to 2^64 - 1, not %.200R", item);
            code = -1;
        }
    }
    Py_XDECREF(items);
    return code;
}

/* One (byte offset, bytes). */
static int parse_cut(PyObject *item, struct mu_hash_cut *cut) {
    int64_t at;
    Py_ssize_t count = 0;
    char *bytes = NULL;
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 2 ||
        !PyBytes_Check(PyTuple_GET_ITEM(item, 1))) {
        PyErr_Format(PyExc_TypeError, "cut must be pairs of an int and bytes, not %.200R", item);
        return -1;
    }
    if (mu_py_int64_in(PyTuple_GET_ITEM(item, 0), "cut", 0, INT64_MAX, &at) < 0 ||
        PyBytes_AsStringAndSize(PyTuple_GET_ITEM(item, 1), &bytes, &count) < 0) {
        return -1;
    }
    int place = (int)(at % MU_HASH_QUAD_BYTES);
    if (count == 0 || count > MU_HASH_QUAD_BYTES - place) {
        PyErr_Format(PyExc_ValueError,
                     "cut must be bytes of one quad of %d each, not %zd from byte %lld on",
                     (int)MU_HASH_QUAD_BYTES, count, (long long)at);
        return -1;
    }
    *cut = (struct mu_hash_cut){.quad = (uint64_t)at / MU_HASH_QUAD_BYTES,
                                .has = (uint16_t)(((1u << count) - 1) << place)};
    memcpy(cut->bytes + place, bytes, (size_t)count);
    return 0;
}

/* Sets `*cuts` to new memory, for PyMem_Free. Returns their number, or -1. */
static Py_ssize_t parse_cuts(PyObject *value, struct mu_hash_cut **cuts) {
    PyObject *items = value == NULL ? PyTuple_New(0) : PySequence_Tuple(value);
    Py_ssize_t count = items == NULL ? -1 : PyTuple_GET_SIZE(items);
    *cuts = count < 0 ? NULL : PyMem_New(struct mu_hash_cut, (size_t)count + 1);
    if (count >= 0 && *cuts == NULL) {
        PyErr_NoMemory();
        count = -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (parse_cut(PyTuple_GET_ITEM(items, i), &(*cuts)[i]) < 0) {
            count = -1;
        }
    }
    Py_XDECREF(items);
    return count;
}

static PyObject *sums_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"sums", "nbytes", "total", "cut", NULL};
    PyObject *sums_object, *nbytes_object, *total_object, *cut_object = NULL;
    struct mu_hash_sums sums;
    struct mu_hash_cut *cuts = NULL;
    struct mu_hash_part part;
    struct mu_error err;
    int64_t nbytes, total;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|O:TensorSums", names, &sums_object,
                                     &nbytes_object, &total_object, &cut_object) ||
        parse_sums(sums_object, &sums) < 0 ||
        mu_py_int64_in(nbytes_object, "nbytes", 0, INT64_MAX, &nbytes) < 0 ||
        mu_py_int64_in(total_object, "total", 0, INT64_MAX, &total) < 0) {
        return NULL;
    }
    Py_ssize_t count = parse_cuts(cut_object, &cuts);
    int code = MU_OK;
    if (count >= 0) {
        code = mu_hash_part_from(&part, (uint64_t)total, (uint64_t)nbytes, &sums, cuts,
                                 (size_t)count, &err);
    }
    PyMem_Free(cuts);
    if (count < 0) {
        return NULL;
    }
    return code == MU_OK ? make_sums(type, &part) : mu_py_raise(&err);
}

/* --- what it shows ------------------------------------------------------------------------ */

static PyObject *get_sums(PyObject *self, void *Py_UNUSED(closure)) {
    struct mu_hash_sums sums = part_of(self)->sums;
    PyObject *result = PyTuple_New(SUMS);
    for (int i = 0; result != NULL && i < SUMS; i++) {
        PyObject *item = PyLong_FromUnsignedLongLong(*lane_of(&sums, i));
        if (item == NULL) {
            Py_CLEAR(result);
        } else {
            PyTuple_SET_ITEM(result, i, item);
        }
    }
    return result;
}

static PyObject *get_nbytes(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLongLong(part_of(self)->bytes);
}

static PyObject *get_total(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLongLong(part_of(self)->total);
}

/* Appends the runs of bytes that are there. */
static int append_cut(PyObject *list, const struct mu_hash_cut *cut) {
    int code = 0;
    for (int from = 0, to; code == 0 && from < MU_HASH_QUAD_BYTES; from = to) {
        bool there = cut->has >> from & 1;
        for (to = from + 1; to < MU_HASH_QUAD_BYTES && (cut->has >> to & 1) == there; to++) {
        }
        if (there) {
            code = mu_py_append_new(
                list, Py_BuildValue("(Ky#)",
                                    (unsigned long long)cut->quad * MU_HASH_QUAD_BYTES +
                                        (unsigned long long)from,
                                    (const char *)cut->bytes + from, (Py_ssize_t)(to - from)));
        }
    }
    return code;
}

static PyObject *get_cut(PyObject *self, void *Py_UNUSED(closure)) {
    const struct mu_hash_part *part = part_of(self);
    PyObject *list = PyList_New(0), *result = NULL;
    int code = list == NULL ? -1 : 0;
    for (size_t i = 0; code == 0 && i < part->cut_count; i++) {
        code = append_cut(list, &part->cuts[i]);
    }
    if (code == 0) {
        result = PyList_AsTuple(list);
    }
    Py_XDECREF(list);
    return result;
}

/* (sums, nbytes, total, cut), the arguments of the type; a new reference. */
static PyObject *arguments_of(PyObject *self) {
    PyObject *sums = get_sums(self, NULL);
    PyObject *cut = sums == NULL ? NULL : get_cut(self, NULL);
    if (cut == NULL) {
        Py_XDECREF(sums);
        return NULL;
    }
    return Py_BuildValue("(NKKN)", sums, (unsigned long long)part_of(self)->bytes,
                         (unsigned long long)part_of(self)->total, cut);
}

static PyObject *sums_reduce(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    PyObject *arguments = arguments_of(self);
    return arguments == NULL ? NULL : Py_BuildValue("(ON)", Py_TYPE(self), arguments);
}

static PyObject *sums_repr(PyObject *self) {
    PyObject *all = arguments_of(self);
    if (all == NULL) {
        return NULL;
    }
    PyObject *text = PyUnicode_FromFormat("TensorSums(%R, nbytes=%R, total=%R, cut=%R)",
                                          PyTuple_GET_ITEM(all, 0), PyTuple_GET_ITEM(all, 1),
                                          PyTuple_GET_ITEM(all, 2), PyTuple_GET_ITEM(all, 3));
    Py_DECREF(all);
    return text;
}

static Py_hash_t sums_hash(PyObject *self) {
    Py_hash_t hash = (Py_hash_t)(part_of(self)->sums.s[0] ^ part_of(self)->bytes);
    return hash == -1 ? -2 : hash;
}

static bool are_equal(const struct mu_hash_part *a, const struct mu_hash_part *b) {
    bool equal = a->total == b->total && a->bytes == b->bytes && a->cut_count == b->cut_count &&
                 memcmp(&a->sums, &b->sums, sizeof(a->sums)) == 0;
    for (size_t i = 0; equal && i < a->cut_count; i++) {
        const struct mu_hash_cut *left = &a->cuts[i], *right = &b->cuts[i];
        equal = left->quad == right->quad && left->has == right->has &&
                memcmp(left->bytes, right->bytes, sizeof(left->bytes)) == 0;
    }
    return equal;
}

static PyObject *sums_compare(PyObject *self, PyObject *other, int op) {
    if ((op != Py_EQ && op != Py_NE) || Py_TYPE(self) != Py_TYPE(other)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    return PyBool_FromLong(are_equal(part_of(self), part_of(other)) == (op == Py_EQ));
}

static PyObject *sums_add(PyObject *a, PyObject *b) {
    struct mu_hash_part part;
    struct mu_error err;
    if (Py_TYPE(a) != Py_TYPE(b)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    if (mu_hash_part_add(&part, part_of(a), part_of(b), &err) != MU_OK) {
        return mu_py_raise(&err);
    }
    return make_sums(Py_TYPE(a), &part);
}

/* --- the type ----------------------------------------------------------------------------- */

static PyGetSetDef sums_getset[] = {
    {"sums", get_sums, NULL,
     PyDoc_STR("tuple[int, ...]: S0 to S3, then T0 to T3, of the quads that the part has whole;\n"
               "each is a number modulo 2^64."),
     NULL},
    {"nbytes", get_nbytes, NULL,
     PyDoc_STR("int: the bytes of the part, those of cut quads among them."), NULL},
    {"total", get_total, NULL, PyDoc_STR("int: the bytes of the whole."), NULL},
    {"cut", get_cut, NULL,
     PyDoc_STR("tuple[tuple[int, bytes], ...]: bytes of quads that the part has not whole, each\n"
               "run with the byte of the whole at which it begins, in ascending order."),
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef sums_methods[] = {
    {"__reduce__", sums_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(
    sums_doc,
    "TensorSums(sums, nbytes, total, cut=())\n--\n\n"
    "What a part of a tensor adds to the hash of the whole, whatever the layout.\n\n"
    "`a + b` is what two parts of one whole add, in any order: cut bytes of one quad join, and a\n"
    "quad whose bytes are all there moves into the sums. Two are equal when all their figures\n"
    "are. Immutable, hashable, and pickled by its arguments, from which one can be made anew; the\n"
    "cuts may come in any order, and join as in an addition.\n\n"
    "Args:\n"
    "    sums: S0 to S3 and T0 to T3, ints from 0 to 2^64 - 1.\n"
    "    nbytes: bytes of the part.\n"
    "    total: bytes of the whole.\n"
    "    cut: pairs of the byte at which it begins in the whole, and 1 to 16 bytes of one quad of\n"
    "        16 bytes.\n\n"
    "Raises:\n"
    "    TypeError: something is not an int or bytes.\n"
    "    ValueError: a number is outside its range, or a cut byte outside the whole, in another\n"
    "        quad, or there twice. An addition raises it for wholes of different length too.\n");

static PyType_Slot sums_slots[] = {
    {Py_tp_doc, (void *)sums_doc}, {Py_tp_new, sums_new},
    {Py_tp_dealloc, sums_dealloc}, {Py_tp_repr, sums_repr},
    {Py_tp_hash, sums_hash},       {Py_tp_richcompare, sums_compare},
    {Py_tp_methods, sums_methods}, {Py_tp_getset, sums_getset},
    {Py_nb_add, sums_add},         {0, NULL},
};

static PyType_Spec sums_spec = {
    .name = "my_utils.tensors.TensorSums",
    .basicsize = sizeof(struct sums),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = sums_slots,
};

/* --- of a tensor and of bytes ------------------------------------------------------------- */

/* On the CPU. */
static PyObject *sum_here(struct mu_state *state, const struct mu_tensor *tensor,
                          const int64_t *shape, const int64_t *at) {
    struct mu_hash_part part;
    struct mu_error err;
    int code;
    if (mu_tensor_bytes(tensor) < MU_PY_GIL_BYTES) {
        code = mu_hash_part_of(&part, tensor, shape, at, &err);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        code = mu_hash_part_of(&part, tensor, shape, at, &err);
        Py_END_ALLOW_THREADS;
    }
    return code == MU_OK ? make_sums(state->sums_type, &part) : mu_py_raise(&err);
}

/* Where the tensor is, or on a copy where that cannot be. */
static PyObject *sum_box(struct mu_state *state, struct mu_py_tensor *tensor, const char *name,
                         const int64_t *shape, const int64_t *at) {
    struct mu_hash_box box;
    struct mu_hash_part part;
    struct mu_error err;
    if (tensor->view.device == MU_DEVICE_CUDA) {
        if (mu_hash_box_of(&box, &tensor->view, shape, at, &err) != MU_OK) {
            return mu_py_raise(&err);
        }
        int status = mu_py_gpu_part(state, &box, &part);
        if (status != 0) {
            return status < 0 ? NULL : make_sums(state->sums_type, &part);
        }
    }
    return mu_py_tensor_to_cpu(state, name, tensor) < 0 ? NULL
                                                        : sum_here(state, &tensor->view, shape, at);
}

/* The sizes in `value`, one for each dimension of the tensor; None leaves `out` as it is. */
static int parse_dims(PyObject *value, const char *name, const struct mu_tensor *tensor,
                      int64_t *out) {
    int ndim = value == NULL || value == Py_None ? tensor->ndim : mu_py_sizes(value, name, out);
    if (ndim >= 0 && ndim != tensor->ndim) {
        PyErr_Format(PyExc_ValueError, "%s must have the tensor's %d dimensions, not %d", name,
                     (int)tensor->ndim, ndim);
        ndim = -1;
    }
    return ndim < 0 ? -1 : 0;
}

PyDoc_STRVAR(
    tensor_sums_doc,
    "tensor_sums(tensor, shape=None, at=None)\n--\n\n"
    "What a box of a larger tensor adds to the hash of the whole: a TensorSums.\n\n"
    "Args:\n"
    "    tensor: the box; any strides and device.\n"
    "    shape: of the whole, which is row-major; by default the tensor is the whole.\n"
    "    at: the index in the whole at which the box begins; zeros by default.\n\n"
    "Raises:\n"
    "    TypeError: `tensor` is none, or has no memory.\n"
    "    ValueError: the box is not within the whole, or `shape` or `at` has another number of\n"
    "        dimensions.\n\n"
    "Above 16 KiB the work is done without the GIL, and above 1 MiB on torch's threads.\n\n"
    ">>> import torch\n"
    ">>> from my_utils.tensors import sums_digest, tensor_hash, tensor_sums\n"
    ">>> x = torch.arange(60.0).reshape(6, 10)\n"
    ">>> left = tensor_sums(x[:, :7], (6, 10))\n"
    ">>> right = tensor_sums(x[:, 7:], (6, 10), at=(0, 7))\n"
    ">>> left.nbytes, left.total, len(left.cut)\n"
    "(168, 240, 6)\n"
    ">>> sums_digest(right + left, 'float32', (6, 10)) == tensor_hash(x)\n"
    "True\n");

static PyObject *tensor_sums(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords) {
    static const char *const names[] = {"tensor", "shape", "at", NULL};
    static const struct mu_py_signature signature = {"tensor_sums", names, 1, 3};
    struct mu_state *state = mu_state_of(module);
    PyObject *given[3], *result = NULL;
    struct mu_py_tensor tensor;
    int64_t shape[MU_TENSOR_DIMS_MAX], at[MU_TENSOR_DIMS_MAX] = {0};
    if (mu_py_bind(&signature, args, count, keywords, given) < 0 ||
        mu_py_tensor_view(state, given[0], "tensor", &tensor) < 0) {
        return NULL;
    }
    for (int dim = 0; dim < tensor.view.ndim; dim++) {
        shape[dim] = tensor.view.shape[dim];
    }
    if (parse_dims(given[1], "shape", &tensor.view, shape) == 0 &&
        parse_dims(given[2], "at", &tensor.view, at) == 0) {
        result = sum_box(state, &tensor, "tensor", shape, at);
    }
    mu_py_tensor_release(&tensor);
    return result;
}

PyDoc_STRVAR(bytes_sums_doc,
             "bytes_sums(buffer, begin, total)\n--\n\n"
             "What a run of bytes adds to the hash of a whole: a TensorSums.\n\n"
             "For files that are read in pieces.\n\n"
             "Args:\n"
             "    buffer: the bytes [begin, begin + length) of the whole: a buffer, an array or a\n"
             "        tensor without gaps. Its dtype plays no part.\n"
             "    begin: the byte of the whole at which it begins.\n"
             "    total: bytes of the whole.\n\n"
             "Raises:\n"
             "    TypeError: `buffer` is none of these.\n"
             "    ValueError: it is not within the whole, or not contiguous.\n\n"
             "The GIL as for tensor_sums.\n\n"
             ">>> from my_utils.tensors import bytes_sums\n"
             ">>> bytes_sums(b'ab', 0, 3) + bytes_sums(b'c', 2, 3) == bytes_sums(b'abc', 0, 3)\n"
             "True\n");

/* The row-major bytes of a tensor without gaps. Returns false for one with gaps. */
static bool bytes_of(const struct mu_tensor *tensor, int64_t *count, struct mu_tensor *run) {
    *count = mu_tensor_bytes(tensor);
    *run = (struct mu_tensor){.data = tensor->data,
                              .shape = count,
                              .elements = *count,
                              .ndim = 1,
                              .dtype = MU_DTYPE_UINT8};
    return mu_tensor_is_contiguous(tensor);
}

static PyObject *bytes_sums(PyObject *module, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords) {
    static const char *const names[] = {"buffer", "begin", "total", NULL};
    static const struct mu_py_signature signature = {"bytes_sums", names, 3, 3};
    struct mu_state *state = mu_state_of(module);
    PyObject *given[3], *result = NULL;
    struct mu_py_tensor buffer;
    int64_t begin, total;
    if (mu_py_bind(&signature, args, count, keywords, given) < 0 ||
        mu_py_int64_in(given[1], "begin", 0, INT64_MAX, &begin) < 0 ||
        mu_py_int64_in(given[2], "total", 0, INT64_MAX, &total) < 0 ||
        mu_py_tensor_view(state, given[0], "buffer", &buffer) < 0) {
        return NULL;
    }
    if (mu_py_tensor_to_cpu(state, "buffer", &buffer) == 0) {
        struct mu_tensor run;
        int64_t bytes;
        if (bytes_of(&buffer.view, &bytes, &run)) {
            result = sum_here(state, &run, &total, &begin);
        } else {
            PyErr_SetString(PyExc_ValueError, "buffer must be contiguous");
        }
    }
    mu_py_tensor_release(&buffer);
    return result;
}

/* --- of a whole --------------------------------------------------------------------------- */

static int check_type(struct mu_state *state, PyObject *value, const char *name) {
    if (Py_TYPE(value) == state->sums_type) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "%s must be a TensorSums, not %.200s", name,
                 Py_TYPE(value)->tp_name);
    return -1;
}

/* Bytes of a tensor without memory. Returns 0, or -1 with an exception. */
static int size_of(int dtype, int ndim, const int64_t *shape, uint64_t *bytes) {
    struct mu_error err;
    struct mu_tensor view = {.data = shape, .shape = shape, .ndim = ndim, .dtype = (uint8_t)dtype};
    if (mu_tensor_check(&view, &err) != MU_OK) {
        mu_py_raise(&err);
        return -1;
    }
    *bytes = (uint64_t)mu_tensor_bytes(&view);
    return 0;
}

PyDoc_STRVAR(
    sums_digest_doc,
    "sums_digest(sums, dtype, shape)\n--\n\n"
    "The TensorDigest of a whole tensor from the sums of all its parts: what tensor_hash\n"
    "of the whole is.\n\n"
    "Args:\n"
    "    sums: the TensorSums of all parts, added up.\n"
    "    dtype: torch's name without 'torch.', such as 'bfloat16'.\n"
    "    shape: a sequence of sizes.\n\n"
    "Raises:\n"
    "    TypeError: `sums` is no TensorSums.\n"
    "    ValueError: bytes are missing or there twice, or `dtype` and `shape` are those of\n"
    "        another number of bytes.\n\n"
    ">>> from my_utils.tensors import sums_digest, tensor_sums\n"
    ">>> sums_digest(tensor_sums(b'abc'), 'uint8', (3,)).shape\n"
    "(3,)\n");

static PyObject *sums_digest(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords) {
    static const char *const names[] = {"sums", "dtype", "shape", NULL};
    static const struct mu_py_signature signature = {"sums_digest", names, 3, 3};
    struct mu_state *state = mu_state_of(module);
    PyObject *given[3];
    int64_t shape[MU_TENSOR_DIMS_MAX];
    struct mu_digest content;
    struct mu_error err;
    int dtype, ndim;
    uint64_t bytes;
    if (mu_py_bind(&signature, args, count, keywords, given) < 0 ||
        check_type(state, given[0], "sums") < 0 || (dtype = mu_py_dtype(given[1])) < 0 ||
        (ndim = mu_py_sizes(given[2], "shape", shape)) < 0 ||
        size_of(dtype, ndim, shape, &bytes) < 0) {
        return NULL;
    }
    const struct mu_hash_part *part = part_of(given[0]);
    if (part->total != bytes) {
        PyErr_Format(PyExc_ValueError,
                     "sums must be those of a whole of %llu bytes, as dtype and shape say, not of "
                     "%llu",
                     (unsigned long long)bytes, (unsigned long long)part->total);
        return NULL;
    }
    return mu_hash_part_close(part, &content, &err) == MU_OK
               ? mu_py_digest(state, &content, dtype, ndim, shape)
               : mu_py_raise(&err);
}

PyDoc_STRVAR(differing_block_doc,
             "differing_block(a, b)\n--\n\n"
             "The number of the block of 4096 bytes in which two whole tensors differ, from their\n"
             "sums alone.\n\n"
             "Args:\n"
             "    a, b: the TensorSums of two wholes of one length, all parts added up.\n\n"
             "Returns:\n"
             "    n, when bytes differ in [4096 * n, 4096 * n + 4096) of the row-major whole, and\n"
             "    nowhere else. None when more than one block differs, or none does.\n\n"
             "Raises:\n"
             "    TypeError: `a` or `b` is no TensorSums.\n"
             "    ValueError: the lengths differ, or bytes are missing or there twice.\n\n"
             ">>> from my_utils.tensors import differing_block, tensor_sums\n"
             ">>> differing_block(tensor_sums(bytes(9000)), tensor_sums(bytes(8999) + b'1'))\n"
             "2\n");

static PyObject *differing_block(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                 PyObject *keywords) {
    static const char *const names[] = {"a", "b", NULL};
    static const struct mu_py_signature signature = {"differing_block", names, 2, 2};
    struct mu_state *state = mu_state_of(module);
    PyObject *given[2];
    struct mu_error err;
    if (mu_py_bind(&signature, args, count, keywords, given) < 0 ||
        check_type(state, given[0], "a") < 0 || check_type(state, given[1], "b") < 0) {
        return NULL;
    }
    const struct mu_hash_part *a = part_of(given[0]), *b = part_of(given[1]);
    if (a->total != b->total) {
        PyErr_Format(PyExc_ValueError, "a and b must have one length, not %llu and %llu bytes",
                     (unsigned long long)a->total, (unsigned long long)b->total);
        return NULL;
    }
    if (mu_hash_part_check(a, &err) != MU_OK || mu_hash_part_check(b, &err) != MU_OK) {
        return mu_py_raise(&err);
    }
    uint64_t block = mu_hash_place(a, b);
    if (block == UINT64_MAX) {
        Py_RETURN_NONE;
    }
    return PyLong_FromUnsignedLongLong(block);
}

#define FAST(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef functions[] = {
    {"tensor_sums", FAST(tensor_sums), METH_FASTCALL | METH_KEYWORDS, tensor_sums_doc},
    {"bytes_sums", FAST(bytes_sums), METH_FASTCALL | METH_KEYWORDS, bytes_sums_doc},
    {"sums_digest", FAST(sums_digest), METH_FASTCALL | METH_KEYWORDS, sums_digest_doc},
    {"differing_block", FAST(differing_block), METH_FASTCALL | METH_KEYWORDS, differing_block_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_tensor_sums_exec(PyObject *module) {
    struct mu_state *state = mu_state_of(module);
    if (mu_py_add_type(module, &sums_spec, &state->sums_type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
