/* The type CaptureWindows: the engine's windows, with the calls that start and stop a profiler.
 *
 * A subclass has `_open(window_id) -> bool`, `_close(window_id)`, `_ended(window_id, outcome)` and
 * `_task()`, the asyncio task that runs, or None.
 *
 * A window belongs to the call that opened it, and py_calls.h says which call an event ends. The
 * opener is abandoned when nobody holds its event any more and no context knows it, or its task is
 * done, or its own context begins a later iteration of the same function.
 *
 * The windows are changed under the GIL, or where there is none in a critical section of the
 * object. The calls may release both, so the object has its own lock, which keeps them in order. A
 * hook that such a call runs into on the same thread is ignored.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "capture/capture.h"
#include "capture/py_calls.h"
#include "capture/py_hook_event.h"
#include "core/args.h"
#include "core/free_threading.h"
#include "core/heap_types.h"

struct windows {
    PyObject_HEAD struct mu_capture capture;
    struct mu_state *state;  /* borrowed from the module, which the type holds */
    PyThread_type_lock lock; /* owned */
    unsigned long holder;    /* the thread that has the lock, 0 for none */
    PyObject *names;         /* owned: a set, what was reported while windows waited */
    uint64_t calls;          /* numbers given so far */
    /* Of the open window: */
    struct mu_py_opener opener;
    PyObject *task;       /* owned: in which it was opened, or NULL */
    const void *context;  /* in which it was opened; compared only */
    uint64_t event;       /* the number of the event that opened it */
    uint64_t event_calls; /* calls that began with that event */
    int64_t iter;         /* of the opener */
    bool has_iter;
};

static const char *const outcomes[] = {
    [MU_CAPTURE_DONE] = "done",         [MU_CAPTURE_RAISED] = "raised",
    [MU_CAPTURE_OVERRUN] = "overrun",   [MU_CAPTURE_ABANDONED] = "abandoned",
    [MU_CAPTURE_DISARMED] = "disarmed", [MU_CAPTURE_FAILED] = "failed",
    [MU_CAPTURE_LATE] = "late",         [MU_CAPTURE_OVERLAPPED] = "overlapped",
};

static PyObject *windows_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
                             PyObject *Py_UNUSED(kwargs)) {
    struct windows *self = (struct windows *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    mu_capture_init(&self->capture);
    self->state = mu_state_of_object((PyObject *)self);
    self->lock = PyThread_allocate_lock();
    self->names = PySet_New(NULL);
    if (self->state == NULL || self->lock == NULL || self->names == NULL) {
        Py_DECREF(self);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static int windows_traverse(PyObject *object, visitproc visit, void *arg) {
    struct windows *self = (struct windows *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->names);
    Py_VISIT(self->task);
    return 0;
}

static void leave_opener(struct windows *self) {
    if (self->state != NULL) {
        mu_py_opener_leave(self->state, &self->opener);
    }
    Py_CLEAR(self->task);
}

static int windows_clear(PyObject *object) {
    Py_CLEAR(((struct windows *)object)->task);
    return 0;
}

static void windows_dealloc(PyObject *object) {
    struct windows *self = (struct windows *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    leave_opener(self);
    Py_CLEAR(self->names);
    mu_capture_release(&self->capture);
    if (self->lock != NULL) {
        PyThread_free_lock(self->lock);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

/* --- the lock ----------------------------------------------------------------------------- */

/* Takes the lock. False when this thread holds it already, or another one and it must not wait. */
static bool lock_or_not(struct windows *self, bool waits) {
    unsigned long me = PyThread_get_thread_ident();
    if (self->holder == me) {
        return false;
    }
    if (!PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) {
        if (!waits) {
            return false;
        }
        Py_BEGIN_ALLOW_THREADS;
        PyThread_acquire_lock(self->lock, WAIT_LOCK);
        Py_END_ALLOW_THREADS;
    }
    self->holder = me;
    return true;
}

static bool lock(struct windows *self) {
    return lock_or_not(self, true);
}

static void unlock(struct windows *self) {
    self->holder = 0;
    PyThread_release_lock(self->lock);
}

/* --- calls of the subclass ---------------------------------------------------------------- */

/* The first exception of several calls, which all take place. */
struct trouble {
    PyObject *type, *value, *traceback; /* owned */
};

static void note_trouble(struct trouble *trouble) {
    if (trouble->type != NULL) {
        PyErr_WriteUnraisable(NULL);
    } else {
        PyErr_Fetch(&trouble->type, &trouble->value, &trouble->traceback);
    }
}

/* None, or NULL with the exception that was noted. */
static PyObject *end_calls(struct trouble *trouble) {
    if (trouble->type == NULL) {
        Py_RETURN_NONE;
    }
    PyErr_Restore(trouble->type, trouble->value, trouble->traceback);
    return NULL;
}

static PyObject *id_of(const struct mu_capture_window *window) {
    return PyUnicode_FromStringAndSize(window->spec.id.bytes, (Py_ssize_t)window->spec.id.length);
}

/* Calls `method(window_id)`. Returns whether the result was true. */
static bool call_with_id(struct windows *self, const char *method, int index,
                         struct trouble *trouble) {
    PyObject *id = id_of(&self->capture.windows[index]);
    PyObject *result = id == NULL ? NULL : PyObject_CallMethod((PyObject *)self, method, "O", id);
    int truth = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(id);
    Py_XDECREF(result);
    if (truth < 0) {
        note_trouble(trouble);
    }
    return truth > 0;
}

static void tell_ended_locked(struct windows *self, struct trouble *trouble) {
    int index;
    while ((index = mu_capture_next_ended(&self->capture)) >= 0) {
        const char *outcome = outcomes[self->capture.windows[index].outcome];
        PyObject *id = id_of(&self->capture.windows[index]);
        mu_capture_forget(&self->capture, index);
        PyObject *result =
            id == NULL ? NULL : PyObject_CallMethod((PyObject *)self, "_ended", "Os", id, outcome);
        Py_XDECREF(id);
        Py_XDECREF(result);
        if (result == NULL) {
            note_trouble(trouble);
        }
    }
}

static void act_locked(struct windows *self, struct mu_capture_change change,
                       struct trouble *trouble) {
    if (change.closed >= 0) {
        if (self->capture.open < 0) {
            leave_opener(self);
        }
        call_with_id(self, "_close", change.closed, trouble);
    }
    if (change.opened >= 0 && !call_with_id(self, "_open", change.opened, trouble) &&
        self->capture.open == change.opened) {
        mu_capture_end(&self->capture, change.opened, MU_CAPTURE_FAILED);
        leave_opener(self);
    }
    tell_ended_locked(self, trouble);
}

/* --- hooks -------------------------------------------------------------------------------- */

enum { NOTHING, SOME_FUNCTION, NAMED_FUNCTION };

/* Whether windows are pending, and name the event's function; -1 with TypeError. */
static int concerns(struct windows *self, PyObject *event) {
    struct mu_capture_text name;
    if (!mu_py_is_hook_event(self->state, event)) {
        PyErr_Format(PyExc_TypeError, "event must be a HookEvent, not %.100s (%.200R)",
                     Py_TYPE(event)->tp_name, event);
        return -1;
    }
    if (self->capture.pending == 0) {
        return NOTHING;
    }
    if (mu_py_hook_name(event, &name) < 0) {
        return -1;
    }
    return mu_capture_names(&self->capture, name) ? NAMED_FUNCTION : SOME_FUNCTION;
}

static bool is_trigger(const struct windows *self, const struct mu_capture_event *read) {
    if (self->capture.open < 0) {
        return false;
    }
    struct mu_capture_text trigger = self->capture.windows[self->capture.open].trigger;
    return trigger.length == read->name.length &&
           memcmp(trigger.bytes, read->name.bytes, trigger.length) == 0;
}

/* The call that opened the window and has not ended, 0 for none. */
static uint64_t opener_of(const struct windows *self) {
    return self->capture.open < 0 ? 0 : self->capture.windows[self->capture.open].call;
}

/* --- openers that died -------------------------------------------------------------------- */

static bool is_done(PyObject *task) {
    PyObject *done = PyObject_CallMethod(task, "done", NULL);
    int truth = done == NULL ? -1 : PyObject_IsTrue(done);
    Py_XDECREF(done);
    if (truth < 0) {
        PyErr_Clear();
    }
    return truth > 0;
}

/* Whether a later iteration begins where the opener should have ended. */
static bool is_followed(const struct windows *self, const struct mu_py_call_end *call) {
    const struct mu_capture_event *read = call->read;
    return is_trigger(self, read) && self->has_iter && read->has_iter && read->iter > self->iter &&
           (const void *)PyThreadState_Get()->context == self->context;
}

static void end_abandoned_locked(struct windows *self, const struct mu_py_call_end *call,
                                 enum mu_capture_edge edge, struct trouble *trouble) {
    int open = self->capture.open;
    if (opener_of(self) == 0 || !self->opener.event_gone ||
        self->capture.windows[open].spec.policy != MU_CAPTURE_TRIGGER_EXIT) {
        return;
    }
    if (self->opener.call_gone || (self->task != NULL && is_done(self->task)) ||
        (edge == MU_CAPTURE_ENTER && is_followed(self, call))) {
        mu_capture_end(&self->capture, open, MU_CAPTURE_ABANDONED);
        act_locked(self, (struct mu_capture_change){open, -1}, trouble);
    }
}

/* --- calls -------------------------------------------------------------------------------- */

/* Which call ends here. In another context than its own the opener is known by its event, unless
 * other calls began with the same one. */
static uint64_t ending_call(const struct windows *self, const struct mu_py_call_end *end) {
    uint64_t found = mu_py_call_ending(end);
    uint64_t event = mu_py_hook_entered(end->event);
    if (found == 0 && event != 0 && event == self->event && self->event_calls == 1) {
        return opener_of(self);
    }
    return found;
}

static void note_opener(struct windows *self, const struct mu_py_call_end *begin,
                        struct trouble *trouble) {
    Py_CLEAR(self->task);
    self->context = PyThreadState_Get()->context;
    self->event = mu_py_hook_number(self->state, begin->event);
    self->event_calls = 1;
    self->has_iter = begin->read->has_iter;
    self->iter = begin->read->iter;
    PyObject *task = PyObject_CallMethod((PyObject *)self, "_task", NULL);
    if (task == NULL) {
        note_trouble(trouble);
    } else if (task != Py_None) {
        self->task = Py_NewRef(task);
    }
    Py_XDECREF(task);
}

/* After the windows were changed: keeps a call of the function that opened the open one. */
static void keep_call(struct windows *self, const struct mu_py_call_end *begin, bool opens,
                      struct trouble *trouble) {
    if ((opens ? mu_py_call_opens(begin) : mu_py_call_begin(begin)) < 0) {
        note_trouble(trouble);
    } else if (opens) {
        note_opener(self, begin, trouble);
    } else {
        self->event_calls += mu_py_hook_entered(begin->event) == self->event;
    }
}

static void enter_locked(struct windows *self, const struct mu_py_call_end *begin,
                         struct mu_capture_event *read, struct trouble *trouble) {
    end_abandoned_locked(self, begin, MU_CAPTURE_ENTER, trouble);
    read->call = ++self->calls;
    read->inside = opener_of(self) != 0 && mu_py_call_is_here(begin, opener_of(self));
    struct mu_capture_change change = mu_capture_enter(&self->capture, read);
    bool is_watched = change.opened >= 0 || self->opener.run != NULL;
    if (opener_of(self) != 0 && is_trigger(self, read) && is_watched) {
        keep_call(self, begin, change.opened >= 0, trouble);
    }
    act_locked(self, change, trouble);
}

static void exit_locked(struct windows *self, const struct mu_py_call_end *end,
                        struct mu_capture_event *read, bool raised, struct trouble *trouble) {
    bool may_end = opener_of(self) != 0 && is_trigger(self, read);
    read->call = may_end ? ending_call(self, end) : 0;
    if (read->call != 0) {
        mu_py_call_end(end, read->call);
    }
    if (read->call == 0 || read->call != opener_of(self)) {
        end_abandoned_locked(self, end, MU_CAPTURE_EXIT, trouble);
    }
    act_locked(self, mu_capture_exit(&self->capture, read, raised), trouble);
}

enum { NAMES_MAX = 4096 };

static int read_event(struct windows *self, PyObject *event, struct mu_capture_event *read) {
    if (mu_py_hook_read(self->state, event, read) < 0) {
        return -1;
    }
    if (PySet_GET_SIZE(self->names) < NAMES_MAX &&
        PySet_Add(self->names, mu_py_hook_name_object(event)) < 0) {
        PyErr_Clear(); /* it serves messages only */
    }
    return 0;
}

static PyObject *visit(PyObject *object, PyObject *event, enum mu_capture_edge edge, bool raised) {
    struct windows *self = (struct windows *)object;
    struct mu_capture_event read;
    struct trouble trouble = {NULL, NULL, NULL};
    struct mu_py_call_end call = {self->state, event, &read, &self->opener};
    int wanted = concerns(self, event);
    if (wanted < 0) {
        return NULL;
    }
    /* A profiler that another thread starts or stops holds up the functions of its windows only. */
    if (wanted == NOTHING || !lock_or_not(self, wanted == NAMED_FUNCTION)) {
        Py_RETURN_NONE;
    }
    bool is_read = read_event(self, event, &read) == 0;
    if (is_read && edge == MU_CAPTURE_ENTER) {
        enter_locked(self, &call, &read, &trouble);
    } else if (is_read) {
        exit_locked(self, &call, &read, raised, &trouble);
    }
    unlock(self);
    return is_read ? end_calls(&trouble) : NULL;
}

PyDoc_STRVAR(on_enter_doc, "on_enter($self, event, /)\n--\n\n"
                           "A profiled function begins.");

static PyObject *on_enter(PyObject *self, PyObject *event) {
    return visit(self, event, MU_CAPTURE_ENTER, false);
}

PyDoc_STRVAR(on_exit_doc, "on_exit($self, event, raised=False)\n--\n\n"
                          "A profiled function ends; `raised`: by an exception.");

static PyObject *on_exit_(PyObject *self, PyObject *const *args, Py_ssize_t count,
                          PyObject *keywords) {
    static const char *const names[] = {"event", "raised", NULL};
    static const struct mu_py_signature signature = {"on_exit", names, 1, 2};
    PyObject *values[2];
    int raised = 0;
    if (mu_py_bind(&signature, args, count, keywords, values) < 0 ||
        (values[1] != NULL && mu_py_bool(values[1], "raised", &raised) < 0)) {
        return NULL;
    }
    return visit(self, values[0], MU_CAPTURE_EXIT, raised != 0);
}

/* --- specs -------------------------------------------------------------------------------- */

/* A description, as a CaptureSpec has it, is read here into the engine's; there is no other shape
 * of a window between them. */

enum field {
    WINDOW_ID,
    START_NAMES,
    START_ITER,
    START_MICROBATCH,
    START_EDGE,
    STOP_NAMES,
    STOP_ITER,
    STOP_MICROBATCH,
    STOP_EDGE,
    STOP_POLICY,
    ROLES,
    RANKS,
    MAX_ITERS,
    FIELDS,
};

static const char *const field_names[FIELDS] = {
    "window_id",  "start_profile_names", "start_iter", "start_mb",
    "start_edge", "stop_profile_names",  "stop_iter",  "stop_mb",
    "stop_edge",  "stop_policy",         "roles",      "ranks",
    "max_iters",
};

struct description {
    PyObject *fields[FIELDS];    /* owned; the texts of `spec` are borrowed from them */
    struct mu_capture_spec spec; /* its arrays are owned */
};

/* The texts of a tuple of str; the array is new. None is an empty one. */
static int texts_of(const struct description *from, enum field field,
                    struct mu_capture_texts *out) {
    PyObject *tuple = from->fields[field];
    if (tuple == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(tuple)) {
        PyErr_Format(PyExc_TypeError, "%s must be a tuple, not %.200R", field_names[field], tuple);
        return -1;
    }
    size_t count = (size_t)PyTuple_GET_SIZE(tuple);
    struct mu_capture_text *items = PyMem_New(struct mu_capture_text, count + 1);
    if (items == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    out->items = items;
    out->count = count;
    for (size_t i = 0; i < count; i++) {
        struct mu_py_text text;
        if (mu_py_utf8(PyTuple_GET_ITEM(tuple, (Py_ssize_t)i), field_names[field], &text) < 0) {
            return -1;
        }
        items[i] = (struct mu_capture_text){text.bytes, (size_t)text.length};
    }
    return 0;
}

static int ranks_of(struct description *from) {
    PyObject *tuple = from->fields[RANKS];
    if (tuple == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(tuple)) {
        PyErr_Format(PyExc_TypeError, "ranks must be a tuple, not %.200R", tuple);
        return -1;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    int64_t *ranks = PyMem_New(int64_t, (size_t)count + 1);
    if (ranks == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    from->spec.ranks = ranks;
    from->spec.rank_count = (size_t)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (mu_py_int64(PyTuple_GET_ITEM(tuple, i), "ranks", &ranks[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static int number_or_none(const struct description *from, enum field field, bool *has,
                          int64_t *out) {
    *has = from->fields[field] != Py_None;
    return *has ? mu_py_int64(from->fields[field], field_names[field], out) : 0;
}

/* Which of `count` words a field is, or -1 with ValueError. */
static int word_of(const struct description *from, enum field field, const char *const *words,
                   int count) {
    PyObject *value = from->fields[field];
    for (int i = 0; i < count; i++) {
        if (PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, words[i]) == 0) {
            return i;
        }
    }
    PyErr_Format(PyExc_ValueError, "%s cannot be %.200R", field_names[field], value);
    return -1;
}

/* The four fields of a gate are adjacent; `names` is the first of them. */
static int gate_of(const struct description *from, enum field names, struct mu_capture_gate *gate) {
    static const char *const edges[] = {[MU_CAPTURE_ENTER] = "ENTER", [MU_CAPTURE_EXIT] = "EXIT"};
    int edge = word_of(from, names + 3, edges, 2);
    if (edge < 0 || texts_of(from, names, &gate->names) < 0 ||
        number_or_none(from, names + 1, &gate->has_iter, &gate->iter) < 0 ||
        number_or_none(from, names + 2, &gate->has_microbatch, &gate->microbatch) < 0) {
        return -1;
    }
    gate->edge = (enum mu_capture_edge)edge;
    return 0;
}

static int policy_of(struct description *from) {
    static const char *const policies[] = {[MU_CAPTURE_MANUAL] = "MANUAL",
                                           [MU_CAPTURE_TRIGGER_EXIT] = "ON_TRIGGER_FUNC_EXIT",
                                           [MU_CAPTURE_STOP_NAME] = "ON_STOP_PROFILE_NAME"};
    int policy = word_of(from, STOP_POLICY, policies, 3);
    if (policy < 0) {
        return -1;
    }
    from->spec.policy = (enum mu_capture_policy)policy;
    return 0;
}

/* Reads an empty description. The caller frees it, also after an error. */
static int read_description(PyObject *object, struct description *out) {
    struct mu_py_text id;
    for (int i = 0; i < FIELDS; i++) {
        out->fields[i] = PyObject_GetAttrString(object, field_names[i]);
        if (out->fields[i] == NULL) {
            return -1;
        }
    }
    if (mu_py_utf8(out->fields[WINDOW_ID], "window_id", &id) < 0 ||
        gate_of(out, START_NAMES, &out->spec.start) < 0 ||
        gate_of(out, STOP_NAMES, &out->spec.stop) < 0 || policy_of(out) < 0 ||
        texts_of(out, ROLES, &out->spec.roles) < 0 || ranks_of(out) < 0 ||
        mu_py_int64_in(out->fields[MAX_ITERS], "max_iters", 1, INT64_MAX, &out->spec.iters_max) <
            0) {
        return -1;
    }
    out->spec.id = (struct mu_capture_text){id.bytes, (size_t)id.length};
    return 0;
}

static void free_description(struct description *description) {
    PyMem_Free((void *)description->spec.start.names.items);
    PyMem_Free((void *)description->spec.stop.names.items);
    PyMem_Free((void *)description->spec.roles.items);
    PyMem_Free((void *)description->spec.ranks);
    for (int i = 0; i < FIELDS; i++) {
        Py_XDECREF(description->fields[i]);
    }
}

static PyObject *not_from_a_call(void) {
    PyErr_SetString(PyExc_RuntimeError,
                    "windows cannot be armed or disarmed while their own profiler starts or stops");
    return NULL;
}

PyDoc_STRVAR(arm_spec_doc, "arm_spec($self, spec, /)\n--\n\n"
                           "Arms a window as an object with the fields of a CaptureSpec describes "
                           "it.");

static PyObject *arm_spec(PyObject *object, PyObject *spec) {
    struct windows *self = (struct windows *)object;
    struct description description = {0};
    struct trouble trouble = {NULL, NULL, NULL};
    struct mu_error err;
    PyObject *result = NULL;
    int index;
    if (read_description(spec, &description) == 0) {
        if (!lock(self)) {
            not_from_a_call();
        } else {
            int code = mu_capture_arm(&self->capture, &description.spec, &index, &err);
            tell_ended_locked(self, &trouble);
            unlock(self);
            result = code == MU_OK ? end_calls(&trouble) : mu_py_raise(&err);
        }
    }
    free_description(&description);
    return result;
}

PyDoc_STRVAR(disarm_window_doc,
             "disarm_window($self, window_id, /)\n--\n\n"
             "Takes a window back, and closes it when it is open; whether there was one.");

static PyObject *disarm_window(PyObject *object, PyObject *id) {
    struct windows *self = (struct windows *)object;
    struct trouble trouble = {NULL, NULL, NULL};
    struct mu_py_text text;
    if (mu_py_utf8(id, "window_id", &text) < 0) {
        return NULL;
    }
    if (!lock(self)) {
        return not_from_a_call();
    }
    int index =
        mu_capture_find(&self->capture, (struct mu_capture_text){text.bytes, (size_t)text.length});
    if (index >= 0) {
        bool open = self->capture.open == index;
        mu_capture_end(&self->capture, index, MU_CAPTURE_DISARMED);
        act_locked(self, (struct mu_capture_change){open ? index : -1, -1}, &trouble);
    }
    unlock(self);
    PyObject *done = end_calls(&trouble);
    Py_XDECREF(done);
    return done == NULL ? NULL : PyBool_FromLong(index >= 0);
}

PyDoc_STRVAR(pending_doc, "pending($self, /)\n--\n\n"
                          "(id of the open window or None, ids of those that wait)");

static PyObject *pending(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct windows *self = (struct windows *)object;
    PyObject *armed = PyList_New(0);
    PyObject *open = armed == NULL            ? NULL
                     : self->capture.open < 0 ? Py_NewRef(Py_None)
                                              : id_of(&self->capture.windows[self->capture.open]);
    for (int i = 0; open != NULL && i < MU_CAPTURE_WINDOWS_MAX; i++) {
        if (self->capture.windows[i].state != MU_CAPTURE_ARMED) {
            continue;
        }
        if (mu_py_append_new(armed, id_of(&self->capture.windows[i])) < 0) {
            Py_CLEAR(open);
        }
    }
    if (open == NULL) {
        Py_XDECREF(armed);
        return NULL;
    }
    return Py_BuildValue("(NN)", open, armed);
}

PyDoc_STRVAR(reported_doc, "reported($self, /)\n--\n\n"
                           "The names that hooks reported while windows waited or were open, a "
                           "new set.");

static PyObject *reported(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    return PySet_New(((struct windows *)object)->names);
}

PyDoc_STRVAR(forget_all_doc, "forget_all($self, /)\n--\n\n"
                             "In a forked child: all windows are the parent's.");

static PyObject *forget_all(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct windows *self = (struct windows *)object;
    PyThread_type_lock fresh = PyThread_allocate_lock();
    if (fresh == NULL) {
        return PyErr_NoMemory();
    }
    mu_capture_release(&self->capture);
    leave_opener(self);
    self->lock = fresh; /* the old one may be held by a thread that the child does not have */
    self->holder = 0;
    Py_RETURN_NONE;
}

/* --- the type ----------------------------------------------------------------------------- */

MU_LOCKED(on_enter)
MU_LOCKED_FAST(on_exit_)
MU_LOCKED(arm_spec)
MU_LOCKED(disarm_window)
MU_LOCKED(pending)
MU_LOCKED(reported)
MU_LOCKED(forget_all)

static PyMethodDef windows_methods[] = {
    {"on_enter", on_enter_locked, METH_O, on_enter_doc},
    {"on_exit", (PyCFunction)(void (*)(void))on_exit__locked, METH_FASTCALL | METH_KEYWORDS,
     on_exit_doc},
    {"arm_spec", arm_spec_locked, METH_O, arm_spec_doc},
    {"disarm_window", disarm_window_locked, METH_O, disarm_window_doc},
    {"pending", pending_locked, METH_NOARGS, pending_doc},
    {"reported", reported_locked, METH_NOARGS, reported_doc},
    {"forget_all", forget_all_locked, METH_NOARGS, forget_all_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot windows_slots[] = {
    {Py_tp_doc, (void *)"Capture windows; my_utils.profiling.capture_controller has the public "
                        "class."},
    {Py_tp_new, windows_new},
    {Py_tp_dealloc, windows_dealloc},
    {Py_tp_traverse, windows_traverse},
    {Py_tp_clear, windows_clear},
    {Py_tp_methods, windows_methods},
    {0, NULL},
};

static PyType_Spec windows_spec = {
    .name = "my_utils._core.CaptureWindows",
    .basicsize = sizeof(struct windows),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = windows_slots,
};

int mu_py_capture_exec(PyObject *module) {
    return mu_py_add_type(module, &windows_spec, NULL);
}
