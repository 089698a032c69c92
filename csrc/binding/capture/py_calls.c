#include "capture/py_calls.h"

#include "capture/py_hook_event.h"
#include "core/heap_types.h"

/* Of one window, shared: contexts may keep its calls for longer than it is open. */
struct mu_py_run {
    _Atomic size_t users;
    _Atomic bool is_over;
};

struct mu_py_call {
    PyObject_HEAD struct mu_py_call *outer; /* owned; NULL for none */
    PyObject *role;                         /* owned: a str, or NULL */
    struct mu_py_opener *opener;            /* borrowed: watches it; NULL for none */
    struct mu_py_lock *opener_lock;         /* borrowed from the module's state: of `opener` */
    struct mu_py_run *run;                  /* owned: of its window */
    uint64_t number;
    uint64_t event; /* the number of the event that it began with */
    _Atomic bool has_ended;
    bool has_rank, has_iter, has_microbatch;
    int64_t rank, iter, microbatch;
};

/* --- memory ------------------------------------------------------------------------------- */

static struct mu_py_run *use_run(struct mu_py_run *run) {
    run->users++;
    return run;
}

static void drop_run(struct mu_py_run *run) {
    if (run != NULL && atomic_fetch_sub(&run->users, 1) == 1) {
        PyMem_Free(run);
    }
}

static void free_one(struct mu_py_call *self) {
    PyTypeObject *type = Py_TYPE(self);
    mu_py_lock_take(self->opener_lock);
    if (self->opener != NULL) {
        self->opener->call = NULL;
        self->opener->call_gone = true;
    }
    mu_py_lock_release(self->opener_lock);
    drop_run(self->run);
    Py_XDECREF(self->role);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* Whether the caller has the only reference. Where there is no GIL, one thread's calls show it. */
static bool is_last_reference(struct mu_py_call *call) {
#if MU_FREE_THREADED && PY_VERSION_HEX >= 0x030E0000
    return PyUnstable_Object_IsUniquelyReferenced((PyObject *)call) != 0;
#elif MU_FREE_THREADED
    PyObject *object = (PyObject *)call;
    return _Py_IsOwnedByCurrentThread(object) &&
           atomic_load_explicit((_Atomic uint32_t *)&object->ob_ref_local, memory_order_relaxed) ==
               1 &&
           atomic_load_explicit((_Atomic Py_ssize_t *)&object->ob_ref_shared,
                                memory_order_relaxed) == 0;
#else
    return Py_REFCNT(call) == 1;
#endif
}

/* Without recursion: calls that nobody ends make a long chain. */
static void call_dealloc(PyObject *object) {
    struct mu_py_call *call = (struct mu_py_call *)object;
    struct mu_py_call *outer = call->outer;
    free_one(call);
    while (outer != NULL && is_last_reference(outer)) {
        struct mu_py_call *next = outer->outer;
        outer->outer = NULL;
        Py_DECREF((PyObject *)outer);
        outer = next;
    }
    Py_XDECREF((PyObject *)outer);
}

static PyType_Slot call_slots[] = {
    {Py_tp_dealloc, call_dealloc},
    {0, NULL},
};

static PyType_Spec call_spec = {
    .name = "my_utils._core.CaptureCall",
    .basicsize = sizeof(struct mu_py_call),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = call_slots,
};

int mu_py_calls_exec(PyObject *module) {
    struct mu_state *state = mu_state_of(module);
    state->call_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &call_spec, NULL);
    state->calls = PyContextVar_New("my_utils.capture", Py_None);
    return state->call_type == NULL || state->calls == NULL ? -1 : 0;
}

/* --- the context -------------------------------------------------------------------------- */

/* The innermost call of this context whose window is open, borrowed from the context; NULL for
 * none. */
static struct mu_py_call *innermost(struct mu_state *state) {
    PyObject *found = NULL;
    if (PyContextVar_Get(state->calls, Py_None, &found) < 0) {
        PyErr_Clear();
        return NULL;
    }
    bool is_call = found != NULL && Py_TYPE(found) == state->call_type;
    Py_XDECREF(found); /* the context holds it */
    struct mu_py_call *call = is_call ? (struct mu_py_call *)found : NULL;
    while (call != NULL && (call->has_ended || call->run->is_over)) {
        call = call->outer;
    }
    return call;
}

static int set_innermost(struct mu_state *state, struct mu_py_call *call) {
    PyObject *token = PyContextVar_Set(state->calls, call == NULL ? Py_None : (PyObject *)call);
    Py_XDECREF(token);
    return token == NULL ? -1 : 0;
}

int mu_py_call_opens(const struct mu_py_call_end *begin) {
    struct mu_py_opener *opener = begin->opener;
    struct mu_py_lock *lock = &begin->state->windows_lock;
    mu_py_opener_leave(begin->state, opener);
    opener->run = PyMem_Calloc(1, sizeof(*opener->run));
    if (opener->run == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    opener->run->users = 1;
    if (mu_py_call_begin(begin) < 0) {
        return -1;
    }
    struct mu_py_call *call = innermost(begin->state);
    mu_py_lock_take(lock);
    opener->call = call;
    call->opener = opener;
    mu_py_hook_watch_locked(begin->event, opener, lock);
    mu_py_lock_release(lock);
    return 0;
}

int mu_py_call_begin(const struct mu_py_call_end *begin) {
    struct mu_state *state = begin->state;
    const struct mu_capture_event *read = begin->read;
    struct mu_py_call *call = PyObject_New(struct mu_py_call, state->call_type);
    if (call == NULL) {
        return -1;
    }
    PyObject *role = mu_py_hook_role(begin->event);
    call->outer = (struct mu_py_call *)Py_XNewRef((PyObject *)innermost(state));
    call->role = role == Py_None ? NULL : Py_XNewRef(role);
    call->opener = NULL;
    call->opener_lock = &state->windows_lock;
    call->run = use_run(begin->opener->run);
    call->number = read->call;
    call->event = mu_py_hook_number(state, begin->event);
    call->has_ended = false;
    call->has_rank = read->has_rank;
    call->rank = read->rank;
    call->has_iter = read->has_iter;
    call->iter = read->iter;
    call->has_microbatch = read->has_microbatch;
    call->microbatch = read->microbatch;
    int rc = set_innermost(state, call);
    Py_DECREF((PyObject *)call);
    return rc;
}

/* --- which call it is --------------------------------------------------------------------- */

static bool is_of(const struct mu_py_call *call, const struct mu_py_call_end *end) {
    return call->run == end->opener->run && !call->has_ended;
}

static bool same_role(PyObject *a, PyObject *b) {
    return a == NULL || b == NULL || b == Py_None || !PyUnicode_Check(b) ||
           PyUnicode_Compare(a, b) == 0;
}

/* Whether the fields that both name are equal. */
static bool fits(const struct mu_py_call *call, const struct mu_py_call_end *end) {
    const struct mu_capture_event *read = end->read;
    return !(call->has_iter && read->has_iter && call->iter != read->iter) &&
           !(call->has_microbatch && read->has_microbatch &&
             call->microbatch != read->microbatch) &&
           !(call->has_rank && read->has_rank && call->rank != read->rank) &&
           same_role(call->role, mu_py_hook_role(end->event));
}

uint64_t mu_py_call_ending(const struct mu_py_call_end *end) {
    uint64_t event = mu_py_hook_entered(end->event);
    const struct mu_py_call *fitting = NULL;
    for (const struct mu_py_call *call = innermost(end->state); call != NULL; call = call->outer) {
        if (is_of(call, end) && event != 0 && call->event == event) {
            return call->number;
        }
        if (fitting == NULL && is_of(call, end) && fits(call, end)) {
            fitting = call;
        }
    }
    /* An event that another context knows ends a call of that one. */
    return event != 0 || fitting == NULL ? 0 : fitting->number;
}

static struct mu_py_call *find(const struct mu_py_call_end *end, uint64_t number) {
    struct mu_py_call *call = innermost(end->state);
    while (call != NULL && (call->number != number || !is_of(call, end))) {
        call = call->outer;
    }
    return call;
}

bool mu_py_call_is_here(const struct mu_py_call_end *here, uint64_t number) {
    return find(here, number) != NULL;
}

void mu_py_call_end(const struct mu_py_call_end *end, uint64_t number) {
    struct mu_py_call *call = find(end, number);
    if (call == NULL) {
        return;
    }
    call->has_ended = true;
    if (set_innermost(end->state, innermost(end->state)) < 0) {
        PyErr_WriteUnraisable(NULL);
    }
}

/* --- the opener --------------------------------------------------------------------------- */

void mu_py_opener_leave(struct mu_state *state, struct mu_py_opener *opener) {
    mu_py_lock_take(&state->windows_lock);
    struct mu_py_run *run = opener->run;
    if (opener->call != NULL) {
        opener->call->opener = NULL;
    }
    mu_py_hook_leave_locked(opener);
    *opener = (struct mu_py_opener){0};
    mu_py_lock_release(&state->windows_lock);
    if (run != NULL) {
        run->is_over = true;
        drop_run(run);
    }
}
