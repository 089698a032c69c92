/* The StageCall type: a function whose calls are stages of a run, without a Python frame.
 *
 * It takes the place of a function that only eager code calls. In all else it is the function:
 * attributes, documentation, pickling by name.
 */
#include "run/py_run_stages.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>

#include "core/heap_types.h"

struct stage_call {
    PyObject_HEAD PyObject *function; /* owned */
    struct mu_py_run_stages *stages;  /* owned */
    enum mu_run_stage stage;
    PyObject
        *keyword; /* owned: a call with this argument false keeps the loss going; may be NULL */
    vectorcallfunc vectorcall;
    PyObject *weak_references; /* the interpreter's */
};

static bool is_false(const struct stage_call *self, PyObject *const *args, Py_ssize_t count,
                     PyObject *keywords) {
    Py_ssize_t named = self->keyword == NULL || keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    for (Py_ssize_t i = 0; i < named; i++) {
        if (PyTuple_GET_ITEM(keywords, i) == self->keyword) {
            return args[count + i] == Py_False;
        }
    }
    return false;
}

static PyObject *call_vectorcall(PyObject *object, PyObject *const *args, size_t flags,
                                 PyObject *keywords) {
    struct stage_call *self = (struct stage_call *)object;
    bool keeps_loss = is_false(self, args, PyVectorcall_NARGS(flags), keywords);
    bool began;
    MU_BEGIN_SECTION((PyObject *)self->stages);
    began = mu_py_run_begin(self->stages, self->stage, keeps_loss);
    MU_END_SECTION();
    PyObject *result = PyObject_Vectorcall(self->function, args, flags, keywords);
    if (began) {
        MU_BEGIN_SECTION((PyObject *)self->stages);
        mu_py_run_end(self->stages);
        MU_END_SECTION();
    }
    return result;
}

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"function", "stages", "stage", "keyword", NULL};
    struct mu_state *state;
    PyObject *function, *stages, *keyword = NULL;
    int stage;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOi|U:StageCall", names, &function, &stages,
                                     &stage, &keyword)) {
        return NULL;
    }
    struct stage_call *self = (struct stage_call *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    state = mu_state_of_object((PyObject *)self);
    if (state == NULL || !PyObject_TypeCheck(stages, state->run_stages_type) || stage < 0 ||
        stage >= MU_RUN_STAGES) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "StageCall needs a RunStages and the number of a "
                                             "stage");
        }
        Py_DECREF(self);
        return NULL;
    }
    self->function = Py_NewRef(function);
    self->stages = (struct mu_py_run_stages *)Py_NewRef(stages);
    self->stage = (enum mu_run_stage)stage;
    self->keyword = Py_XNewRef(keyword);
    if (self->keyword != NULL) {
        PyUnicode_InternInPlace(&self->keyword);
    }
    self->vectorcall = call_vectorcall;
    return (PyObject *)self;
}

static int call_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((struct stage_call *)object)->function);
    Py_VISIT(((struct stage_call *)object)->stages);
    return 0;
}

static int call_clear(PyObject *object) {
    Py_CLEAR(((struct stage_call *)object)->function);
    Py_CLEAR(((struct stage_call *)object)->stages);
    return 0;
}

static void call_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    PyObject_ClearWeakRefs(object);
    call_clear(object);
    Py_CLEAR(((struct stage_call *)object)->keyword);
    type->tp_free(object);
    Py_DECREF(type);
}

/* As a method it binds, as a function does. */
static PyObject *call_bind(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type)) {
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static PyObject *call_getattro(PyObject *object, PyObject *name) {
    struct stage_call *self = (struct stage_call *)object;
    const char *text = PyUnicode_AsUTF8(name);
    if (text == NULL) {
        return NULL;
    }
    if (strcmp(text, "__class__") == 0 || strcmp(text, "__reduce__") == 0 ||
        strcmp(text, "__reduce_ex__") == 0) {
        return PyObject_GenericGetAttr(object, name);
    }
    if (strcmp(text, "__wrapped__") == 0) {
        return Py_NewRef(self->function);
    }
    return PyObject_GetAttr(self->function, name);
}

static int call_setattro(PyObject *object, PyObject *name, PyObject *value) {
    return PyObject_SetAttr(((struct stage_call *)object)->function, name, value);
}

static PyObject *call_repr(PyObject *object) {
    return PyObject_Repr(((struct stage_call *)object)->function);
}

static PyObject *call_reduce(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    return PyObject_GetAttrString(((struct stage_call *)object)->function, "__qualname__");
}

static PyMemberDef call_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(struct stage_call, vectorcall), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(struct stage_call, weak_references), READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef call_methods[] = {
    {"__reduce__", call_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(call_doc, "StageCall(function, stages, stage, keyword=...)\n--\n\n"
                       "`function`, whose calls are the stage of that number of a RunStages.\n\n"
                       "keyword: where this argument is False, a loss that is being computed goes\n"
                       "on after the call.");

static PyType_Slot call_slots[] = {
    {Py_tp_doc, (void *)call_doc},
    {Py_tp_new, call_new},
    {Py_tp_dealloc, call_dealloc},
    {Py_tp_traverse, call_traverse},
    {Py_tp_clear, call_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, call_bind},
    {Py_tp_getattro, call_getattro},
    {Py_tp_setattro, call_setattro},
    {Py_tp_repr, call_repr},
    {Py_tp_members, call_members},
    {Py_tp_methods, call_methods},
    {0, NULL},
};

static PyType_Spec call_spec = {
    .name = "my_utils._core.StageCall",
    .basicsize = sizeof(struct stage_call),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
             Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = call_slots,
};

int mu_py_stage_call_exec(PyObject *module) {
    return mu_py_add_type(module, &call_spec, NULL);
}
