#include "capture/py_hook_event.h"

#include <structmember.h>

#include "core/args.h"
#include "core/heap_types.h"
#include "core/warnings.h"

struct hook_event {
    PyObject_HEAD PyObject *profile_name; /* owned, as all four: str */
    PyObject *meta;                       /* dict or None */
    PyObject *role;                       /* str or None */
    PyObject *rank;                       /* int or None */
    struct mu_state *keeper;              /* borrowed from the module; NULL in subclasses */
    _Atomic uint64_t number;              /* of events that were entered, see py_calls.h; or 0 */
    struct mu_py_opener *opener;          /* borrowed: notified when the event is gone; or NULL */
    struct mu_py_lock *opener_lock;       /* borrowed: of `opener`; NULL: it never had one */
};

enum { FIELDS = MU_PY_HOOK_FIELDS };

static const char *const field_names[] = {"profile_name", "meta", "role", "rank", NULL};
static const struct mu_py_signature signature = {"HookEvent", field_names, 1, FIELDS};

/* --- what the fields may hold ------------------------------------------------------------- */

static int wrong_field(const char *name, const char *allowed, PyObject *value) {
    PyErr_Format(PyExc_TypeError, "%s must be %s, not %.100s (%.200R)", name, allowed,
                 Py_TYPE(value)->tp_name, value);
    return -1;
}

static int check_fields(PyObject *const *fields) {
    if (!PyUnicode_Check(fields[0])) {
        return wrong_field("profile_name", "str", fields[0]);
    }
    if (!PyDict_Check(fields[1]) && fields[1] != Py_None) {
        return wrong_field("meta", "a dict or None", fields[1]);
    }
    if (!PyUnicode_Check(fields[2]) && fields[2] != Py_None) {
        return wrong_field("role", "str or None", fields[2]);
    }
    if (!PyLong_CheckExact(fields[3]) && fields[3] != Py_None &&
        (!PyIndex_Check(fields[3]) || PyBool_Check(fields[3]))) {
        return wrong_field("rank", "int or None", fields[3]);
    }
    return 0;
}

/* --- memory ------------------------------------------------------------------------------- */

/* The module's state; NULL while the interpreter shuts down. */
static struct mu_state *state_of(PyTypeObject *type) {
    PyObject *module = ((PyHeapTypeObject *)type)->ht_module;
    return module == NULL ? NULL : mu_state_of(module);
}

/* A new event without fields, not tracked yet. `state` may be NULL. */
static struct hook_event *allocate(struct mu_state *state, PyTypeObject *type) {
    if (MU_FREE_THREADED || state == NULL || state->hook_events_free == 0) {
        return PyObject_GC_New(struct hook_event, type);
    }
    PyObject *object = state->hook_events[--state->hook_events_free];
    return (struct hook_event *)PyObject_Init(object, type);
}

/* Keeps the memory of a freed event for the next one. Each hook call makes one event, which lives
 * for that call alone, and malloc was half of its cost. The memory of a subclass is freed at once,
 * because its size may differ; so is that of an event which outlives the
 * type in the module's state. Where there is no GIL, each thread has a quick allocator. */
static void give_back(PyTypeObject *type, PyObject *object) {
    struct mu_state *keeper = ((struct hook_event *)object)->keeper;
    bool stays = !MU_FREE_THREADED && keeper != NULL &&
                 ((PyHeapTypeObject *)type)->ht_module != NULL && keeper->hook_event_type != NULL;
    if (!stays || keeper->hook_events_free == MU_PY_HOOK_EVENTS_KEPT) {
        type->tp_free(object);
    } else {
        keeper->hook_events[keeper->hook_events_free++] = object;
    }
}

void mu_py_hook_events_free(struct mu_state *state) {
    while (state->hook_events_free > 0) {
        PyObject_GC_Del(state->hook_events[--state->hook_events_free]);
    }
}

/* --- making one --------------------------------------------------------------------------- */

/* Binds arguments that come in the order of the fields, with interned keywords. Returns false for
 * any others; they take the slower path. */
static bool bind_in_order(const struct mu_state *state, PyObject *const *args, Py_ssize_t count,
                          PyObject *keywords, PyObject **fields) {
    Py_ssize_t named = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    Py_ssize_t given = count + named;
    if (given < 1 || given > FIELDS) {
        return false;
    }
    for (Py_ssize_t i = count; i < given; i++) {
        if (PyTuple_GET_ITEM(keywords, i - count) != state->hook_event_names[i]) {
            return false;
        }
    }
    for (Py_ssize_t i = 0; i < FIELDS; i++) {
        fields[i] = i < given ? args[i] : Py_None;
    }
    return true;
}

static int bind(PyObject *const *args, Py_ssize_t count, PyObject *keywords, PyObject **fields) {
    if (mu_py_bind(&signature, args, count, keywords, fields) < 0) {
        return -1;
    }
    for (int i = 0; i < FIELDS; i++) {
        fields[i] = fields[i] == NULL ? Py_None : fields[i];
    }
    return 0;
}

static PyObject *event_vectorcall(PyObject *type, PyObject *const *args, size_t flags,
                                  PyObject *keywords) {
    struct mu_state *state = state_of((PyTypeObject *)type);
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    PyObject *fields[FIELDS];
    if ((state == NULL || !bind_in_order(state, args, count, keywords, fields)) &&
        bind(args, count, keywords, fields) < 0) {
        return NULL;
    }
    if (check_fields(fields) < 0) {
        return NULL;
    }
    struct hook_event *self = allocate(state, (PyTypeObject *)type);
    if (self == NULL) {
        return NULL;
    }
    self->profile_name = Py_NewRef(fields[0]);
    self->meta = Py_NewRef(fields[1]);
    self->role = Py_NewRef(fields[2]);
    self->rank = Py_NewRef(fields[3]);
    self->keeper = state;
    self->number = 0;
    self->opener = NULL;
    self->opener_lock = NULL;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

/* For subclasses. They have no vectorcall, and may have their own __init__, as dataclasses do. */
static PyObject *event_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
                           PyObject *Py_UNUSED(kwargs)) {
    return type->tp_alloc(type, 0);
}

static void set_field(PyObject **field, PyObject *value) {
    PyObject *before = *field;
    *field = Py_NewRef(value);
    Py_XDECREF(before);
}

static int event_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    struct hook_event *self = (struct hook_event *)object;
    PyObject *fields[FIELDS] = {NULL, Py_None, Py_None, Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOO:HookEvent", (char **)field_names,
                                     &fields[0], &fields[1], &fields[2], &fields[3]) ||
        check_fields(fields) < 0) {
        return -1;
    }
    set_field(&self->profile_name, fields[0]);
    set_field(&self->meta, fields[1]);
    set_field(&self->role, fields[2]);
    set_field(&self->rank, fields[3]);
    return 0;
}

static int event_traverse(PyObject *object, visitproc visit, void *arg) {
    struct hook_event *self = (struct hook_event *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->profile_name);
    Py_VISIT(self->meta);
    Py_VISIT(self->role);
    Py_VISIT(self->rank);
    return 0;
}

static int event_clear(PyObject *object) {
    struct hook_event *self = (struct hook_event *)object;
    Py_CLEAR(self->profile_name);
    Py_CLEAR(self->meta);
    Py_CLEAR(self->role);
    Py_CLEAR(self->rank);
    return 0;
}

/* Only its thread uses an event that is being freed, but the window may be closed meanwhile. */
static void tell_opener(struct hook_event *self) {
    struct mu_py_lock *lock = self->opener_lock;
    if (lock == NULL) {
        return;
    }
    mu_py_lock_take(lock);
    if (self->opener != NULL) {
        self->opener->event = NULL;
        self->opener->event_gone = true;
    }
    mu_py_lock_release(lock);
}

static void event_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    tell_opener((struct hook_event *)object);
    event_clear(object);
    give_back(type, object);
    Py_DECREF(type);
}

/* --- the surface of a dataclass ------------------------------------------------------------ */

/* A new tuple of the fields. A field that the user deleted is None. */
static PyObject *fields_of(PyObject *object) {
    struct hook_event *self = (struct hook_event *)object;
    PyObject *fields[] = {self->profile_name, self->meta, self->role, self->rank};
    for (int i = 0; i < FIELDS; i++) {
        fields[i] = fields[i] == NULL ? Py_None : fields[i];
    }
    return PyTuple_Pack(FIELDS, fields[0], fields[1], fields[2], fields[3]);
}

static PyObject *event_repr(PyObject *self) {
    PyObject *fields = fields_of(self);
    if (fields == NULL) {
        return NULL;
    }
    PyObject *text = PyUnicode_FromFormat("HookEvent(profile_name=%R, meta=%R, role=%R, rank=%R)",
                                          PyTuple_GET_ITEM(fields, 0), PyTuple_GET_ITEM(fields, 1),
                                          PyTuple_GET_ITEM(fields, 2), PyTuple_GET_ITEM(fields, 3));
    Py_DECREF(fields);
    return text;
}

static PyObject *event_compare(PyObject *self, PyObject *other, int op) {
    if ((op != Py_EQ && op != Py_NE) || Py_TYPE(self) != Py_TYPE(other)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    PyObject *left = fields_of(self);
    PyObject *right = left == NULL ? NULL : fields_of(other);
    PyObject *answer = right == NULL ? NULL : PyObject_RichCompare(left, right, op);
    Py_XDECREF(left);
    Py_XDECREF(right);
    return answer;
}

static PyObject *event_reduce(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    PyObject *fields = fields_of(self);
    return fields == NULL ? NULL : Py_BuildValue("(ON)", Py_TYPE(self), fields);
}

static PyMemberDef event_members[] = {
    {"profile_name", T_OBJECT, offsetof(struct hook_event, profile_name), 0,
     PyDoc_STR("str: the function that begins or ends.")},
    {"meta", T_OBJECT, offsetof(struct hook_event, meta), 0,
     PyDoc_STR("dict or None: `iter` and `microbatch_index` are read, integers both.")},
    {"role", T_OBJECT, offsetof(struct hook_event, role), 0, PyDoc_STR("str or None")},
    {"rank", T_OBJECT, offsetof(struct hook_event, rank), 0, PyDoc_STR("int or None")},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef event_methods[] = {
    {"__reduce__", event_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(
    event_doc,
    "HookEvent(profile_name, meta=None, role=None, rank=None)\n--\n\n"
    "A profiled function begins or ends.\n\n"
    "Of `meta` the keys `iter` and `microbatch_index` are read, and all others left alone.\n"
    "Two are equal when all fields are.\n\n"
    "TypeError for a name or role that is not a str, meta that is not a dict, a rank that is no\n"
    "int.");

static PyType_Slot event_slots[] = {
    {Py_tp_doc, (void *)event_doc},
    {Py_tp_new, event_new},
    {Py_tp_init, event_init},
    {Py_tp_dealloc, event_dealloc},
    {Py_tp_traverse, event_traverse},
    {Py_tp_clear, event_clear},
    {Py_tp_repr, event_repr},
    {Py_tp_richcompare, event_compare},
    {Py_tp_hash, PyObject_HashNotImplemented},
    {Py_tp_members, event_members},
    {Py_tp_methods, event_methods},
    {0, NULL},
};

static PyType_Spec event_spec = {
    .name = "my_utils.profiling.capture_controller.HookEvent",
    .basicsize = sizeof(struct hook_event),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = event_slots,
};

/* --- reading one -------------------------------------------------------------------------- */

static int text_of(PyObject *value, const char *name, struct mu_capture_text *out) {
    struct mu_py_text text;
    if (mu_py_utf8(value == NULL ? Py_None : value, name, &text) < 0) {
        return -1;
    }
    out->bytes = text.bytes;
    out->length = (size_t)text.length;
    return 0;
}

int mu_py_hook_name(PyObject *event, struct mu_capture_text *name) {
    return text_of(((struct hook_event *)event)->profile_name, "profile_name", name);
}

PyObject *mu_py_hook_role(PyObject *event) {
    return ((struct hook_event *)event)->role;
}

PyObject *mu_py_hook_name_object(PyObject *event) {
    return ((struct hook_event *)event)->profile_name;
}

void mu_py_hook_watch_locked(PyObject *event, struct mu_py_opener *opener,
                             struct mu_py_lock *lock) {
    struct hook_event *self = (struct hook_event *)event;
    if (self->opener == NULL) {
        self->opener_lock = lock;
        self->opener = opener;
        opener->event = event;
    }
}

void mu_py_hook_leave_locked(struct mu_py_opener *opener) {
    if (opener->event != NULL) {
        ((struct hook_event *)opener->event)->opener = NULL;
        opener->event = NULL;
    }
}

uint64_t mu_py_hook_entered(PyObject *event) {
    return ((struct hook_event *)event)->number;
}

uint64_t mu_py_hook_number(struct mu_state *state, PyObject *event) {
    struct hook_event *self = (struct hook_event *)event;
    uint64_t none = 0;
    if (self->number == 0) {
        uint64_t next = atomic_fetch_add(&state->hook_events_entered, 1) + 1;
        atomic_compare_exchange_strong(&self->number, &none, next);
    }
    return self->number;
}

/* Warns once of an invalid number; the event then has no number. Other exceptions stay set: -1. */
static int leave_out(struct mu_state *state) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_ValueError)) {
        return -1;
    }
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *text = PyUnicode_FromFormat("a hook's %S; it counts as one that does not say it",
                                          error == NULL ? type : error);
    const char *message = text == NULL ? NULL : PyUnicode_AsUTF8(text);
    if (message == NULL) {
        PyErr_Clear();
        message = "a hook's meta holds no int; it counts as one that does not say it";
    }
    mu_py_warn(state, "capture_event", message);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    return 0;
}

/* An int that may be absent or None. The training goes on when it is something else. */
static int number_of(struct mu_state *state, PyObject *value, const char *name, bool *has,
                     int64_t *out) {
    *has = value != NULL && value != Py_None;
    if (!*has || mu_py_int64(value, name, out) == 0) {
        return 0;
    }
    *has = false;
    return leave_out(state);
}

/* A value of `meta`, which is a dict. */
static int number_in(struct mu_state *state, PyObject *meta, PyObject *key, const char *name,
                     bool *has, int64_t *out) {
    PyObject *value = mu_py_dict_value(meta, key);
    if (value == NULL && PyErr_Occurred()) {
        return -1;
    }
    int rc = number_of(state, value, name, has, out);
    Py_XDECREF(value);
    return rc;
}

static int read_meta(struct mu_state *state, PyObject *meta, struct mu_capture_event *out) {
    if (meta == NULL || !PyDict_Check(meta)) {
        return 0;
    }
    if (number_in(state, meta, state->key_iter, "meta['iter']", &out->has_iter, &out->iter) < 0) {
        return -1;
    }
    return number_in(state, meta, state->key_microbatch, "meta['microbatch_index']",
                     &out->has_microbatch, &out->microbatch);
}

int mu_py_hook_read(struct mu_state *state, PyObject *event, struct mu_capture_event *out) {
    const struct hook_event *self = (const struct hook_event *)event;
    *out = (struct mu_capture_event){0};
    if (mu_py_hook_name(event, &out->name) < 0) {
        return -1;
    }
    if (self->role != NULL && self->role != Py_None &&
        text_of(self->role, "role", &out->role) < 0) {
        return -1;
    }
    if (number_of(state, self->rank, "rank", &out->has_rank, &out->rank) < 0) {
        return -1;
    }
    return read_meta(state, self->meta, out);
}

int mu_py_hook_event_exec(PyObject *module) {
    struct mu_state *state = mu_state_of(module);
    state->key_iter = PyUnicode_InternFromString("iter");
    state->key_microbatch = PyUnicode_InternFromString("microbatch_index");
    if (state->key_iter == NULL || state->key_microbatch == NULL ||
        mu_py_add_type(module, &event_spec, &state->hook_event_type) < 0) {
        return -1;
    }
    for (int i = 0; i < FIELDS; i++) {
        state->hook_event_names[i] = PyUnicode_InternFromString(field_names[i]);
        if (state->hook_event_names[i] == NULL) {
            return -1;
        }
    }
    state->hook_event_type->tp_vectorcall = event_vectorcall;
    PyObject *names = PyTuple_Pack(FIELDS, state->hook_event_names[0], state->hook_event_names[1],
                                   state->hook_event_names[2], state->hook_event_names[3]);
    if (names == NULL) {
        return -1;
    }
    int rc = PyObject_SetAttrString((PyObject *)state->hook_event_type, "__match_args__", names);
    Py_DECREF(names);
    return rc;
}
