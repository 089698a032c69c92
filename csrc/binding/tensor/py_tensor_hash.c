/* tensor_hash and its result, the type TensorDigest.
 *
 * A digest holds plain numbers only. Its texts are made on request.
 */
#include "tensor/py_tensor_hash.h"

#include <string.h>

#include "core/args.h"
#include "core/heap_types.h"
#include "tensor/py_measure.h"

struct digest {
    PyObject_VAR_HEAD /* the size is the number of dimensions */
        struct mu_digest content;
    uint8_t dtype; /* enum mu_dtype */
    int64_t shape[];
};

/* --- making one --------------------------------------------------------------------------- */

static struct digest *make_digest(PyTypeObject *type, const struct mu_digest *content, int dtype,
                                  int ndim, const int64_t *shape) {
    struct digest *self = PyObject_NewVar(struct digest, type, ndim);
    if (self == NULL) {
        return NULL;
    }
    self->content = *content;
    self->dtype = (uint8_t)dtype;
    for (int dim = 0; dim < ndim; dim++) {
        self->shape[dim] = shape[dim];
    }
    return self;
}

PyObject *mu_py_digest(struct mu_state *state, const struct mu_digest *content, int dtype, int ndim,
                       const int64_t *shape) {
    return (PyObject *)make_digest(state->digest_type, content, dtype, ndim, shape);
}

static int parse_half(const char *text, uint64_t *out) {
    *out = 0;
    for (int i = 0; i < 16; i++) {
        const char *digits = "0123456789abcdef";
        const char *at = text[i] == '\0' ? NULL : strchr(digits, text[i]);
        if (at == NULL) {
            return -1;
        }
        *out = *out << 4 | (uint64_t)(at - digits);
    }
    return 0;
}

static int parse_content(PyObject *value, struct mu_digest *out) {
    struct mu_py_text text;
    if (mu_py_utf8(value, "content", &text) < 0) {
        return -1;
    }
    if (text.length != MU_HASH_HEX || parse_half(text.bytes, &out->hi) < 0 ||
        parse_half(text.bytes + 16, &out->lo) < 0) {
        PyErr_Format(PyExc_ValueError, "content must be %d hexadecimal digits, not %.200R",
                     (int)MU_HASH_HEX, value);
        return -1;
    }
    return 0;
}

int mu_py_dtype(PyObject *value) {
    struct mu_py_text text;
    if (mu_py_utf8(value, "dtype", &text) < 0) {
        return -1;
    }
    int dtype = mu_dtype_by_name(text.bytes);
    if (dtype < 0) {
        PyErr_Format(PyExc_ValueError, "dtype must be a name such as 'float32', not %.200R", value);
    }
    return dtype;
}

int mu_py_sizes(PyObject *value, const char *name, int64_t *out) {
    PyObject *sizes = PySequence_Tuple(value);
    if (sizes == NULL) {
        return -1;
    }
    Py_ssize_t ndim = PyTuple_GET_SIZE(sizes);
    if (ndim > MU_TENSOR_DIMS_MAX) {
        PyErr_Format(PyExc_ValueError, "%s must have at most %d dimensions, not %zd", name,
                     (int)MU_TENSOR_DIMS_MAX, ndim);
        ndim = -1;
    }
    for (Py_ssize_t dim = 0; dim < ndim; dim++) {
        if (mu_py_int64_in(PyTuple_GET_ITEM(sizes, dim), name, 0, INT64_MAX, &out[dim]) < 0) {
            ndim = -1;
        }
    }
    Py_DECREF(sizes);
    return (int)ndim;
}

static PyObject *digest_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"content", "dtype", "shape", NULL};
    PyObject *content_object, *dtype_object, *shape_object;
    struct mu_digest content;
    int64_t shape[MU_TENSOR_DIMS_MAX];
    int dtype, ndim;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO:TensorDigest", names, &content_object,
                                     &dtype_object, &shape_object) ||
        parse_content(content_object, &content) < 0 || (dtype = mu_py_dtype(dtype_object)) < 0 ||
        (ndim = mu_py_sizes(shape_object, "shape", shape)) < 0) {
        return NULL;
    }
    return (PyObject *)make_digest(type, &content, dtype, ndim, shape);
}

static void digest_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* --- what it shows ------------------------------------------------------------------------ */

static PyObject *hex_of(const struct mu_digest *digest) {
    char text[MU_HASH_HEX];
    mu_digest_hex(digest, text);
    return PyUnicode_FromStringAndSize(text, sizeof(text));
}

static PyObject *get_content(PyObject *object, void *Py_UNUSED(closure)) {
    return hex_of(&((struct digest *)object)->content);
}

static PyObject *get_combined(PyObject *object, void *Py_UNUSED(closure)) {
    struct digest *self = (struct digest *)object;
    struct mu_digest combined;
    mu_tensor_hash_combine(&self->content, self->dtype, (int)Py_SIZE(self), self->shape, &combined);
    return hex_of(&combined);
}

static PyObject *get_dtype(PyObject *object, void *Py_UNUSED(closure)) {
    return PyUnicode_FromString(mu_dtype_info(((struct digest *)object)->dtype)->name);
}

static PyObject *get_shape(PyObject *object, void *Py_UNUSED(closure)) {
    struct digest *self = (struct digest *)object;
    PyObject *shape = PyTuple_New(Py_SIZE(self));
    for (Py_ssize_t dim = 0; shape != NULL && dim < Py_SIZE(self); dim++) {
        PyObject *size = PyLong_FromLongLong(self->shape[dim]);
        if (size == NULL) {
            Py_CLEAR(shape);
        } else {
            PyTuple_SET_ITEM(shape, dim, size);
        }
    }
    return shape;
}

/* (content, dtype, shape), the arguments of the type; a new reference. */
static PyObject *parts_of(PyObject *self) {
    PyObject *shape = get_shape(self, NULL);
    PyObject *content = shape == NULL ? NULL : get_content(self, NULL);
    if (content == NULL) {
        Py_XDECREF(shape);
        return NULL;
    }
    return Py_BuildValue("(NsN)", content, mu_dtype_info(((struct digest *)self)->dtype)->name,
                         shape);
}

static PyObject *digest_reduce(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    PyObject *parts = parts_of(self);
    return parts == NULL ? NULL : Py_BuildValue("(ON)", Py_TYPE(self), parts);
}

static PyObject *digest_repr(PyObject *self) {
    PyObject *parts = parts_of(self);
    if (parts == NULL) {
        return NULL;
    }
    PyObject *text =
        PyUnicode_FromFormat("TensorDigest(%R, dtype=%R, shape=%R)", PyTuple_GET_ITEM(parts, 0),
                             PyTuple_GET_ITEM(parts, 1), PyTuple_GET_ITEM(parts, 2));
    Py_DECREF(parts);
    return text;
}

static Py_hash_t digest_hash(PyObject *object) {
    struct digest *self = (struct digest *)object;
    Py_hash_t hash = (Py_hash_t)(self->content.lo ^ self->content.hi >> 1);
    return hash == -1 ? -2 : hash;
}

static bool are_equal(const struct digest *a, const struct digest *b) {
    return a->content.lo == b->content.lo && a->content.hi == b->content.hi &&
           a->dtype == b->dtype && Py_SIZE(a) == Py_SIZE(b) &&
           memcmp(a->shape, b->shape, sizeof(a->shape[0]) * (size_t)Py_SIZE(a)) == 0;
}

static PyObject *digest_compare(PyObject *self, PyObject *other, int op) {
    if ((op != Py_EQ && op != Py_NE) || Py_TYPE(self) != Py_TYPE(other)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    return PyBool_FromLong(are_equal((struct digest *)self, (struct digest *)other) ==
                           (op == Py_EQ));
}

/* --- the type ----------------------------------------------------------------------------- */

static PyGetSetDef digest_getset[] = {
    {"content", get_content, NULL,
     PyDoc_STR("str: 32 hexadecimal digits of the elements' bits in row-major order; dtype and\n"
               "shape play no part."),
     NULL},
    {"dtype", get_dtype, NULL, PyDoc_STR("str: torch's name of the dtype, such as 'float32'."),
     NULL},
    {"shape", get_shape, NULL, PyDoc_STR("tuple[int, ...]: the sizes."), NULL},
    {"combined", get_combined, NULL,
     PyDoc_STR("str: 32 hexadecimal digits of content, dtype and shape together."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef digest_methods[] = {
    {"__reduce__", digest_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(
    digest_doc,
    "TensorDigest(content, dtype, shape)\n--\n\n"
    "What tensor_hash found. Two are equal when content, dtype and shape are.\n\n"
    "Immutable, hashable, and pickled by its three parts, from which one can be made anew:\n"
    "`content`, 32 lower-case hexadecimal digits, `dtype`, torch's name without 'torch.',\n"
    "and `shape`, a sequence of sizes.");

static PyType_Slot digest_slots[] = {
    {Py_tp_doc, (void *)digest_doc},
    {Py_tp_new, digest_new},
    {Py_tp_dealloc, digest_dealloc},
    {Py_tp_repr, digest_repr},
    {Py_tp_hash, digest_hash},
    {Py_tp_richcompare, digest_compare},
    {Py_tp_methods, digest_methods},
    {Py_tp_getset, digest_getset},
    {0, NULL},
};

static PyType_Spec digest_spec = {
    .name = "my_utils.tensors.TensorDigest",
    .basicsize = offsetof(struct digest, shape),
    .itemsize = sizeof(int64_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = digest_slots,
};

/* --- hashing ------------------------------------------------------------------------------ */

static void hash_of(const struct mu_tensor *tensor, void *value) {
    mu_tensor_hash(tensor, value);
}

static PyObject *digest_for(struct mu_state *state, const struct mu_tensor *tensor,
                            const void *value) {
    return mu_py_digest(state, value, tensor->dtype, tensor->ndim, tensor->shape);
}

static const struct mu_py_measure hash_measure = {sizeof(struct mu_digest), &mu_py_gpu_hash,
                                                  hash_of, digest_for};

static PyObject *tensor_hash(PyObject *module, PyObject *tensors) {
    return mu_py_measure(module, &hash_measure, tensors);
}

PyDoc_STRVAR(
    tensor_hash_doc,
    "tensor_hash(tensors, /)\n--\n\n"
    "A fast 128-bit hash of a tensor's exact bits: a TensorDigest, or a list of them.\n\n"
    "It runs at about the speed of memory and shows any fault: -0 is not +0, and NaNs with other\n"
    "bits are other values. It depends on the elements in row-major order alone, not on strides,\n"
    "offset, number of threads, processor or device. It is not cryptographic: someone who wants\n"
    "two tensors to collide can make them (use md5 to compare with other tools, and neither\n"
    "against an adversary). docs/correctness/tensor-hash.md defines it, so that it can be computed "
    "elsewhere.\n\n"
    "Args:\n"
    "    tensors: one tensor, or a list or tuple of tensors.\n\n"
    "Returns:\n"
    "    A TensorDigest with `content`, `dtype`, `shape` and `combined`; a list for a list.\n\n"
    "Raises:\n"
    "    TypeError: something is not a tensor, or has no memory.\n\n"
    "Above 16 KiB the work is done without the GIL, and above 1 MiB on torch's threads.\n\n"
    ">>> import torch\n"
    ">>> from my_utils.tensors import tensor_hash\n"
    ">>> x = torch.arange(6).reshape(2, 3)\n"
    ">>> tensor_hash(x)\n"
    "TensorDigest('e36f911f1a5fb9beba9a11fa0ea6dfa2', dtype='int64', shape=(2, 3))\n"
    ">>> tensor_hash(x) == tensor_hash(x.T.contiguous().T)\n"
    "True\n"
    ">>> tensor_hash(x) == tensor_hash(x.reshape(3, 2))\n"
    "False\n");

static PyMethodDef functions[] = {
    {"tensor_hash", tensor_hash, METH_O, tensor_hash_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_tensor_hash_exec(PyObject *module) {
    struct mu_state *state = mu_state_of(module);
    if (mu_py_add_type(module, &digest_spec, &state->digest_type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
