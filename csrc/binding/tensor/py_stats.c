/* stats and nan_inf_count, and their results: TensorStats, whose numbers become Python objects when
 * they are asked for, and NanInfCount, a named tuple. */
#include "core/args.h"
#include "core/heap_types.h"
#include "stats/nan_inf.h"
#include "stats/stats.h"
#include "tensor/py_measure.h"

#include <structmember.h>

struct tensor_stats {
    PyObject_HEAD struct mu_stats numbers;
    PyObject *min, *max, *abs_max; /* owned: int for tensors of integers, else float */
};

/* --- TensorStats: making one ------------------------------------------------------------------ */

/* Of a tensor of integers or bools. `bits`: as in mu_stats, for the types that a double rounds. */
static PyObject *integer_of(int dtype, double value, int64_t bits) {
    switch (dtype) {
    case MU_DTYPE_INT64:
        return PyLong_FromLongLong(bits);
    case MU_DTYPE_UINT64:
        return PyLong_FromUnsignedLongLong((uint64_t)bits);
    default:
        return PyLong_FromLongLong((int64_t)value);
    }
}

static PyObject *greatest_magnitude(PyObject *min, PyObject *max) {
    PyObject *negated = PyNumber_Negative(min);
    int is_min = negated == NULL ? -1 : PyObject_RichCompareBool(negated, max, Py_GT);
    if (is_min == 1) {
        return negated;
    }
    Py_XDECREF(negated);
    return is_min < 0 ? NULL : Py_NewRef(max);
}

/* The three numbers that are exact whatever the type. */
static int set_range(struct tensor_stats *self, int dtype) {
    const struct mu_stats *numbers = &self->numbers;
    uint8_t kind = mu_dtype_info(dtype)->kind;
    if (kind == MU_KIND_FLOAT || kind == MU_KIND_COMPLEX || numbers->finite == 0) {
        self->min = PyFloat_FromDouble(numbers->min);
        self->max = PyFloat_FromDouble(numbers->max);
        self->abs_max = PyFloat_FromDouble(numbers->abs_max);
    } else {
        self->min = integer_of(dtype, numbers->min, numbers->int_min);
        self->max = integer_of(dtype, numbers->max, numbers->int_max);
        if (self->min != NULL && self->max != NULL) {
            self->abs_max = greatest_magnitude(self->min, self->max);
        }
    }
    return self->min == NULL || self->max == NULL || self->abs_max == NULL ? -1 : 0;
}

static struct tensor_stats *make_stats(PyTypeObject *type) {
    struct tensor_stats *self = PyObject_New(struct tensor_stats, type);
    if (self != NULL) {
        self->min = self->max = self->abs_max = NULL;
    }
    return self;
}

static PyObject *stats_result(struct mu_state *state, const struct mu_tensor *tensor,
                              const void *result) {
    struct tensor_stats *self = make_stats(state->tensor_stats_type);
    if (self == NULL) {
        return NULL;
    }
    self->numbers = *(const struct mu_stats *)result;
    if (set_range(self, tensor->dtype) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int check_number(PyObject *value, const char *name) {
    if (PyFloat_CheckExact(value) || PyLong_CheckExact(value)) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "%s must be int or float, not %.100s (%.200R)", name,
                 Py_TYPE(value)->tp_name, value);
    return -1;
}

static PyObject *stats_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"count",    "finite",    "min",       "max",   "mean", "std",
                            "l1",       "l2",        "abs_max",   "zeros", "nans", "pos_infs",
                            "neg_infs", "first_nan", "first_inf", NULL};
    struct mu_stats numbers = {0};
    long long count, finite, zeros, nans, pos_infs, neg_infs, first_nan, first_inf;
    PyObject *min, *max, *abs_max;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LLOOddddOLLLLLL:TensorStats", names, &count,
                                     &finite, &min, &max, &numbers.mean, &numbers.std, &numbers.l1,
                                     &numbers.l2, &abs_max, &zeros, &nans, &pos_infs, &neg_infs,
                                     &first_nan, &first_inf) ||
        check_number(min, "min") < 0 || check_number(max, "max") < 0 ||
        check_number(abs_max, "abs_max") < 0) {
        return NULL;
    }
    struct tensor_stats *self = make_stats(type);
    if (self == NULL) {
        return NULL;
    }
    numbers.count = count;
    numbers.finite = finite;
    numbers.zeros = zeros;
    numbers.nans = nans;
    numbers.pos_infs = pos_infs;
    numbers.neg_infs = neg_infs;
    numbers.first_nan = first_nan;
    numbers.first_inf = first_inf;
    self->numbers = numbers;
    self->min = Py_NewRef(min);
    self->max = Py_NewRef(max);
    self->abs_max = Py_NewRef(abs_max);
    return (PyObject *)self;
}

static void stats_dealloc(PyObject *object) {
    struct tensor_stats *self = (struct tensor_stats *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->min);
    Py_XDECREF(self->max);
    Py_XDECREF(self->abs_max);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* --- TensorStats: what it shows --------------------------------------------------------------- */

#define COUNT(field, doc)                                                                          \
    {#field, T_LONGLONG, offsetof(struct tensor_stats, numbers.field), READONLY, doc}
#define REAL(field, doc)                                                                           \
    {#field, T_DOUBLE, offsetof(struct tensor_stats, numbers.field), READONLY, doc}
#define NUMBER(field, doc)                                                                         \
    {#field, T_OBJECT_EX, offsetof(struct tensor_stats, field), READONLY, doc}

/* In the order of the constructor's parameters. */
static PyMemberDef stats_members[] = {
    COUNT(count, "int: numbers; a complex or float4_e2m1fn_x2 element has two."),
    COUNT(finite, "int: numbers that are neither NaN nor infinite."),
    NUMBER(min, "The least finite number: int for integers and bool, else float; nan: none."),
    NUMBER(max, "The greatest finite number, like min."),
    REAL(mean, "float: mean of the finite numbers; nan where there are none."),
    REAL(std, "float: their sample standard deviation, divided by finite - 1 as torch.std does;\n"
              "nan below two."),
    REAL(l1, "float: sum of their magnitudes."),
    REAL(l2, "float: square root of the sum of their squares."),
    NUMBER(abs_max, "Their greatest magnitude, like min."),
    COUNT(zeros, "int: zeros of either sign."),
    COUNT(nans, "int: NaNs."),
    COUNT(pos_infs, "int: numbers that are +Inf."),
    COUNT(neg_infs, "int: numbers that are -Inf."),
    COUNT(first_nan, "int: row-major index of the first element with a NaN; -1: none."),
    COUNT(first_inf, "int: row-major index of the first element with an Inf; -1: none."),
    {NULL, 0, 0, 0, NULL},
};

enum { STATS_FIELDS = sizeof(stats_members) / sizeof(stats_members[0]) - 1 };

static PyObject *stats_values(PyObject *self) {
    PyObject *values = PyTuple_New(STATS_FIELDS);
    for (int i = 0; values != NULL && i < STATS_FIELDS; i++) {
        PyObject *value = PyMember_GetOne((const char *)self, &stats_members[i]);
        if (value == NULL) {
            Py_CLEAR(values);
        } else {
            PyTuple_SET_ITEM(values, i, value);
        }
    }
    return values;
}

static PyObject *stats_as_dict(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    PyObject *dict = PyDict_New();
    for (int i = 0; dict != NULL && i < STATS_FIELDS; i++) {
        PyObject *value = PyMember_GetOne((const char *)self, &stats_members[i]);
        if (value == NULL || PyDict_SetItemString(dict, stats_members[i].name, value) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(value);
    }
    return dict;
}

static PyObject *stats_reduce(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    PyObject *values = stats_values(self);
    return values == NULL ? NULL : Py_BuildValue("(ON)", Py_TYPE(self), values);
}

static PyObject *stats_repr(PyObject *self) {
    PyObject *values = stats_values(self);
    PyObject *text = values == NULL ? NULL : PyUnicode_FromString("TensorStats(");
    for (int i = 0; text != NULL && i < STATS_FIELDS; i++) {
        PyUnicode_AppendAndDel(&text, PyUnicode_FromFormat("%s%s=%R", i == 0 ? "" : ", ",
                                                           stats_members[i].name,
                                                           PyTuple_GET_ITEM(values, i)));
    }
    if (text != NULL) {
        PyUnicode_AppendAndDel(&text, PyUnicode_FromString(")"));
    }
    Py_XDECREF(values);
    return text;
}

/* 1, 0, or -1 with an exception. A NaN equals a NaN here. */
static int same_number(PyObject *a, PyObject *b) {
    if (PyFloat_CheckExact(a) && PyFloat_CheckExact(b)) {
        double left = PyFloat_AS_DOUBLE(a), right = PyFloat_AS_DOUBLE(b);
        return left == right || (left != left && right != right);
    }
    return PyObject_RichCompareBool(a, b, Py_EQ);
}

static PyObject *stats_compare(PyObject *self, PyObject *other, int op) {
    if ((op != Py_EQ && op != Py_NE) || Py_TYPE(self) != Py_TYPE(other)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    PyObject *left = stats_values(self), *right = stats_values(other);
    int same = left == NULL || right == NULL ? -1 : 1;
    for (int i = 0; same == 1 && i < STATS_FIELDS; i++) {
        same = same_number(PyTuple_GET_ITEM(left, i), PyTuple_GET_ITEM(right, i));
    }
    Py_XDECREF(left);
    Py_XDECREF(right);
    return same < 0 ? NULL : PyBool_FromLong(same == (op == Py_EQ));
}

/* Hashes numbers that are never NaN: Python's hash of a NaN depends on the object. */
static Py_hash_t stats_hash(PyObject *object) {
    const struct mu_stats *numbers = &((struct tensor_stats *)object)->numbers;
    PyObject *key = Py_BuildValue("(LLLdd)", (long long)numbers->count, (long long)numbers->finite,
                                  (long long)numbers->zeros, numbers->l1, numbers->l2);
    Py_hash_t hash = key == NULL ? -1 : PyObject_Hash(key);
    Py_XDECREF(key);
    return hash;
}

static PyMethodDef stats_methods[] = {
    {"as_dict", stats_as_dict, METH_NOARGS,
     PyDoc_STR("as_dict($self)\n--\n\nThe fields by name, in their order; plain ints and floats.")},
    {"__reduce__", stats_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(
    stats_type_doc,
    "TensorStats(count, finite, min, max, mean, std, l1, l2, abs_max, zeros, nans, pos_infs,\n"
    "            neg_infs, first_nan, first_inf)\n--\n\n"
    "What stats() found: statistics of the finite numbers, and what is not finite counted.\n\n"
    "Immutable, hashable, pickled by its fields. Two are equal when all fields are; a nan equals\n"
    "a nan here.");

static PyType_Slot stats_slots[] = {
    {Py_tp_doc, (void *)stats_type_doc},
    {Py_tp_new, stats_new},
    {Py_tp_dealloc, stats_dealloc},
    {Py_tp_members, stats_members},
    {Py_tp_methods, stats_methods},
    {Py_tp_repr, stats_repr},
    {Py_tp_hash, stats_hash},
    {Py_tp_richcompare, stats_compare},
    {0, NULL},
};

static PyType_Spec stats_spec = {
    .name = "my_utils.tensors.TensorStats",
    .basicsize = sizeof(struct tensor_stats),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = stats_slots,
};

/* --- NanInfCount ------------------------------------------------------------------------------ */

static PyStructSequence_Field count_fields[] = {
    {"nan", "int: NaNs."},
    {"pos_inf", "int: numbers that are +Inf."},
    {"neg_inf", "int: numbers that are -Inf."},
    {NULL, NULL},
};

static PyStructSequence_Desc count_desc = {
    .name = "my_utils.tensors.NanInfCount",
    .doc = "What nan_inf_count() found: the tuple (nan, pos_inf, neg_inf), by name or by place.",
    .fields = count_fields,
    .n_in_sequence = MU_NAN_INF_COUNTS,
};

static PyObject *count_repr(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    return PyUnicode_FromFormat(
        "NanInfCount(nan=%R, pos_inf=%R, neg_inf=%R)", PyTuple_GET_ITEM(self, MU_NANS),
        PyTuple_GET_ITEM(self, MU_POS_INFS), PyTuple_GET_ITEM(self, MU_NEG_INFS));
}

static PyMethodDef count_repr_def = {"__repr__", count_repr, METH_NOARGS, NULL};

/* The repr of struct sequences would begin with the module's name. */
static int set_count_repr(PyTypeObject *type) {
    PyObject *method = PyDescr_NewMethod(type, &count_repr_def);
    int status = method == NULL ? -1 : PyObject_SetAttrString((PyObject *)type, "__repr__", method);
    Py_XDECREF(method);
    return status;
}

static PyObject *count_result(struct mu_state *state, const struct mu_tensor *tensor,
                              const void *result) {
    const int64_t *counts = result;
    PyObject *tuple = PyStructSequence_New(state->nan_inf_count_type);
    (void)tensor;
    for (int i = 0; tuple != NULL && i < MU_NAN_INF_COUNTS; i++) {
        PyObject *count = PyLong_FromLongLong(counts[i]);
        if (count == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyStructSequence_SetItem(tuple, i, count);
        }
    }
    return tuple;
}

/* --- the functions ---------------------------------------------------------------------------- */

_Static_assert(sizeof(struct mu_stats) <= MU_PY_VALUE_BYTES, "a value has room for statistics");

static void measure_stats(const struct mu_tensor *tensor, void *value) {
    mu_stats_of(tensor, value);
}

static void measure_counts(const struct mu_tensor *tensor, void *value) {
    mu_nan_inf_count(tensor, value);
}

static const struct mu_py_measure stats_measure = {sizeof(struct mu_stats), &mu_py_gpu_stats,
                                                   measure_stats, stats_result};
static const struct mu_py_measure counts_measure = {
    sizeof(int64_t[MU_NAN_INF_COUNTS]), &mu_py_gpu_nan_inf, measure_counts, count_result};

static PyObject *stats(PyObject *module, PyObject *tensors) {
    return mu_py_measure(module, &stats_measure, tensors);
}

static PyObject *nan_inf_count(PyObject *module, PyObject *tensors) {
    return mu_py_measure(module, &counts_measure, tensors);
}

PyDoc_STRVAR(
    stats_doc,
    "stats($module, tensors, /)\n--\n\n"
    "Statistics of a tensor in one pass over its memory; of a list, one result each.\n\n"
    "Args:\n"
    "    tensors: a torch.Tensor of any dtype, shape, strides and device, a numpy array, any\n"
    "        object with the buffer protocol or __dlpack__, or a list or tuple of these.\n\n"
    "Returns:\n"
    "    A TensorStats: count, finite, min, max, mean, std, l1, l2, abs_max, zeros, nans, "
    "pos_infs,\n"
    "    neg_infs, first_nan and first_inf. All but the counts are of the finite numbers: one NaN\n"
    "    does not hide the rest. min, max and abs_max of integers and bools are exact ints.\n\n"
    "Raises:\n"
    "    TypeError: something is not a tensor, or has no memory.\n\n"
    "The mean lies within 1e-12 of the mean magnitude, std within 1e-10 of itself (two passes "
    "over\n"
    "blocks in the cache, merged after Chan, Golub and LeVeque, 1979), whatever the number of\n"
    "threads. A complex tensor is taken as its real and imaginary parts. Above 16 KiB the work is\n"
    "done without the GIL, and of bigger tensors on torch's threads. Tensors on a "
    "GPU\n"
    "are looked at there, and all results of a call are fetched with one wait.\n\n"
    ">>> import torch\n"
    ">>> from my_utils.tensors import stats\n"
    ">>> found = stats(torch.tensor([1.0, 3.0, float('nan'), 0.0]))\n"
    ">>> found.count, found.nans, found.first_nan, found.min, found.max\n"
    "(4, 1, 2, 0.0, 3.0)\n"
    ">>> round(found.mean, 6), round(found.std, 6)\n"
    "(1.333333, 1.527525)\n");

PyDoc_STRVAR(
    nan_inf_count_doc,
    "nan_inf_count($module, tensors, /)\n--\n\n"
    "How many NaNs, +Infs and -Infs a tensor has; of a list, one result each.\n\n"
    "Args:\n"
    "    tensors: as of stats.\n\n"
    "Returns:\n"
    "    A NanInfCount: the named tuple (nan, pos_inf, neg_inf). Of a complex element both parts\n"
    "    count. Dtypes that have neither are not read.\n\n"
    "Raises:\n"
    "    TypeError: something is not a tensor, or has no memory.\n\n"
    "As fast as memory can be read. Threads, the GIL and GPUs: as for stats.\n\n"
    ">>> import torch\n"
    ">>> from my_utils.tensors import nan_inf_count\n"
    ">>> nan_inf_count(torch.tensor([1.0, float('inf'), float('nan')]))\n"
    "NanInfCount(nan=1, pos_inf=1, neg_inf=0)\n"
    ">>> any(nan_inf_count(torch.zeros(3)))\n"
    "False\n");

static PyMethodDef functions[] = {
    {"stats", stats, METH_O, stats_doc},
    {"nan_inf_count", nan_inf_count, METH_O, nan_inf_count_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_stats_exec(PyObject *module) {
    struct mu_state *state = mu_state_of(module);
    state->nan_inf_count_type = PyStructSequence_NewType(&count_desc);
    if (state->nan_inf_count_type == NULL || set_count_repr(state->nan_inf_count_type) < 0 ||
        PyModule_AddType(module, state->nan_inf_count_type) < 0 ||
        mu_py_add_type(module, &stats_spec, &state->tensor_stats_type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
