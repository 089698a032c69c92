/* The object that says whether any TimeRecorder is enabled in this process.
 *
 * A timed function asks it before it calls anything of C: it is read by a plain load of an
 * attribute, which CPython specialises and torch.compile understands. */
#include "timing/py_time.h"

#include <structmember.h>

#include "core/heap_types.h"

struct timing_switch {
    PyObject_HEAD PyObject *on; /* owned: True or False */
};

static PyObject *switch_repr(PyObject *object) {
    return PyUnicode_FromFormat("<timing_switch, on=%R>", ((struct timing_switch *)object)->on);
}

/* There is one in a process: it is pickled by its name. */
static PyObject *switch_reduce(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(ignored)) {
    return PyUnicode_FromString("timing_switch");
}

static void switch_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_CLEAR(((struct timing_switch *)object)->on);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMemberDef switch_members[] = {
    {"on", T_OBJECT_EX, offsetof(struct timing_switch, on), READONLY,
     PyDoc_STR("bool: whether a TimeRecorder is enabled in any thread or task.")},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef switch_methods[] = {
    {"__reduce__", switch_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(switch_doc, "Whether any TimeRecorder of this process is enabled; timing_switch is\n"
                         "the only one.");

static PyType_Slot switch_slots[] = {
    {Py_tp_doc, (void *)switch_doc},
    {Py_tp_dealloc, switch_dealloc},
    {Py_tp_traverse, mu_py_traverse_type},
    {Py_tp_repr, switch_repr},
    {Py_tp_members, switch_members},
    {Py_tp_methods, switch_methods},
    {0, NULL},
};

static PyType_Spec switch_spec = {
    .name = "my_utils._core.TimingSwitch",
    .basicsize = sizeof(struct timing_switch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_HAVE_GC,
    .slots = switch_slots,
};

void mu_py_timing_switch_set(struct mu_state *state, int on) {
    struct timing_switch *self = (struct timing_switch *)state->timing_switch;
    if (self == NULL) {
        return;
    }
    PyObject *value = Py_NewRef(on ? Py_True : Py_False);
#if MU_FREE_THREADED
    /* Both are immortal, and other threads are reading. */
    __atomic_store_n(&self->on, value, __ATOMIC_RELEASE);
#else
    Py_SETREF(self->on, value);
#endif
}

int mu_py_timing_switch_exec(PyObject *module) {
    PyTypeObject *type = NULL;
    if (mu_py_add_type(module, &switch_spec, &type) < 0) {
        return -1;
    }
    struct timing_switch *self = (struct timing_switch *)type->tp_alloc(type, 0);
    Py_DECREF(type);
    if (self == NULL) {
        return -1;
    }
    self->on = Py_NewRef(Py_False);
    mu_state_of(module)->timing_switch = (PyObject *)self;
    return PyModule_AddObjectRef(module, "timing_switch", (PyObject *)self);
}
