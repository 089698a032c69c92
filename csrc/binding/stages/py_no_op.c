/* NoOpTimer and its stage. They have the methods of Timer, and each costs an empty C method. */
#include "core/heap_types.h"
#include "stages/py_timer.h"

static PyObject *nothing(PyObject *Py_UNUSED(self), PyObject *const *Py_UNUSED(args),
                         Py_ssize_t Py_UNUSED(count), PyObject *Py_UNUSED(keywords)) {
    Py_RETURN_NONE;
}

static PyObject *itself(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    return Py_NewRef(self);
}

static PyObject *empty_list(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored)) {
    return PyList_New(0);
}

/* --- the stage ---------------------------------------------------------------------------- */

/* An awaitable that is done at once. It is the stage itself; its __await__ returns an empty
 * iterator. */
static PyObject *await_nothing(PyObject *Py_UNUSED(self)) {
    PyObject *empty = PyTuple_New(0);
    PyObject *iterator = empty == NULL ? NULL : PyObject_GetIter(empty);
    Py_XDECREF(empty);
    return iterator;
}

static PyObject *itself_at_exit(PyObject *self, PyObject *const *Py_UNUSED(args),
                                Py_ssize_t Py_UNUSED(count)) {
    return Py_NewRef(self);
}

static PyObject *call_returns_function(PyObject *Py_UNUSED(self), PyObject *args,
                                       PyObject *Py_UNUSED(kwargs)) {
    PyObject *function;
    if (!PyArg_ParseTuple(args, "O:NoOpStage", &function)) {
        return NULL;
    }
    return Py_NewRef(function);
}

static void no_op_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef stage_methods[] = {
    {"__enter__", itself, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))nothing, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"__aenter__", itself, METH_NOARGS, NULL},
    {"__aexit__", (PyCFunction)(void (*)(void))itself_at_exit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot stage_slots[] = {
    {Py_tp_doc, (void *)"The stage of every NoOpTimer: does nothing."},
    {Py_tp_dealloc, no_op_dealloc},
    {Py_tp_traverse, mu_py_traverse_type},
    {Py_tp_call, call_returns_function},
    {Py_am_await, await_nothing},
    {Py_tp_methods, stage_methods},
    {0, NULL},
};

static PyType_Spec stage_spec = {
    .name = "my_utils._core.NoOpStage",
    .basicsize = sizeof(PyObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_GC,
    .slots = stage_slots,
};

/* --- the timer ---------------------------------------------------------------------------- */

struct no_op_timer {
    PyObject_HEAD PyObject *stage; /* owned: the one of the module */
};

static PyObject *timer_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
                           PyObject *Py_UNUSED(kwargs)) {
    struct no_op_timer *self = (struct no_op_timer *)type->tp_alloc(type, 0);
    struct mu_state *state = self == NULL ? NULL : mu_state_of_object((PyObject *)self);
    if (state == NULL) {
        Py_XDECREF(self);
        return NULL;
    }
    self->stage = Py_NewRef(state->no_op_stage);
    return (PyObject *)self;
}

static int timer_init(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args),
                      PyObject *Py_UNUSED(kwargs)) {
    return 0;
}

static void timer_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    Py_CLEAR(((struct no_op_timer *)object)->stage);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *timer_time_stage(PyObject *self, PyObject *const *Py_UNUSED(args),
                                  Py_ssize_t Py_UNUSED(count), PyObject *Py_UNUSED(keywords)) {
    return Py_NewRef(((struct no_op_timer *)self)->stage);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL | METH_KEYWORDS

static PyMethodDef timer_methods[] = {
    {"start", FAST(nothing),
     "start($self, stage_name, color='blue', domain_name=None)\n--\n\nDoes nothing."},
    {"stop", FAST(nothing), "stop($self, stage_name)\n--\n\nDoes nothing."},
    {"time_stage", FAST(timer_time_stage),
     "time_stage($self, stage_name, color='blue', domain_name=None)\n--\n\nA stage that does "
     "nothing, as context manager and decorator."},
    {"set_step", FAST(nothing), "set_step($self, iteration)\n--\n\nDoes nothing."},
    {"step", FAST(nothing), "step($self, wait=True)\n--\n\nDoes nothing."},
    {"synchronize_and_log", FAST(nothing),
     "synchronize_and_log($self, wait=True)\n--\n\nDoes nothing."},
    {NULL, NULL, 0, NULL},
};

static PyObject *timer_init_subclass(PyObject *type, PyObject *Py_UNUSED(ignored)) {
    if (mu_py_own_descriptors((PyTypeObject *)type, timer_methods) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Methods that are not hot. Subclasses inherit them as they are. */
static PyMethodDef inherited_methods[] = {
    {"aggregates", empty_list, METH_NOARGS, "aggregates($self)\n--\n\nAn empty list."},
    {"cuda_aggregates", empty_list, METH_NOARGS, "cuda_aggregates($self)\n--\n\nAn empty list."},
    {"totals", empty_list, METH_NOARGS, "totals($self)\n--\n\nAn empty list."},
    {"register_stage", FAST(nothing),
     "register_stage($self, stage_name, color='blue', domain_name=None, category=None)\n--\n\nDoes "
     "nothing."},
    {"__init_subclass__", timer_init_subclass, METH_NOARGS | METH_CLASS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *zero(PyObject *Py_UNUSED(self), void *Py_UNUSED(closure)) {
    return PyLong_FromLong(0);
}

static PyObject *no(PyObject *Py_UNUSED(self), void *Py_UNUSED(closure)) {
    Py_RETURN_FALSE;
}

static PyObject *empty_text(PyObject *Py_UNUSED(self), void *Py_UNUSED(closure)) {
    return PyUnicode_FromString("");
}

static PyGetSetDef timer_getset[] = {
    {"tag", empty_text, NULL, NULL, NULL},     {"strict", no, NULL, NULL, NULL},
    {"use_cuda", no, NULL, NULL, NULL},        {"current_step", zero, NULL, NULL, NULL},
    {"depth", zero, NULL, NULL, NULL},         {"unmatched_stops", zero, NULL, NULL, NULL},
    {"closed_stages", zero, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot timer_slots[] = {
    {Py_tp_doc, (void *)"NoOpTimer(*args, **kwargs)\n--\n\nTakes every call of Timer and does "
                        "nothing; the base of my_utils.utils.NoOpMyTimer."},
    {Py_tp_new, timer_new},
    {Py_tp_init, timer_init},
    {Py_tp_dealloc, timer_dealloc},
    {Py_tp_methods, inherited_methods},
    {Py_tp_getset, timer_getset},
    {0, NULL},
};

static PyType_Spec timer_spec = {
    .name = "my_utils._core.NoOpTimer",
    .basicsize = sizeof(struct no_op_timer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = timer_slots,
};

int mu_py_no_op_exec(PyObject *module) {
    struct mu_state *state = mu_state_of(module);
    if (mu_py_add_type(module, &stage_spec, &state->no_op_stage_type) < 0) {
        return -1;
    }
    state->no_op_stage = state->no_op_stage_type->tp_alloc(state->no_op_stage_type, 0);
    PyTypeObject *timer;
    if (state->no_op_stage == NULL || mu_py_add_type(module, &timer_spec, &timer) < 0) {
        return -1;
    }
    int rc = mu_py_own_descriptors(timer, timer_methods);
    Py_DECREF(timer);
    return rc;
}
