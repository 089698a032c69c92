/* The type ForwardPasses: counts the forward passes of a module, and says where a window of them
 * begins and ends.
 *
 * `before` and `after` are a module's hooks. A pass is a call that is not made by another pass of
 * the same module in its thread. A subclass has `_opens()`, called as pass `first` begins;
 * `_closes(outcome)`, called once after it: "done" as pass `stop` begins, or with `at_end` when the
 * one before it returns, and "raised" when a pass meanwhile raises; and `_is_copy(module)`, asked
 * when another module than the attached one has the hooks.
 *
 * torch does not call `after` when what was raised is not an Exception, such as a
 * KeyboardInterrupt. So a pass is identified by the frame that called its hooks. A pass whose frame
 * does not run any more was interrupted.
 *
 * While one thread opens the window, other threads that begin a pass or close the window wait until
 * it is open. So the window contains the whole pass, and there is a window to close.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#include "core/args.h"
#include "core/free_threading.h"
#include "core/heap_types.h"
#include "core/state.h"

struct pass {
    unsigned long thread;
    int64_t number;
    PyFrameObject *frame; /* owned: calls the hooks */
    PyObject *handled;    /* owned: the exception handled as it began, or NULL */
};

struct passes {
    PyObject_HEAD const void *module; /* the attached one, compared only; NULL for none */
    int64_t begun;                    /* passes since it was attached */
    int64_t first, stop;
    bool at_end;
    bool watching;        /* the window is open, or about to be */
    bool opening;         /* `opener` is in _opens() */
    bool told;            /* that a copy runs */
    unsigned long opener; /* a thread */
    struct pass *running; /* owned: one a thread at most */
    size_t count, capacity;
};

/* --- running passes ----------------------------------------------------------------------- */

/* Takes a pass out of the list first, because releasing its objects may run any code. */
static void forget_pass(struct passes *self, size_t index) {
    struct pass gone = self->running[index];
    self->running[index] = self->running[--self->count];
    Py_DECREF(gone.frame);
    Py_XDECREF(gone.handled);
}

static void forget_passes(struct passes *self) {
    while (self->count > 0) {
        forget_pass(self, self->count - 1);
    }
}

static struct pass *pass_of_thread(struct passes *self) {
    unsigned long me = PyThread_get_thread_ident();
    for (size_t i = 0; i < self->count; i++) {
        if (self->running[i].thread == me) {
            return &self->running[i];
        }
    }
    return NULL;
}

static int note_pass(struct passes *self, int64_t number, PyFrameObject *frame) {
    if (self->count == self->capacity) {
        size_t capacity = self->capacity == 0 ? 4 : self->capacity * 2;
        struct pass *running = PyMem_Realloc(self->running, capacity * sizeof *running);
        if (running == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->running = running;
        self->capacity = capacity;
    }
    self->running[self->count++] = (struct pass){
        .thread = PyThread_get_thread_ident(),
        .number = number,
        .frame = (PyFrameObject *)Py_NewRef((PyObject *)frame),
        .handled = PyErr_GetHandledException(),
    };
    return 0;
}

/* Whether `wanted` is `top` or one of its callers, and so still runs. */
static bool runs_under(PyFrameObject *top, const PyFrameObject *wanted) {
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef((PyObject *)top);
    while (frame != NULL && frame != wanted) {
        PyFrameObject *caller = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = caller;
    }
    Py_XDECREF(frame);
    return frame != NULL;
}

/* --- the window --------------------------------------------------------------------------- */

/* Starting a profiler takes milliseconds, and happens once. Returns -1 with the exception that a
 * signal handler raised. */
static int await_opening(const struct passes *self) {
    const struct timespec look_again = {.tv_nsec = 1000000};
    while (self->opening && self->opener != PyThread_get_thread_ident()) {
        Py_BEGIN_ALLOW_THREADS;
        nanosleep(&look_again, NULL);
        Py_END_ALLOW_THREADS;
        if (PyErr_CheckSignals() < 0) {
            return -1;
        }
    }
    return 0;
}

static int call_closes(struct passes *self, const char *outcome) {
    if (await_opening(self) < 0) {
        return -1;
    }
    if (!self->watching) { /* it could not be opened, or another thread was first */
        return 0;
    }
    self->watching = false;
    PyObject *answer = PyObject_CallMethod((PyObject *)self, "_closes", "s", outcome);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

static int call_opens(struct passes *self) {
    self->watching = true; /* first: a detach in another thread may end it meanwhile */
    self->opening = true;
    self->opener = PyThread_get_thread_ident();
    PyObject *answer = PyObject_CallMethod((PyObject *)self, "_opens", NULL);
    self->opening = false;
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

static int begin_pass(struct passes *self, PyFrameObject *frame) {
    struct pass *outer = pass_of_thread(self);
    if (outer != NULL && runs_under(frame, outer->frame)) {
        return 0;
    }
    if (outer != NULL) { /* cut short */
        forget_pass(self, (size_t)(outer - self->running));
        if (self->watching && call_closes(self, "raised") < 0) {
            return -1;
        }
    }
    int64_t number = self->begun++;
    if (frame != NULL && note_pass(self, number, frame) < 0) {
        return -1;
    }
    if (number == self->first) {
        return call_opens(self);
    }
    if (await_opening(self) < 0) {
        return -1;
    }
    return self->watching && number >= self->stop ? call_closes(self, "done") : 0;
}

static bool has_raised(const struct pass *pass) {
    PyObject *handled = PyErr_GetHandledException();
    Py_XDECREF(handled); /* only compared: the interpreter holds it */
    return handled != NULL && handled != pass->handled;
}

static int end_pass(struct passes *self, PyFrameObject *frame) {
    struct pass *pass = pass_of_thread(self);
    if (pass == NULL || (frame != pass->frame && runs_under(frame, pass->frame))) {
        return 0;
    }
    bool raised = self->watching && has_raised(pass);
    bool last = self->at_end && pass->number == self->stop - 1;
    forget_pass(self, (size_t)(pass - self->running));
    if (self->watching && (raised || last)) {
        return call_closes(self, raised ? "raised" : "done");
    }
    return 0;
}

/* --- hooks -------------------------------------------------------------------------------- */

/* 1 for the attached module, 0 for another one, which is reported once, -1 with an exception. */
static int is_attached(struct passes *self, const char *function, PyObject *const *args,
                       Py_ssize_t count, Py_ssize_t wanted) {
    if (count != wanted) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, not %zd", function, wanted, count);
        return -1;
    }
    if (args[0] == self->module) {
        return 1;
    }
    if (self->module != NULL && !self->told) {
        PyObject *answer = PyObject_CallMethod((PyObject *)self, "_is_copy", "O", args[0]);
        int told = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
        self->told = told > 0;
        return told < 0 ? -1 : 0;
    }
    return 0;
}

PyDoc_STRVAR(before_doc, "before($self, module, args, /)\n--\n\n"
                         "Forward pre-hook: a pass of the module begins.");

static PyObject *before(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    struct passes *self = (struct passes *)object;
    int attached = is_attached(self, "before", args, count, 2);
    if (attached < 0 || (attached > 0 && begin_pass(self, PyEval_GetFrame()) < 0)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(after_doc, "after($self, module, args, output, /)\n--\n\n"
                        "Forward hook, to be called always: a pass of the module ends.");

static PyObject *after(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    struct passes *self = (struct passes *)object;
    int attached = is_attached(self, "after", args, count, 3);
    if (attached < 0 || (attached > 0 && end_pass(self, PyEval_GetFrame()) < 0)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* --- set-up ------------------------------------------------------------------------------- */

PyDoc_STRVAR(count_passes_doc,
             "count_passes($self, module, first, stop, at_end, /)\n--\n\n"
             "Counts the passes of the module from 0; it is compared with, and not kept.");

static PyObject *count_passes(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    struct passes *self = (struct passes *)object;
    int64_t first, stop;
    int at_end;
    if (count != 4) {
        PyErr_Format(PyExc_TypeError, "count_passes() takes 4 arguments, not %zd", count);
        return NULL;
    }
    if (mu_py_int64_in(args[1], "first", 0, INT64_MAX - 1, &first) < 0 ||
        mu_py_int64_in(args[2], "stop", first + 1, INT64_MAX, &stop) < 0 ||
        mu_py_bool(args[3], "at_end", &at_end) < 0) {
        return NULL;
    }
    forget_passes(self);
    self->module = args[0];
    self->begun = 0;
    self->first = first;
    self->stop = stop;
    self->at_end = at_end != 0;
    self->watching = false;
    self->opening = false;
    self->told = false;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(unwatch_doc, "unwatch($self, /)\n--\n\n"
                          "No `_closes` for the window that is open; passes are counted on.");

static PyObject *unwatch(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    ((struct passes *)object)->watching = false;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(leave_module_doc, "leave_module($self, /)\n--\n\n"
                               "Counts no more; the module may be gone.");

static PyObject *leave_module(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct passes *self = (struct passes *)object;
    self->module = NULL;
    self->watching = false;
    forget_passes(self);
    Py_RETURN_NONE;
}

static PyObject *get_passes(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(((struct passes *)object)->begun);
}

/* A copy that comes from a pickled model is not attached to any module. */
static PyObject *passes_reduce(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    PyTypeObject *type = mu_state_of_object(object)->forward_passes_type;
    return Py_BuildValue("(O())", type);
}

/* --- the type ----------------------------------------------------------------------------- */

static PyObject *passes_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
                            PyObject *Py_UNUSED(kwargs)) {
    return type->tp_alloc(type, 0);
}

static int passes_traverse(PyObject *object, visitproc visit, void *arg) {
    struct passes *self = (struct passes *)object;
    Py_VISIT(Py_TYPE(object));
    for (size_t i = 0; i < self->count; i++) {
        Py_VISIT(self->running[i].frame);
        Py_VISIT(self->running[i].handled);
    }
    return 0;
}

static int passes_clear(PyObject *object) {
    forget_passes((struct passes *)object);
    return 0;
}

static void passes_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    passes_clear(object);
    PyMem_Free(((struct passes *)object)->running);
    type->tp_free(object);
    Py_DECREF(type);
}

MU_LOCKED_POSITIONAL(before)
MU_LOCKED_POSITIONAL(after)
MU_LOCKED_POSITIONAL(count_passes)
MU_LOCKED(unwatch)
MU_LOCKED(leave_module)
MU_LOCKED_GET(get_passes)

static PyMethodDef passes_methods[] = {
    {"before", (PyCFunction)(void (*)(void))before_locked, METH_FASTCALL, before_doc},
    {"after", (PyCFunction)(void (*)(void))after_locked, METH_FASTCALL, after_doc},
    {"count_passes", (PyCFunction)(void (*)(void))count_passes_locked, METH_FASTCALL,
     count_passes_doc},
    {"unwatch", unwatch_locked, METH_NOARGS, unwatch_doc},
    {"leave_module", leave_module_locked, METH_NOARGS, leave_module_doc},
    {"__reduce__", passes_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef passes_properties[] = {
    {"passes", get_passes_locked, NULL,
     PyDoc_STR("int: passes that have begun since it was attached."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot passes_slots[] = {
    {Py_tp_doc, (void *)"Counts forward passes; my_utils.ForwardProfileHook has the public class."},
    {Py_tp_new, passes_new},
    {Py_tp_dealloc, passes_dealloc},
    {Py_tp_traverse, passes_traverse},
    {Py_tp_clear, passes_clear},
    {Py_tp_methods, passes_methods},
    {Py_tp_getset, passes_properties},
    {0, NULL},
};

static PyType_Spec passes_spec = {
    .name = "my_utils._core.ForwardPasses",
    .basicsize = sizeof(struct passes),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = passes_slots,
};

int mu_py_forward_passes_exec(PyObject *module) {
    return mu_py_add_type(module, &passes_spec, &mu_state_of(module)->forward_passes_type);
}
