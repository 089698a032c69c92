/* compare and its result, the type TensorDiff: a fixed set of objects, one a field. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "compare/compare.h"
#include "core/args.h"
#include "core/heap_types.h"
#include "tensor/decode.h"
#include "tensor/py_gpu_kernels.h"
#include "tensor/py_tensor.h"

#include <structmember.h>

enum field {
    EQUAL,
    EQUAL_BITS,
    ELEMENTS,
    MISMATCHES,
    MAX_ABS,
    MAX_ABS_INDEX,
    MAX_REL,
    MAX_REL_INDEX,
    FIRST,
    COSINE,
    SQNR_DB,
    SIGN_DIFFERENCES,
    NAN_DISAGREEMENTS,
    INF_DISAGREEMENTS,
    ATOL,
    RTOL,
    SHAPE,
    DTYPES,
    FIELDS,
};

struct diff {
    PyObject_HEAD PyObject *field[FIELDS]; /* owned; all of them set once it is made */
};

#define FIELD(index, text, doc)                                                                    \
    [index] = {text, T_OBJECT_EX, offsetof(struct diff, field) + (index) * sizeof(PyObject *),     \
               READONLY, doc}

static PyMemberDef diff_members[] = {
    FIELD(EQUAL, "equal", "bool: no element is outside the tolerance."),
    FIELD(EQUAL_BITS, "equal_bits",
          "bool: one dtype, and bit for bit the same: -0 is not +0, and NaNs have payloads."),
    FIELD(ELEMENTS, "elements", "int: elements compared."),
    FIELD(MISMATCHES, "mismatches", "int: elements outside the tolerance."),
    FIELD(MAX_ABS, "max_abs",
          "float, an exact int for two tensors of integers: the greatest |a - b|; 0 where nothing "
          "finite differs."),
    FIELD(MAX_ABS_INDEX, "max_abs_index",
          "tuple: where that is, the first of equals; None where max_abs is 0."),
    FIELD(MAX_REL, "max_rel", "float: the greatest |a - b| / |b| of the elements with b != 0."),
    FIELD(MAX_REL_INDEX, "max_rel_index",
          "tuple: where that is, the first of equals; None where max_rel is 0."),
    FIELD(FIRST, "first",
          "tuple: (index, value in a, value in b) of the first mismatches in row-major order."),
    FIELD(COSINE, "cosine", "float: cosine similarity; nan where a norm is 0."),
    FIELD(SQNR_DB, "sqnr_db",
          "float: 10 log10(sum b^2 / sum (a - b)^2); inf where nothing finite differs."),
    FIELD(SIGN_DIFFERENCES, "sign_differences",
          "int: elements below zero in one and above zero in the other."),
    FIELD(NAN_DISAGREEMENTS, "nan_disagreements", "int: elements that are NaN in exactly one."),
    FIELD(INF_DISAGREEMENTS, "inf_disagreements",
          "int: elements infinite in one that are not the same infinity in the other."),
    FIELD(ATOL, "atol", "float: the absolute tolerance that was used."),
    FIELD(RTOL, "rtol", "float: the relative tolerance that was used."),
    FIELD(SHAPE, "shape", "tuple: the shape of both."),
    FIELD(DTYPES, "dtypes", "tuple: the names of the dtypes of a and b."),
    [FIELDS] = {NULL, 0, 0, 0, NULL},
};

/* --- values ------------------------------------------------------------------------------- */

static PyObject *tuple_of_sizes(const int64_t *sizes, int count) {
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple != NULL && i < count; i++) {
        PyObject *size = PyLong_FromLongLong(sizes[i]);
        if (size == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyTuple_SET_ITEM(tuple, i, size);
        }
    }
    return tuple;
}

/* Turns a row-major index into one index for each dimension; None for -1. */
static PyObject *index_in(const struct mu_tensor *view, int64_t index) {
    int64_t sizes[MU_TENSOR_DIMS_MAX];
    if (index < 0) {
        return Py_NewRef(Py_None);
    }
    for (int dim = view->ndim - 1; dim >= 0; dim--) {
        sizes[dim] = index % view->shape[dim];
        index /= view->shape[dim];
    }
    return tuple_of_sizes(sizes, view->ndim);
}

static PyObject *element_value(int dtype, const uint8_t *bytes) {
    double parts[2];
    int64_t bits;
    memcpy(&bits, bytes, sizeof(bits));
    if (dtype == MU_DTYPE_INT64) {
        return PyLong_FromLongLong(bits);
    }
    if (dtype == MU_DTYPE_UINT64) {
        return PyLong_FromUnsignedLongLong((uint64_t)bits);
    }
    mu_decode_doubles(dtype, bytes, 1, parts);
    if (dtype == MU_DTYPE_FLOAT4_E2M1FN_X2) {
        return Py_BuildValue("dd", parts[0], parts[1]);
    }
    switch (mu_dtype_info(dtype)->kind) {
    case MU_KIND_BOOL:
        return PyBool_FromLong(parts[0] != 0);
    case MU_KIND_UINT:
    case MU_KIND_INT:
        return PyLong_FromDouble(parts[0]);
    case MU_KIND_COMPLEX:
        return PyComplex_FromDoubles(parts[0], parts[1]);
    default:
        return PyFloat_FromDouble(parts[0]);
    }
}

/* 65 bits at most. */
static PyObject *exact_value(const uint64_t *halves) {
    PyObject *low = PyLong_FromUnsignedLongLong(halves[0]);
    if (low == NULL || halves[1] == 0) {
        return low;
    }
    PyObject *high = PyLong_FromDouble((double)halves[1] * 0x1p64);
    PyObject *sum = high == NULL ? NULL : PyNumber_Add(high, low);
    Py_XDECREF(high);
    Py_DECREF(low);
    return sum;
}

static PyObject *mismatch_value(const struct mu_tensor *a, const struct mu_tensor *b,
                                const struct mu_mismatch *mismatch) {
    PyObject *index = index_in(a, mismatch->index);
    PyObject *left = element_value(a->dtype, mismatch->a);
    PyObject *right = element_value(b->dtype, mismatch->b);
    PyObject *tuple = NULL;
    if (index != NULL && left != NULL && right != NULL) {
        tuple = PyTuple_Pack(3, index, left, right);
    }
    Py_XDECREF(index);
    Py_XDECREF(left);
    Py_XDECREF(right);
    return tuple;
}

static PyObject *list_value(const struct mu_tensor *a, const struct mu_tensor *b,
                            const struct mu_mismatch *list, int64_t count) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (int64_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *item = mismatch_value(a, b, &list[i]);
        if (item == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, item);
        }
    }
    return tuple;
}

/* --- the type ----------------------------------------------------------------------------- */

static PyObject *finish_diff(struct diff *self) {
    for (int i = 0; i < FIELDS; i++) {
        if (self->field[i] == NULL) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static PyObject *make_diff(PyTypeObject *type, const struct mu_tensor *a, const struct mu_tensor *b,
                           const struct mu_compare_options *options, const struct mu_diff *diff) {
    struct diff *self = (struct diff *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    PyObject **field = self->field;
    field[EQUAL] = PyBool_FromLong(diff->mismatches == 0);
    field[EQUAL_BITS] = PyBool_FromLong(diff->equal_bits);
    field[ELEMENTS] = PyLong_FromLongLong(diff->elements);
    field[MISMATCHES] = PyLong_FromLongLong(diff->mismatches);
    field[MAX_ABS] =
        diff->integers ? exact_value(diff->max_exact) : PyFloat_FromDouble(diff->max_abs);
    field[MAX_ABS_INDEX] = index_in(a, diff->max_abs_index);
    field[MAX_REL] = PyFloat_FromDouble(diff->max_rel);
    field[MAX_REL_INDEX] = index_in(a, diff->max_rel_index);
    field[FIRST] = list_value(a, b, options->list, diff->listed);
    field[COSINE] = PyFloat_FromDouble(diff->cosine);
    field[SQNR_DB] = PyFloat_FromDouble(diff->sqnr_db);
    field[SIGN_DIFFERENCES] = PyLong_FromLongLong(diff->sign_differences);
    field[NAN_DISAGREEMENTS] = PyLong_FromLongLong(diff->nan_disagreements);
    field[INF_DISAGREEMENTS] = PyLong_FromLongLong(diff->inf_disagreements);
    field[ATOL] = PyFloat_FromDouble(options->tolerance.atol);
    field[RTOL] = PyFloat_FromDouble(options->tolerance.rtol);
    field[SHAPE] = tuple_of_sizes(a->shape, a->ndim);
    field[DTYPES] =
        Py_BuildValue("ss", mu_dtype_info(a->dtype)->name, mu_dtype_info(b->dtype)->name);
    return finish_diff(self);
}

/* All fields in their order: what __reduce__ hands to the process that unpickles. */
static PyObject *diff_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    if (PyTuple_GET_SIZE(args) != FIELDS || (kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0)) {
        return PyErr_Format(PyExc_TypeError,
                            "TensorDiff takes %d values by position, as pickle keeps them; "
                            "compare() makes one of two tensors",
                            (int)FIELDS);
    }
    struct diff *self = (struct diff *)type->tp_alloc(type, 0);
    for (int i = 0; self != NULL && i < FIELDS; i++) {
        self->field[i] = Py_NewRef(PyTuple_GET_ITEM(args, i));
    }
    return (PyObject *)self;
}

static int diff_traverse(PyObject *object, visitproc visit, void *arg) {
    struct diff *self = (struct diff *)object;
    Py_VISIT(Py_TYPE(object));
    for (int i = 0; i < FIELDS; i++) {
        Py_VISIT(self->field[i]);
    }
    return 0;
}

static void diff_dealloc(PyObject *object) {
    struct diff *self = (struct diff *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    for (int i = 0; i < FIELDS; i++) {
        Py_CLEAR(self->field[i]);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *fields_of(struct diff *self) {
    PyObject *tuple = PyTuple_New(FIELDS);
    for (int i = 0; tuple != NULL && i < FIELDS; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(self->field[i]));
    }
    return tuple;
}

static PyObject *diff_reduce(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    PyObject *fields = fields_of((struct diff *)object);
    return fields == NULL ? NULL : Py_BuildValue("ON", Py_TYPE(object), fields);
}

static PyObject *diff_compare(PyObject *left, PyObject *right, int operation) {
    if (Py_TYPE(left) != Py_TYPE(right) || (operation != Py_EQ && operation != Py_NE)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    PyObject *a = fields_of((struct diff *)left), *b = fields_of((struct diff *)right);
    PyObject *result = a == NULL || b == NULL ? NULL : PyObject_RichCompare(a, b, operation);
    Py_XDECREF(a);
    Py_XDECREF(b);
    return result;
}

static Py_hash_t diff_hash(PyObject *object) {
    PyObject *fields = fields_of((struct diff *)object);
    Py_hash_t hash = fields == NULL ? -1 : PyObject_Hash(fields);
    Py_XDECREF(fields);
    return hash;
}

/* Without this, `assert compare(a, b)` would always pass, because an object is true. */
static int diff_bool(PyObject *object) {
    (void)object;
    PyErr_SetString(PyExc_TypeError,
                    "a TensorDiff is neither true nor false; ask for .equal or .equal_bits");
    return -1;
}

/* --- as text ------------------------------------------------------------------------------ */

static PyObject *diff_repr(PyObject *object) {
    struct diff *self = (struct diff *)object;
    PyObject *parts = PyList_New(0), *comma = PyUnicode_FromString(", "), *joined = NULL;
    PyObject *text = NULL;
    for (int i = 0; parts != NULL && i < FIELDS; i++) {
        PyObject *part = PyUnicode_FromFormat("%s=%R", diff_members[i].name, self->field[i]);
        if (mu_py_append_new(parts, part) < 0) {
            Py_CLEAR(parts);
        }
    }
    if (parts != NULL && comma != NULL) {
        joined = PyUnicode_Join(comma, parts);
    }
    if (joined != NULL) {
        text = PyUnicode_FromFormat("TensorDiff(%U)", joined);
    }
    Py_XDECREF(parts);
    Py_XDECREF(comma);
    Py_XDECREF(joined);
    return text;
}

/* Adds `line`, a new reference or NULL, to the text in `*text`, which becomes NULL on failure. */
static void add_line(PyObject **text, PyObject *line) {
    if (*text != NULL) {
        PyUnicode_AppendAndDel(text, line);
    } else {
        Py_XDECREF(line);
    }
}

static void add_place(PyObject **text, const char *what, PyObject *value, PyObject *index) {
    add_line(text, index == Py_None
                       ? PyUnicode_FromFormat("\n  greatest %s: %R", what, value)
                       : PyUnicode_FromFormat("\n  greatest %s: %R at %R", what, value, index));
}

static void add_mismatches(PyObject **text, struct diff *self) {
    PyObject *first = self->field[FIRST];
    Py_ssize_t count = PyTuple_Check(first) ? PyTuple_GET_SIZE(first) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(first, i);
        if (PyTuple_Check(item) && PyTuple_GET_SIZE(item) == 3) {
            add_line(text,
                     PyUnicode_FromFormat("\n  at %R: %R, %R", PyTuple_GET_ITEM(item, 0),
                                          PyTuple_GET_ITEM(item, 1), PyTuple_GET_ITEM(item, 2)));
        }
    }
}

/* Formats a float as printf's %.*g or %.*f. Any other object, possible after unpickling, is
 * formatted by its own str(). */
static PyObject *short_float(PyObject *value, char format, int precision) {
    if (!PyFloat_Check(value)) {
        return PyObject_Str(value);
    }
    char *text = PyOS_double_to_string(PyFloat_AS_DOUBLE(value), format, precision, 0, NULL);
    PyObject *result = text == NULL ? PyErr_NoMemory() : PyUnicode_FromString(text);
    PyMem_Free(text);
    return result;
}

static void add_similarity(PyObject **text, struct diff *self) {
    PyObject *cosine = short_float(self->field[COSINE], 'g', 9);
    PyObject *sqnr = short_float(self->field[SQNR_DB], 'f', 1);
    add_line(text, cosine == NULL || sqnr == NULL
                       ? NULL
                       : PyUnicode_FromFormat("\n  cosine %U, SQNR %U dB", cosine, sqnr));
    Py_XDECREF(cosine);
    Py_XDECREF(sqnr);
}

static void add_types(PyObject **text, struct diff *self) {
    PyObject *dtypes = self->field[DTYPES];
    if (PyTuple_Check(dtypes) && PyTuple_GET_SIZE(dtypes) == 2) {
        add_line(text,
                 PyUnicode_FromFormat("\n  a is %S, b is %S, shape %R", PyTuple_GET_ITEM(dtypes, 0),
                                      PyTuple_GET_ITEM(dtypes, 1), self->field[SHAPE]));
    }
}

static PyObject *diff_str(PyObject *object) {
    struct diff *self = (struct diff *)object;
    PyObject **field = self->field;
    PyObject *text = PyUnicode_FromFormat(
        "%S of %S elements differ by more than %R + %R * |b|%s", field[MISMATCHES], field[ELEMENTS],
        field[ATOL], field[RTOL], field[EQUAL_BITS] == Py_True ? " (equal bit for bit)" : "");
    add_types(&text, self);
    add_place(&text, "|a - b|", field[MAX_ABS], field[MAX_ABS_INDEX]);
    add_place(&text, "|a - b| / |b|", field[MAX_REL], field[MAX_REL_INDEX]);
    add_similarity(&text, self);
    add_line(&text, PyUnicode_FromFormat("\n  disagree in sign: %S, in NaN: %S, in Inf: %S",
                                         field[SIGN_DIFFERENCES], field[NAN_DISAGREEMENTS],
                                         field[INF_DISAGREEMENTS]));
    add_mismatches(&text, self);
    return text;
}

static PyMethodDef diff_methods[] = {
    {"__reduce__", diff_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(diff_doc, "What compare() found. Immutable; str() of it is made to be read.");

static PyType_Slot diff_slots[] = {
    {Py_tp_doc, (void *)diff_doc},     {Py_tp_new, diff_new},
    {Py_tp_dealloc, diff_dealloc},     {Py_tp_traverse, diff_traverse},
    {Py_tp_members, diff_members},     {Py_tp_methods, diff_methods},
    {Py_tp_richcompare, diff_compare}, {Py_tp_hash, diff_hash},
    {Py_tp_repr, diff_repr},           {Py_tp_str, diff_str},
    {Py_nb_bool, diff_bool},           {0, NULL},
};

static PyType_Spec diff_spec = {
    .name = "my_utils.tensors.TensorDiff",
    .basicsize = sizeof(struct diff),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = diff_slots,
};

/* --- compare ------------------------------------------------------------------------------ */

static int check_shapes(const struct mu_tensor *a, const struct mu_tensor *b) {
    if (mu_tensor_same_shape(a, b)) {
        return 0;
    }
    PyObject *shape_a = tuple_of_sizes(a->shape, a->ndim);
    PyObject *shape_b = tuple_of_sizes(b->shape, b->ndim);
    if (shape_a != NULL && shape_b != NULL) {
        PyErr_Format(PyExc_ValueError, "a and b must have the same shape, not %R and %R", shape_a,
                     shape_b);
    }
    Py_XDECREF(shape_a);
    Py_XDECREF(shape_b);
    return -1;
}

static int parse_tolerance(PyObject *value, const char *name, double *out) {
    if (value == NULL || value == Py_None) {
        return 0;
    }
    if (mu_py_double(value, name, out) < 0) {
        return -1;
    }
    if (*out < 0) {
        PyErr_Format(PyExc_ValueError, "%s must not be negative, not %R", name, value);
        return -1;
    }
    return 0;
}

static int run(const struct mu_tensor *a, const struct mu_tensor *b,
               const struct mu_compare_options *options, struct mu_diff *diff) {
    struct mu_error err;
    int code;
    if (mu_tensor_bytes(a) + mu_tensor_bytes(b) < MU_PY_GIL_BYTES) {
        code = mu_compare(a, b, options, diff, &err);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        code = mu_compare(a, b, options, diff, &err);
        Py_END_ALLOW_THREADS;
    }
    if (code != MU_OK) {
        mu_py_raise(&err);
        return -1;
    }
    return 0;
}

/* Two tensors on one GPU are compared there, others on the CPU. */
static int find_diff(struct mu_state *state, struct mu_py_tensor *a, struct mu_py_tensor *b,
                     const struct mu_compare_options *options, struct mu_diff *diff) {
    int done = mu_py_gpu_compare(state, &a->view, &b->view, options, diff);
    if (done != 0) {
        return done < 0 ? -1 : 0;
    }
    if (mu_py_tensor_to_cpu(state, "a", a) < 0 || mu_py_tensor_to_cpu(state, "b", b) < 0) {
        return -1;
    }
    return run(&a->view, &b->view, options, diff);
}

static PyObject *compare_views(struct mu_state *state, struct mu_py_tensor *a,
                               struct mu_py_tensor *b, struct mu_compare_options *options) {
    struct mu_diff diff;
    PyObject *result = NULL;
    if (check_shapes(&a->view, &b->view) < 0) {
        return NULL;
    }
    if (options->list_max > a->view.elements) {
        options->list_max = a->view.elements;
    }
    /* The system maps zeroed memory at its first write, so a large list_max costs nothing. */
    options->list = PyMem_RawCalloc((size_t)options->list_max, sizeof(*options->list));
    if (options->list == NULL) {
        return PyErr_NoMemory();
    }
    if (find_diff(state, a, b, options, &diff) == 0) {
        result = make_diff(state->tensor_diff_type, &a->view, &b->view, options, &diff);
    }
    PyMem_RawFree(options->list);
    return result;
}

PyDoc_STRVAR(
    compare_doc,
    "compare(a, b, *, atol=None, rtol=None, equal_nan=False, max_mismatches=10)\n--\n\n"
    "How two tensors of one shape differ, and where, in one pass: a TensorDiff.\n\n"
    "Any two dtypes. Everything is computed in double, whatever the dtypes; 64-bit integers lose\n"
    "nothing. An element is a mismatch as torch.isclose has it: unless a == b, or both are finite\n"
    "and |a - b| <= atol + rtol * |b|, or equal_nan is set and both are NaN. A complex number\n"
    "counts by its modulus; -0 equals 0. Errors, cosine and SQNR are those of the elements that\n"
    "are finite in both: NaNs and infinities are counted instead, so that one of them does not\n"
    "hide the rest. Where a sum of squares is beyond the range of double, cosine and SQNR are\n"
    "NaN or infinite. It takes no memory for temporary tensors, and may be called from any\n"
    "thread.\n\n"
    "Args:\n"
    "    a, b: tensors of equal shape: nothing is broadcast. Two on one GPU are\n"
    "        compared there, which waits for the result; else what is on a GPU is copied to\n"
    "        the CPU.\n"
    "    atol, rtol: not negative. None: that of torch.testing.assert_close for the dtype, of two\n"
    "        dtypes the looser; for 8- and 4-bit floats, where it has none, one step of the\n"
    "        type. Each has its default by itself.\n"
    "    equal_nan: two NaNs are equal.\n"
    "    max_mismatches: how many mismatches are listed in `first`.\n\n"
    "Raises:\n"
    "    ValueError: the shapes differ, or a tolerance is negative or not finite.\n"
    "    TypeError: an argument is not a tensor, or has no memory of its own.\n\n"
    "Example:\n"
    "    >>> import numpy as np\n"
    "    >>> a = np.array([[1.0, 2.0], [3.0, np.inf]], dtype=np.float32)\n"
    "    >>> b = np.array([[1.0, 2.5], [3.0, -np.inf]])\n"
    "    >>> diff = compare(a, b)\n"
    "    >>> diff.equal, diff.max_abs, diff.max_abs_index\n"
    "    (False, 0.5, (0, 1))\n"
    "    >>> print(diff)\n"
    "    2 of 4 elements differ by more than 1e-05 + 1.3e-06 * |b|\n"
    "      a is float32, b is float64, shape (2, 2)\n"
    "      greatest |a - b|: 0.5 at (0, 1)\n"
    "      greatest |a - b| / |b|: 0.2 at (0, 1)\n"
    "      cosine 0.994490316, SQNR 18.1 dB\n"
    "      disagree in sign: 1, in NaN: 0, in Inf: 1\n"
    "      at (0, 1): 2.0, 2.5\n"
    "      at (1, 1): inf, -inf\n");

static PyObject *compare(PyObject *module, PyObject *const *args, Py_ssize_t count,
                         PyObject *keywords) {
    enum { A, B, GIVEN_ATOL, GIVEN_RTOL, EQUAL_NAN, MAX_MISMATCHES, ALL };
    static const char *const names[] = {"a", "b", "atol", "rtol", "equal_nan", "max_mismatches",
                                        NULL};
    static const struct mu_py_signature signature = {"compare", names, 2, 2};
    struct mu_state *state = mu_state_of(module);
    struct mu_compare_options options = {.list_max = 10};
    struct mu_py_tensor a, b;
    PyObject *given[ALL], *result = NULL;
    if (mu_py_bind(&signature, args, count, keywords, given) < 0 ||
        (given[EQUAL_NAN] &&
         mu_py_bool(given[EQUAL_NAN], "equal_nan", &options.tolerance.equal_nan) < 0) ||
        (given[MAX_MISMATCHES] && mu_py_int64_in(given[MAX_MISMATCHES], "max_mismatches", 0,
                                                 INT64_MAX, &options.list_max) < 0) ||
        mu_py_tensor_view(state, given[A], "a", &a) < 0) {
        return NULL;
    }
    if (mu_py_tensor_view(state, given[B], "b", &b) < 0) {
        mu_py_tensor_release(&a);
        return NULL;
    }
    mu_compare_default_tolerance(a.view.dtype, b.view.dtype, &options.tolerance.atol,
                                 &options.tolerance.rtol);
    if (parse_tolerance(given[GIVEN_ATOL], "atol", &options.tolerance.atol) == 0 &&
        parse_tolerance(given[GIVEN_RTOL], "rtol", &options.tolerance.rtol) == 0) {
        result = compare_views(state, &a, &b, &options);
    }
    mu_py_tensor_release(&a);
    mu_py_tensor_release(&b);
    return result;
}

static PyMethodDef functions[] = {
    {"compare", (PyCFunction)(void (*)(void))compare, METH_FASTCALL | METH_KEYWORDS, compare_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_compare_exec(PyObject *module) {
    struct mu_state *state = mu_state_of(module);
    if (mu_py_add_type(module, &diff_spec, &state->tensor_diff_type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
