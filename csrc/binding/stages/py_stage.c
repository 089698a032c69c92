/* The Stage type, which time_stage returns. It is a context manager, an asynchronous context
 * manager and a decorator. The last two are not hot; their code is in
 * my_utils/record/stages/decorated.py. */
#include "core/heap_types.h"
#include "stages/py_timer.h"

PyObject *mu_py_stage_new(struct mu_py_timer *timer, PyObject *name,
                          const struct mu_py_appearance *appearance, PyObject *domain) {
    PyTypeObject *type = timer->state->stage_type;
    struct mu_py_stage *self = (struct mu_py_stage *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->timer = (struct mu_py_timer *)Py_NewRef((PyObject *)timer);
    self->text = Py_NewRef(name);
    if (appearance != NULL) {
        self->has_appearance = true;
        self->appearance = *appearance;
        self->domain = Py_XNewRef(domain);
    }
    if (mu_py_name_of(name, "stage_name", &self->name) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *stage_enter(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct mu_py_stage *self = (struct mu_py_stage *)object;
    if (mu_py_timer_enter(self->timer, self) < 0) {
        return NULL;
    }
    mu_py_count_up(&self->entered);
    return Py_NewRef(object);
}

static PyObject *stage_exit(PyObject *object, PyObject *const *Py_UNUSED(args),
                            Py_ssize_t Py_UNUSED(count)) {
    struct mu_py_stage *self = (struct mu_py_stage *)object;
    mu_py_count_down(&self->entered);
    if (mu_py_timer_leave(self->timer, self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Calls a function of my_utils.record.stages.decorated with the stage and an argument, which may be
 * NULL. */
static PyObject *call_python(PyObject *self, const char *function, PyObject *argument) {
    PyObject *module = PyImport_ImportModule("my_utils.record.stages.decorated");
    if (module == NULL) {
        return NULL;
    }
    PyObject *result = argument == NULL
                           ? PyObject_CallMethod(module, function, "O", self)
                           : PyObject_CallMethod(module, function, "OO", self, argument);
    Py_DECREF(module);
    return result;
}

static PyObject *stage_aenter(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    return call_python(self, "enter_async", NULL);
}

static PyObject *stage_aexit(PyObject *self, PyObject *const *Py_UNUSED(args),
                             Py_ssize_t Py_UNUSED(count)) {
    return call_python(self, "exit_async", NULL);
}

static PyObject *stage_call(PyObject *self, PyObject *args, PyObject *kwargs) {
    PyObject *function;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "a stage as a decorator takes the function only");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O:Stage", &function)) {
        return NULL;
    }
    return call_python(self, "wrap", function);
}

static int stage_traverse(PyObject *object, visitproc visit, void *arg) {
    struct mu_py_stage *self = (struct mu_py_stage *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->timer);
    return 0;
}

static int stage_clear(PyObject *object) {
    Py_CLEAR(((struct mu_py_stage *)object)->timer);
    return 0;
}

static void stage_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    stage_clear(object);
    Py_CLEAR(((struct mu_py_stage *)object)->text);
    Py_CLEAR(((struct mu_py_stage *)object)->domain);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *get_name(PyObject *object, void *Py_UNUSED(closure)) {
    return Py_NewRef(((struct mu_py_stage *)object)->text);
}

static PyObject *get_timer(PyObject *object, void *Py_UNUSED(closure)) {
    return Py_NewRef((PyObject *)((struct mu_py_stage *)object)->timer);
}

static PyGetSetDef stage_getset[] = {
    {"name", get_name, NULL, NULL, NULL},
    {"timer", get_timer, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef stage_methods[] = {
    {"__enter__", stage_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))stage_exit, METH_FASTCALL, NULL},
    {"__aenter__", stage_aenter, METH_NOARGS, NULL},
    {"__aexit__", (PyCFunction)(void (*)(void))stage_aexit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(stage_doc,
             "A stage of a timer by name: a context manager, an asynchronous one, and a\n"
             "decorator. Made by Timer.time_stage; may be used by many threads at once.");

static PyType_Slot stage_slots[] = {
    {Py_tp_doc, (void *)stage_doc},   {Py_tp_dealloc, stage_dealloc},
    {Py_tp_traverse, stage_traverse}, {Py_tp_clear, stage_clear},
    {Py_tp_call, stage_call},         {Py_tp_methods, stage_methods},
    {Py_tp_getset, stage_getset},     {0, NULL},
};

static PyType_Spec stage_spec = {
    .name = "my_utils._core.Stage",
    .basicsize = sizeof(struct mu_py_stage),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = stage_slots,
};

int mu_py_stage_exec(PyObject *module) {
    return mu_py_add_type(module, &stage_spec, &mu_state_of(module)->stage_type);
}
