/* The types ModuleTimes, the times of the modules of a model, and ModuleHook, the callables that
 * torch calls before and after them.
 *
 * A hook takes any arguments and returns None, so that one kind serves modules and nodes of
 * autograd. Only the end of a watched forward reads its arguments: it passes the result to a Python
 * function, which puts hooks on the nodes that the call has made. A copy of a hook, as by deepcopy
 * or pickle of a model, does nothing.
 */
#include "core/args.h"
#include "core/free_threading.h"
#include "core/heap_types.h"
#include "cuda/py_cuda.h"
#include "timing/module_times.h"

#include <structmember.h>

struct times {
    PyObject_HEAD struct mu_module_times *engine; /* owned */
    bool on;
    PyObject *graph_task;  /* owned, as the next two; NULL while no backward is watched */
    PyObject *sequence_nr; /* with no arguments both: torch's numbers of the backward that runs, and
                              of the node to be made next in this thread */
    PyObject *watch;       /* (slot, result, number of the first node) */
};

enum edge { ENTER, EXIT };

struct hook {
    PyObject_HEAD vectorcallfunc call;
    struct times *times; /* owned; NULL in a copy */
    bool once;           /* counts as a call at its first use only */
    bool counted;        /* it did; guarded as `times` is */
    uint32_t slot;
    int64_t in_backward; /* the slot of calls that a backward makes; < 0: not a forward */
};

enum { NO_GRAPH_TASK = -1, RESULT = 2 };

static int slot_of(struct times *self, PyObject *value, const char *name, int64_t low,
                   int64_t *out) {
    return mu_py_int64_in(value, name, low, (int64_t)mu_module_slots(self->engine) - 1, out);
}

/* --- hooks -------------------------------------------------------------------------------- */

/* Calls a function of torch that takes no arguments and returns a number. Returns `fallback` when
 * the call fails. */
static int64_t ask(PyObject *function, int64_t fallback) {
    Py_INCREF(function); /* watch() may replace it meanwhile */
    PyObject *answer = PyObject_CallNoArgs(function);
    Py_DECREF(function);
    int64_t number = answer == NULL ? fallback : PyLong_AsLongLong(answer);
    Py_XDECREF(answer);
    PyErr_Clear();
    return number;
}

static void enter_locked(const struct hook *self) {
    struct times *times = self->times;
    uint32_t account = self->slot;
    uint64_t mark = 0;
    if (!times->on) {
        return;
    }
    if (times->watch != NULL && self->in_backward >= 0) {
        mark = (uint64_t)ask(times->sequence_nr, 0);
        if (ask(times->graph_task, NO_GRAPH_TASK) != NO_GRAPH_TASK) {
            account = (uint32_t)self->in_backward;
        }
    }
    mu_module_enter(times->engine, PyThread_get_thread_ident(), self->slot, account, mark);
}

static PyObject *hook_enter(PyObject *object, PyObject *const *Py_UNUSED(args),
                            size_t Py_UNUSED(flags), PyObject *Py_UNUSED(keywords)) {
    const struct hook *self = (const struct hook *)object;
    MU_BEGIN_SECTION((PyObject *)self->times);
    enter_locked(self);
    MU_END_SECTION();
    Py_RETURN_NONE;
}

static PyObject *watch_result(const struct hook *self, PyObject *watch, PyObject *result,
                              uint64_t mark) {
    PyObject *slot = PyLong_FromUnsignedLong(self->slot);
    PyObject *first = slot == NULL ? NULL : PyLong_FromUnsignedLongLong(mark);
    PyObject *answer =
        first == NULL ? NULL : PyObject_CallFunctionObjArgs(watch, slot, result, first, NULL);
    Py_XDECREF(slot);
    Py_XDECREF(first);
    if (answer == NULL) {
        return NULL;
    }
    Py_DECREF(answer);
    Py_RETURN_NONE;
}

/* A new reference to the function that gets the result, if one does; NULL: nobody does. */
static PyObject *exit_locked(struct hook *self, uint64_t *mark) {
    struct times *times = self->times;
    bool counts = !(self->once && self->counted);
    if (!times->on ||
        !mu_module_exit(times->engine, PyThread_get_thread_ident(), self->slot, counts, mark)) {
        return NULL;
    }
    self->counted = true;
    return self->in_backward >= 0 ? Py_XNewRef(times->watch) : NULL;
}

static PyObject *hook_exit(PyObject *object, PyObject *const *args, size_t flags,
                           PyObject *Py_UNUSED(keywords)) {
    struct hook *self = (struct hook *)object;
    PyObject *watch, *result;
    uint64_t mark = 0;
    MU_BEGIN_SECTION((PyObject *)self->times);
    watch = exit_locked(self, &mark);
    MU_END_SECTION();
    bool has_result = PyVectorcall_NARGS(flags) > RESULT && args[RESULT] != Py_None;
    if (watch == NULL || !has_result) {
        result = Py_NewRef(Py_None);
    } else {
        result = watch_result(self, watch, args[RESULT], mark);
    }
    Py_XDECREF(watch);
    return result;
}

static PyObject *hook_nothing(PyObject *Py_UNUSED(object), PyObject *const *Py_UNUSED(args),
                              size_t Py_UNUSED(flags), PyObject *Py_UNUSED(keywords)) {
    Py_RETURN_NONE;
}

static PyObject *hook_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
                          PyObject *Py_UNUSED(kwargs)) {
    struct hook *self = (struct hook *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->call = hook_nothing;
    }
    return (PyObject *)self;
}

static int hook_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((struct hook *)object)->times);
    return 0;
}

static int hook_clear(PyObject *object) {
    struct hook *self = (struct hook *)object;
    self->call = hook_nothing;
    Py_CLEAR(self->times);
    return 0;
}

static void hook_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    hook_clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *hook_reduce(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    return Py_BuildValue("(O())", Py_TYPE(self));
}

static PyMethodDef hook_methods[] = {
    {"__reduce__", hook_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef hook_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(struct hook, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot hook_slots[] = {
    {Py_tp_doc, (void *)"ModuleHook()\n--\n\nA hook that does nothing; ModuleTimes makes others."},
    {Py_tp_new, hook_new},
    {Py_tp_dealloc, hook_dealloc},
    {Py_tp_traverse, hook_traverse},
    {Py_tp_clear, hook_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_methods, hook_methods},
    {Py_tp_members, hook_members},
    {0, NULL},
};

static PyType_Spec hook_spec = {
    .name = "my_utils._core.ModuleHook",
    .basicsize = sizeof(struct hook),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = hook_slots,
};

static PyObject *make_hook(struct times *times, enum edge edge, int64_t slot, int64_t in_backward) {
    struct mu_state *state = mu_state_of_object((PyObject *)times);
    struct hook *self =
        state == NULL ? NULL : (struct hook *)hook_new(state->module_hook_type, NULL, NULL);
    if (self != NULL) {
        self->call = edge == ENTER ? hook_enter : hook_exit;
        self->times = (struct times *)Py_NewRef((PyObject *)times);
        self->slot = (uint32_t)slot;
        self->in_backward = in_backward;
    }
    return (PyObject *)self;
}

/* --- making the times --------------------------------------------------------------------- */

static int make_engine(struct times *self, int64_t slots, bool use_cuda) {
    const struct mu_cuda_driver *driver = use_cuda ? mu_cuda_driver_get() : NULL;
    struct mu_cuda_pool_options options = {.driver = driver,
                                           .current_stream = mu_py_cuda_stream,
                                           .stream_owner = mu_state_of_object((PyObject *)self)};
    bool has_gpu = driver != NULL && driver->available;
    struct mu_error err = {0};
    if (options.stream_owner == NULL) {
        return -1;
    }
    if (has_gpu) {
        mu_py_exchange_find(&mu_state_of_object((PyObject *)self)->exchange);
    }
    if (mu_module_times_create(&self->engine, (uint32_t)slots, has_gpu ? &options : NULL, NULL,
                               &err) != MU_OK) {
        mu_py_raise(&err);
        return -1;
    }
    return 0;
}

static PyObject *times_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"slots", "use_cuda", NULL};
    PyObject *slots_given, *cuda_given = Py_False;
    int64_t slots;
    int use_cuda;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:ModuleTimes", names, &slots_given,
                                     &cuda_given) ||
        mu_py_int64_in(slots_given, "slots", 1, MU_MODULE_SLOTS_MAX, &slots) < 0 ||
        mu_py_bool(cuda_given, "use_cuda", &use_cuda) < 0) {
        return NULL;
    }
    struct times *self = (struct times *)type->tp_alloc(type, 0);
    if (self != NULL && make_engine(self, slots, use_cuda != 0) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int times_traverse(PyObject *object, visitproc visit, void *arg) {
    struct times *self = (struct times *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->graph_task);
    Py_VISIT(self->sequence_nr);
    Py_VISIT(self->watch);
    return 0;
}

static int times_clear(PyObject *object) {
    struct times *self = (struct times *)object;
    Py_CLEAR(self->watch);
    Py_CLEAR(self->graph_task);
    Py_CLEAR(self->sequence_nr);
    return 0;
}

static void times_dealloc(PyObject *object) {
    struct times *self = (struct times *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    times_clear(object);
    mu_module_times_free(self->engine);
    type->tp_free(object);
    Py_DECREF(type);
}

/* --- methods ------------------------------------------------------------------------------ */

PyDoc_STRVAR(
    hooks_doc,
    "hooks($self, slot, in_backward=None, once=False)\n--\n\n"
    "Two callables, for the begin and the end of the calls of `slot`.\n\n"
    "in_backward: the slot of those calls that a backward makes; for forwards only, whose\n"
    "    results are watched. once: all that they time counts as one call.");

static PyObject *hooks(PyObject *object, PyObject *const *args, Py_ssize_t count,
                       PyObject *keywords) {
    static const char *const names[] = {"slot", "in_backward", "once", NULL};
    static const struct mu_py_signature signature = {"hooks", names, 1, 3};
    struct times *self = (struct times *)object;
    PyObject *values[3];
    int64_t slot, in_backward = -1;
    int once = 0;
    if (mu_py_bind(&signature, args, count, keywords, values) < 0 ||
        slot_of(self, values[0], "slot", 0, &slot) < 0 ||
        (values[1] != NULL && values[1] != Py_None &&
         slot_of(self, values[1], "in_backward", 0, &in_backward) < 0) ||
        (values[2] != NULL && mu_py_bool(values[2], "once", &once) < 0)) {
        return NULL;
    }
    PyObject *enter = make_hook(self, ENTER, slot, in_backward);
    PyObject *leave = enter == NULL ? NULL : make_hook(self, EXIT, slot, in_backward);
    if (leave == NULL) {
        Py_XDECREF(enter);
        return NULL;
    }
    ((struct hook *)leave)->once = once != 0;
    return Py_BuildValue("(NN)", enter, leave);
}

PyDoc_STRVAR(watch_doc,
             "watch($self, graph_task, sequence_nr, watch, /)\n--\n\n"
             "Calls `watch(slot, result, first)` at the end of each forward, where\n"
             "`first` is what `sequence_nr()` gave at its begin. graph_task() is not -1\n"
             "while a backward runs. TypeError for what cannot be called.");

static PyObject *watch(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    struct times *self = (struct times *)object;
    if (count != 3) {
        PyErr_Format(PyExc_TypeError, "watch() takes 3 arguments, not %zd", count);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!PyCallable_Check(args[i])) {
            PyErr_Format(PyExc_TypeError, "watch() takes callables, not %.100R", args[i]);
            return NULL;
        }
    }
    Py_XSETREF(self->graph_task, Py_NewRef(args[0]));
    Py_XSETREF(self->sequence_nr, Py_NewRef(args[1]));
    Py_XSETREF(self->watch, Py_NewRef(args[2]));
    Py_RETURN_NONE;
}

static PyObject *total_of(const struct mu_module_total *total) {
    return Py_BuildValue("(KKLLLL)", (unsigned long long)total->calls,
                         (unsigned long long)total->parts, (long long)total->total_ns,
                         (long long)total->inner_ns, (long long)total->min_ns,
                         (long long)total->max_ns);
}

PyDoc_STRVAR(
    figures_doc,
    "figures($self, slot, /)\n--\n\n"
    "Two tuples, for the CPU's clock and the GPU's: calls, parts that they came in, total,\n"
    "time of the total in calls nested inside, shortest and longest part; ns.");

static PyObject *figures(PyObject *object, PyObject *value) {
    struct times *self = (struct times *)object;
    int64_t slot;
    if (slot_of(self, value, "slot", 0, &slot) < 0) {
        return NULL;
    }
    struct mu_module_figures found = mu_module_figures_of(self->engine, (uint32_t)slot);
    PyObject *cpu = total_of(&found.cpu);
    PyObject *gpu = cpu == NULL ? NULL : total_of(&found.gpu);
    if (gpu == NULL) {
        Py_XDECREF(cpu);
        return NULL;
    }
    return Py_BuildValue("(NN)", cpu, gpu);
}

PyDoc_STRVAR(counts_doc,
             "counts($self, /)\n--\n\n"
             "What was not timed: calls without an end (abandoned), ends without a begin\n"
             "(unmatched), calls nested too deep (dropped), and on the GPU: without events\n"
             "(gpu_missed), lost to an error (gpu_lost), not ready (gpu_waits); `gpu_error` names "
             "the\n"
             "first error.");

static PyObject *counts(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct times *self = (struct times *)object;
    struct mu_module_counts found = mu_module_counts_of(self->engine);
    struct mu_cuda_stats stats;
    mu_cuda_pool_stats(mu_module_pool(self->engine), &stats);
    return Py_BuildValue(
        "{s:K,s:K,s:K,s:K,s:K,s:K,s:s}", "abandoned", (unsigned long long)found.abandoned,
        "unmatched", (unsigned long long)found.unmatched, "dropped",
        (unsigned long long)found.dropped, "gpu_missed", (unsigned long long)found.gpu_missed,
        "gpu_lost", (unsigned long long)found.gpu_lost, "gpu_waits",
        (unsigned long long)found.gpu_waits, "gpu_error",
        stats.first_error == 0 ? "" : mu_cuda_error_name(mu_cuda_driver_get(), stats.first_error));
}

PyDoc_STRVAR(collect_doc, "collect($self, /)\n--\n\n"
                          "Adds the GPU times that are ready; waits for nothing.");

static PyObject *collect(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    mu_module_collect(((struct times *)self)->engine);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(after_fork_doc, "after_fork($self, /)\n--\n\n"
                             "In a forked child: times nothing any more, and lets the GPU be.");

static PyObject *after_fork(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct times *self = (struct times *)object;
    self->on = false;
    mu_module_after_fork(self->engine);
    Py_RETURN_NONE;
}

static PyObject *get_on(PyObject *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((struct times *)self)->on);
}

static int set_on(PyObject *object, PyObject *value, void *Py_UNUSED(closure)) {
    struct times *self = (struct times *)object;
    int on;
    if (value == NULL || mu_py_bool(value, "on", &on) < 0) {
        if (value == NULL) {
            PyErr_SetString(PyExc_AttributeError, "on cannot be deleted");
        }
        return -1;
    }
    self->on = on != 0;
    if (!self->on) {
        mu_module_drop_open(self->engine);
    }
    return 0;
}

static PyObject *get_has_gpu(PyObject *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(mu_module_pool(((struct times *)self)->engine) != NULL);
}

MU_LOCKED_FAST(hooks)
MU_LOCKED_POSITIONAL(watch)
MU_LOCKED(figures)
MU_LOCKED(counts)
MU_LOCKED(collect)
MU_LOCKED(after_fork)
MU_LOCKED_GET(get_on)
MU_LOCKED_SET(set_on)

static PyMethodDef times_methods[] = {
    {"hooks", (PyCFunction)(void (*)(void))hooks_locked, METH_FASTCALL | METH_KEYWORDS, hooks_doc},
    {"watch", (PyCFunction)(void (*)(void))watch_locked, METH_FASTCALL, watch_doc},
    {"figures", figures_locked, METH_O, figures_doc},
    {"counts", counts_locked, METH_NOARGS, counts_doc},
    {"collect", collect_locked, METH_NOARGS, collect_doc},
    {"after_fork", after_fork_locked, METH_NOARGS, after_fork_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef times_getset[] = {
    {"on", get_on_locked, set_on_locked,
     PyDoc_STR("bool: whether hooks_locked do anything; off at first"), NULL},
    {"has_gpu", get_has_gpu, NULL, PyDoc_STR("bool: whether there are GPU times"), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(times_doc,
             "ModuleTimes(slots, use_cuda=False)\n--\n\n"
             "How long the calls of modules take; my_utils.moduleProfiler has the public class.\n\n"
             "slots: how many things are timed. use_cuda: by CUDA events, too, where there is a\n"
             "    driver.");

static PyType_Slot times_slots[] = {
    {Py_tp_doc, (void *)times_doc}, {Py_tp_new, times_new},
    {Py_tp_dealloc, times_dealloc}, {Py_tp_traverse, times_traverse},
    {Py_tp_clear, times_clear},     {Py_tp_methods, times_methods},
    {Py_tp_getset, times_getset},   {0, NULL},
};

static PyType_Spec times_spec = {
    .name = "my_utils._core.ModuleTimes",
    .basicsize = sizeof(struct times),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = times_slots,
};

int mu_py_module_timer_exec(PyObject *module) {
    if (mu_py_add_type(module, &times_spec, NULL) < 0) {
        return -1;
    }
    return mu_py_add_type(module, &hook_spec, &mu_state_of(module)->module_hook_type);
}
