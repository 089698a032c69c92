/* Functions and `with` blocks that are timed into recorders. */
#include "timing/py_time.h"

#include <structmember.h>

#include "core/args.h"
#include "core/free_threading.h"
#include "core/heap_types.h"

/* --- functions ------------------------------------------------------------------------------ */

struct timed_function {
    PyObject_HEAD vectorcallfunc call;
    struct mu_state *state; /* borrowed from the module, which the type keeps alive */
    PyObject *function;     /* owned */
    PyObject *name;         /* owned: an exact str */
    PyObject *recorders;    /* owned: a tuple; NULL: those enabled at the call */
    struct mu_py_series series;
};

/* Keeps the function alive during the call, even when the call drops the last reference to it. */
static PyObject *call_timed(struct timed_function *self, PyObject *recorders, PyObject *const *args,
                            size_t flags, PyObject *keywords) {
    Py_INCREF(self);
    uint64_t began = mu_py_now_ns();
    PyObject *result = PyObject_Vectorcall(self->function, args, flags, keywords);
    uint64_t ns = mu_py_now_ns() - began;
    mu_py_record(recorders, self->name, ns, &self->series);
    Py_DECREF(self);
    return result;
}

PyDoc_STRVAR(run_doc, "run($self, /, *args, **kwargs)\n--\n\n"
                      "A call of the function, as a method: CPython has a quicker way to those.");

static PyObject *function_run(PyObject *object, PyObject *const *args, Py_ssize_t count,
                              PyObject *keywords) {
    struct timed_function *self = (struct timed_function *)object;
    PyObject *recorders =
        self->recorders == NULL ? mu_py_enabled_recorders(self->state) : Py_NewRef(self->recorders);
    if (__builtin_expect(recorders == NULL, 0)) {
        return PyObject_Vectorcall(self->function, args, (size_t)count, keywords);
    }
    PyObject *result = call_timed(self, recorders, args, (size_t)count, keywords);
    Py_DECREF(recorders);
    return result;
}

static PyObject *function_call(PyObject *object, PyObject *const *args, size_t flags,
                               PyObject *keywords) {
    return function_run(object, args, PyVectorcall_NARGS(flags), keywords);
}

static int check_recorders(const struct mu_state *state, PyObject *recorders) {
    int right = PyTuple_Check(recorders);
    for (Py_ssize_t i = 0; right && i < PyTuple_GET_SIZE(recorders); i++) {
        right = PyObject_TypeCheck(PyTuple_GET_ITEM(recorders, i), state->time_recorder_type);
    }
    if (!right) {
        PyErr_Format(PyExc_TypeError,
                     "recorders must be None or a tuple of TimeRecorder, not %.100s (%.200R)",
                     Py_TYPE(recorders)->tp_name, recorders);
    }
    return right ? 0 : -1;
}

static PyObject *function_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"function", "name", "recorders", NULL};
    struct mu_state *state = PyType_GetModuleState(type);
    PyObject *function, *name, *recorders = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:TimedFunction", names, &function, &name,
                                     &recorders)) {
        return NULL;
    }
    if (!PyCallable_Check(function)) {
        return PyErr_Format(PyExc_TypeError, "function must be callable, not %.100s (%.200R)",
                            Py_TYPE(function)->tp_name, function);
    }
    if (recorders != Py_None && check_recorders(state, recorders) < 0) {
        return NULL;
    }
    PyObject *exact = mu_py_exact_name(name, "name");
    struct timed_function *self =
        exact == NULL ? NULL : (struct timed_function *)type->tp_alloc(type, 0);
    if (self == NULL) {
        Py_XDECREF(exact);
        return NULL;
    }
    self->call = function_call;
    self->state = state;
    self->function = Py_NewRef(function);
    self->name = exact;
    self->recorders = recorders == Py_None ? NULL : Py_NewRef(recorders);
    return (PyObject *)self;
}

static PyObject *function_repr(PyObject *object) {
    struct timed_function *self = (struct timed_function *)object;
    return PyUnicode_FromFormat("<timed %R as %R>", self->function, self->name);
}

/* By value: it is pickled as a part of a function that has no name to be found by. */
static PyObject *function_reduce(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct timed_function *self = (struct timed_function *)object;
    PyObject *recorders = self->recorders == NULL ? Py_None : self->recorders;
    return Py_BuildValue("O(OOO)", Py_TYPE(object), self->function, self->name, recorders);
}

static int function_traverse(PyObject *object, visitproc visit, void *arg) {
    struct timed_function *self = (struct timed_function *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->function);
    Py_VISIT(self->recorders);
    return 0;
}

static int function_clear(PyObject *object) {
    Py_CLEAR(((struct timed_function *)object)->recorders);
    return 0;
}

static void function_dealloc(PyObject *object) {
    struct timed_function *self = (struct timed_function *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    function_clear(object);
    Py_CLEAR(self->function);
    Py_CLEAR(self->name);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMemberDef function_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(struct timed_function, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef function_methods[] = {
    {"__reduce__", function_reduce, METH_NOARGS, NULL},
    {"run", (PyCFunction)(void (*)(void))function_run, METH_FASTCALL | METH_KEYWORDS, run_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(
    function_doc,
    "TimedFunction(function, name, recorders=None)\n--\n\n"
    "Calls of the function, timed under `name` into a tuple of TimeRecorders, by\n"
    "default into those that are enabled where it is called. my_utils.record.timing.timed\n"
    "makes a Python function round it.");

static PyType_Slot function_slots[] = {
    {Py_tp_doc, (void *)function_doc}, {Py_tp_new, function_new},
    {Py_tp_call, PyVectorcall_Call},   {Py_tp_repr, function_repr},
    {Py_tp_dealloc, function_dealloc}, {Py_tp_traverse, function_traverse},
    {Py_tp_clear, function_clear},     {Py_tp_members, function_members},
    {Py_tp_methods, function_methods}, {0, NULL},
};

static PyType_Spec function_spec = {
    .name = "my_utils._core.TimedFunction",
    .basicsize = sizeof(struct timed_function),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = function_slots,
};

/* --- blocks --------------------------------------------------------------------------------- */

struct timed_block {
    PyObject_HEAD struct mu_state *state; /* borrowed from the module, which the type keeps alive */
    PyObject *name;                       /* owned: an exact str */
    PyObject *recorders;                  /* owned: a tuple; NULL: those enabled at the entry */
    PyObject *running;                    /* owned: the recorders of the run; NULL: none */
    uint64_t began;
    bool entered;
};

PyObject *mu_py_timed_block(struct mu_state *state, PyObject *name, PyObject *recorders) {
    PyTypeObject *type = state->timed_block_type;
    struct timed_block *self = (struct timed_block *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->state = state;
    self->name = Py_NewRef(name);
    self->recorders = Py_XNewRef(recorders);
    return (PyObject *)self;
}

static PyObject *block_enter(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct timed_block *self = (struct timed_block *)object;
    if (self->entered) {
        return PyErr_Format(PyExc_RuntimeError,
                            "timer(%R) is running already; each block needs a separate timer()",
                            self->name);
    }
    self->running =
        self->recorders == NULL ? mu_py_enabled_recorders(self->state) : Py_NewRef(self->recorders);
    self->entered = true;
    if (self->running != NULL) {
        self->began = mu_py_now_ns();
    }
    return Py_NewRef(object);
}

static PyObject *block_exit(PyObject *object, PyObject *const *Py_UNUSED(args),
                            Py_ssize_t Py_UNUSED(count)) {
    struct timed_block *self = (struct timed_block *)object;
    if (self->running != NULL) {
        mu_py_record(self->running, self->name, mu_py_now_ns() - self->began, NULL);
        Py_CLEAR(self->running);
    }
    self->entered = false;
    Py_RETURN_NONE;
}

static PyObject *block_call(PyObject *object, PyObject *args, PyObject *kwargs) {
    struct timed_block *self = (struct timed_block *)object;
    static char *names[] = {"function", NULL};
    PyObject *function;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:timer", names, &function)) {
        return NULL;
    }
    PyObject *module = PyImport_ImportModule("my_utils.record.timing.timed");
    if (module == NULL) {
        return NULL;
    }
    PyObject *recorders = self->recorders == NULL ? Py_None : self->recorders;
    PyObject *result = PyObject_CallMethod(module, "timed", "OOO", function, self->name, recorders);
    Py_DECREF(module);
    return result;
}

static int block_traverse(PyObject *object, visitproc visit, void *arg) {
    struct timed_block *self = (struct timed_block *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->recorders);
    Py_VISIT(self->running);
    return 0;
}

static int block_clear(PyObject *object) {
    struct timed_block *self = (struct timed_block *)object;
    Py_CLEAR(self->recorders);
    Py_CLEAR(self->running);
    return 0;
}

static void block_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    block_clear(object);
    Py_CLEAR(((struct timed_block *)object)->name);
    type->tp_free(object);
    Py_DECREF(type);
}

MU_LOCKED(block_enter)
MU_LOCKED_POSITIONAL(block_exit)

static PyMethodDef block_methods[] = {
    {"__enter__", block_enter_locked, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))block_exit_locked, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(block_doc, "A block whose time is recorded: a context manager, entered by one at a\n"
                        "time, and a decorator. Made by timer() and TimeRecorder.timer().");

static PyType_Slot block_slots[] = {
    {Py_tp_doc, (void *)block_doc},
    {Py_tp_dealloc, block_dealloc},
    {Py_tp_traverse, block_traverse},
    {Py_tp_clear, block_clear},
    {Py_tp_call, block_call},
    {Py_tp_methods, block_methods},
    {0, NULL},
};

static PyType_Spec block_spec = {
    .name = "my_utils._core.TimedBlock",
    .basicsize = sizeof(struct timed_block),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = block_slots,
};

static PyObject *timer(PyObject *module, PyObject *const *args, Py_ssize_t count,
                       PyObject *keywords) {
    static const char *const names[] = {"name", NULL};
    static const struct mu_py_signature signature = {"timer", names, 1, 1};
    PyObject *given = count > 0 ? args[0] : NULL;
    if ((count != 1 || keywords != NULL) &&
        mu_py_bind(&signature, args, count, keywords, &given) < 0) {
        return NULL;
    }
    PyObject *name = mu_py_exact_name(given, "name");
    if (name == NULL) {
        return NULL;
    }
    PyObject *block = mu_py_timed_block(mu_state_of(module), name, NULL);
    Py_DECREF(name);
    return block;
}

PyDoc_STRVAR(timer_doc,
             "timer(name)\n--\n\n"
             "A block whose time is recorded under `name` by every TimeManager that is enabled\n"
             "where it is entered; where none is, nothing is recorded.\n\n"
             "A context manager, and a decorator as timer_wrap(name) is. TypeError when `name` is\n"
             "no str; RuntimeError when one block is entered twice at a time.\n\n"
             ">>> from my_utils.timing import TimeManager, timer\n"
             ">>> tm = TimeManager()\n"
             ">>> with tm.enable_timer():\n"
             "...     with timer(\"load\"):\n"
             "...         pass\n"
             ">>> len(tm.records[\"load\"])\n"
             "1");

static PyMethodDef functions[] = {
    {"timer", (PyCFunction)(void (*)(void))timer, METH_FASTCALL | METH_KEYWORDS, timer_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_timed_exec(PyObject *module) {
    if (mu_py_add_type(module, &function_spec, NULL) < 0 ||
        mu_py_add_type(module, &block_spec, &mu_state_of(module)->timed_block_type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
