/* The type Replacer: rules, made once, that any number of threads apply to texts. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>

#include "core/args.h"
#include "core/heap_types.h"
#include "core/state.h"
#include "replace/replace.h"
#include "replace/replace_names.h"
#include "tensor/py_tensor.h"

struct py_replacer {
    PyObject_HEAD struct mu_replacer *replacer; /* owned */
};

/* --- rules --- */

static int parse_rule(PyObject *pair, struct mu_replace_rule *rule) {
    PyObject *from =
        PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2 ? PyTuple_GET_ITEM(pair, 0) : NULL;
    PyObject *to = from == NULL ? NULL : PyTuple_GET_ITEM(pair, 1);
    if (from == NULL || !PyBytes_Check(from) || !(to == Py_None || PyBytes_Check(to))) {
        PyErr_Format(PyExc_TypeError, "a rule must be (bytes, bytes) or (bytes, None), not %.200R",
                     pair);
        return -1;
    }
    rule->from = PyBytes_AS_STRING(from);
    rule->from_length = (size_t)PyBytes_GET_SIZE(from);
    rule->to = to == Py_None ? NULL : PyBytes_AS_STRING(to);
    rule->to_length = to == Py_None ? 0 : (size_t)PyBytes_GET_SIZE(to);
    return 0;
}

/* The rules are owned by the caller, free(), also after an error; their bytes are borrowed. */
static int parse_tier(PyObject *pair, struct mu_replace_tier *tier) {
    int whole;
    PyObject *rules =
        PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2 ? PyTuple_GET_ITEM(pair, 0) : NULL;
    if (rules == NULL || !PyTuple_Check(rules)) {
        PyErr_Format(PyExc_TypeError, "a tier must be (tuple of rules, whole), not %.200R", pair);
        return -1;
    }
    if (mu_py_bool(PyTuple_GET_ITEM(pair, 1), "whole", &whole) < 0) {
        return -1;
    }
    size_t count = (size_t)PyTuple_GET_SIZE(rules);
    struct mu_replace_rule *parsed = calloc(count + 1, sizeof(*parsed));
    *tier = (struct mu_replace_tier){parsed, count, whole != 0};
    if (parsed == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        if (parse_rule(PyTuple_GET_ITEM(rules, (Py_ssize_t)i), &parsed[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static struct mu_replacer *make_replacer(PyObject *tiers) {
    struct mu_replace_tier parsed[MU_REPLACE_TIERS_MAX] = {0};
    struct mu_replacer *replacer = NULL;
    struct mu_error err;
    Py_ssize_t count = PyTuple_Check(tiers) ? PyTuple_GET_SIZE(tiers) : -1;
    int failed = count < 0 || count > MU_REPLACE_TIERS_MAX;
    if (failed) {
        PyErr_Format(PyExc_TypeError, "tiers must be a tuple of at most %d, not %.200R",
                     MU_REPLACE_TIERS_MAX, tiers);
    }
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        failed = parse_tier(PyTuple_GET_ITEM(tiers, i), &parsed[i]) < 0;
    }
    if (!failed && mu_replacer_new(parsed, (size_t)count, &replacer, &err) != MU_OK) {
        mu_py_raise(&err);
    }
    for (size_t i = 0; i < MU_REPLACE_TIERS_MAX; i++) {
        free((void *)parsed[i].rules);
    }
    return replacer;
}

static PyObject *replacer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"tiers", NULL};
    PyObject *tiers;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Replacer", names, &tiers)) {
        return NULL;
    }
    struct mu_replacer *replacer = make_replacer(tiers);
    if (replacer == NULL) {
        return NULL;
    }
    struct py_replacer *self = (struct py_replacer *)type->tp_alloc(type, 0);
    if (self == NULL) {
        mu_replacer_free(replacer);
        return NULL;
    }
    self->replacer = replacer;
    return (PyObject *)self;
}

static void replacer_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    mu_replacer_free(((struct py_replacer *)object)->replacer);
    type->tp_free(object);
    Py_DECREF(type);
}

/* --- texts --- */

/* What is made of one text without the GIL. */
struct result {
    struct mu_replaced replaced;
    struct mu_replace_name *names; /* owned: those that were watched */
    size_t name_count;
};

static int add_name(PyObject *names, const char *text, const struct mu_replace_name *name) {
    size_t length = name->span.end - name->span.start;
    PyObject *key = PyUnicode_DecodeLatin1(text + name->span.start, (Py_ssize_t)length, NULL);
    PyObject *value =
        Py_BuildValue("KK", (unsigned long long)name->count, (unsigned long long)name->line);
    int failed = key == NULL || value == NULL ? -1 : PyDict_SetItem(names, key, value);
    Py_XDECREF(key);
    Py_XDECREF(value);
    return failed;
}

static PyObject *names_of(const struct result *result, const char *text) {
    PyObject *names = PyDict_New();
    for (size_t i = 0; names != NULL && i < result->name_count; i++) {
        if (add_name(names, text, &result->names[i]) < 0) {
            Py_CLEAR(names);
        }
    }
    return names;
}

static PyObject *tuple_of(const struct result *result, const char *old_text) {
    const struct mu_replaced *replaced = &result->replaced;
    PyObject *names = names_of(result, old_text);
    if (names == NULL) {
        return NULL;
    }
    if (replaced->count == 0) {
        return Py_BuildValue("OKN", Py_None, 0ULL, names);
    }
    PyObject *text = PyBytes_FromStringAndSize(replaced->bytes, (Py_ssize_t)replaced->length);
    if (text == NULL) {
        Py_DECREF(names);
        return NULL;
    }
    return Py_BuildValue("NKN", text, (unsigned long long)replaced->count, names);
}

static int apply(const struct mu_replacer *replacer, const Py_buffer *text, struct result *result,
                 struct mu_error *err) {
    int code = mu_replacer_run(replacer, text->buf, (size_t)text->len, &result->replaced, err);
    if (code == MU_OK) {
        code = mu_replace_names(&result->replaced, text->buf, &result->names, &result->name_count,
                                err);
    }
    return code;
}

static int run(const struct mu_replacer *replacer, const Py_buffer *text, struct result *result,
               struct mu_error *err) {
    int code;
    if (text->len <= MU_PY_GIL_BYTES) {
        return apply(replacer, text, result, err);
    }
    Py_BEGIN_ALLOW_THREADS;
    code = apply(replacer, text, result, err);
    Py_END_ALLOW_THREADS;
    return code;
}

PyDoc_STRVAR(replace_doc,
             "replace($self, text, /)\n--\n\n"
             "Applies the rules to bytes: (new text, replacements, watched names).\n\n"
             "The text is None when nothing is to be changed; watched names are a dict, by place:\n"
             "how often each came, and the line of the first. Bytes that are not ASCII stand in\n"
             "them as Latin-1. Safe to call from several threads; lets the GIL go for long texts.");

static PyObject *replacer_replace(PyObject *object, PyObject *text) {
    const struct mu_replacer *replacer = ((struct py_replacer *)object)->replacer;
    Py_buffer buffer;
    struct result result = {0};
    struct mu_error err;
    if (PyObject_GetBuffer(text, &buffer, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    int code = run(replacer, &buffer, &result, &err);
    PyObject *tuple = code == MU_OK ? tuple_of(&result, buffer.buf) : mu_py_raise(&err);
    PyBuffer_Release(&buffer);
    mu_replaced_reset(&result.replaced);
    free(result.names);
    return tuple;
}

PyDoc_STRVAR(replacer_doc,
             "Replacer(tiers)\n--\n\n"
             "Rules that replace names in texts, in one pass.\n\n"
             "tiers: of ((from, to), ...) and whether they match whole names only. Rules of an\n"
             "earlier tier win; within one the leftmost match, and of those the longest. Where\n"
             "`to` is None, names that begin with `from` and match no rule are watched.");

static PyMethodDef replacer_methods[] = {
    {"replace", replacer_replace, METH_O, replace_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot replacer_slots[] = {
    {Py_tp_new, replacer_new},
    {Py_tp_dealloc, replacer_dealloc},
    {Py_tp_methods, replacer_methods},
    {Py_tp_doc, (void *)replacer_doc},
    {0, NULL},
};

static PyType_Spec replacer_spec = {
    .name = "my_utils._core.Replacer",
    .basicsize = sizeof(struct py_replacer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = replacer_slots,
};

int mu_py_replace_exec(PyObject *module) {
    return mu_py_add_type(module, &replacer_spec, NULL);
}
