#include "run/py_bucket_times.h"

#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

#include "base/clock.h"
#include "core/args.h"
#include "core/free_threading.h"
#include "core/heap_types.h"
#include "run/py_gpu_marks.h"
#include "stages/recorder_state.h"

enum { NS_IN_US = 1000 };

/* --- one bucket --------------------------------------------------------------------------- */

/* Called with each gradient of a bucket; the last call of a backward counts. It knows somebody only
 * while it is set, so that it may outlive all else. */
struct bucket_hook {
    PyObject_HEAD int64_t ready_ns; /* CLOCK_MONOTONIC; 0: none came */
    vectorcallfunc vectorcall;
    struct mu_py_gpu_marks *marks; /* borrowed; NULL: not set, or no GPU times */
    Py_ssize_t mark;               /* of the bucket, in them */
    Py_ssize_t missing;            /* gradients before the bucket is whole */
};

static PyObject *hook_called(PyObject *self, PyObject *const *Py_UNUSED(args),
                             size_t Py_UNUSED(flags), PyObject *Py_UNUSED(keywords)) {
    struct bucket_hook *hook = (struct bucket_hook *)self;
    MU_BEGIN_SECTION(self);
    hook->ready_ns = mu_clock_monotonic_ns();
    if (hook->marks != NULL && --hook->missing <= 0) { /* or once more, in a reentrant backward */
        mu_py_gpu_marks_set(hook->marks, hook->mark);
    }
    MU_END_SECTION();
    Py_RETURN_NONE;
}

static void hook_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef hook_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(struct bucket_hook, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(hook_doc, "A tensor hook that keeps the time of its last call.");

static PyType_Slot hook_slots[] = {
    {Py_tp_doc, (void *)hook_doc},
    {Py_tp_dealloc, hook_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, hook_members},
    {0, NULL},
};

static PyType_Spec hook_spec = {
    .name = "my_utils._core._BucketHook",
    .basicsize = sizeof(struct bucket_hook),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = hook_slots,
};

static PyObject *new_hook(PyTypeObject *type) {
    struct bucket_hook *hook = (struct bucket_hook *)type->tp_alloc(type, 0);
    if (hook != NULL) {
        hook->vectorcall = hook_called;
    }
    return (PyObject *)hook;
}

/* --- all of them -------------------------------------------------------------------------- */

struct watched {
    PyObject *parameter; /* owned */
    PyObject *hooks;     /* owned: the mapping that holds our hook; NULL while none does */
    bool is_ours;        /* the parameter had no mapping before */
    Py_ssize_t bucket;
};

struct mu_py_bucket_times {
    PyObject_HEAD Py_ssize_t watched_count, bucket_count;
    struct watched *watched; /* owned */
    PyObject **hooks;        /* owned: a bucket_hook for each bucket */
    bool *is_partial;        /* owned: a parameter of the bucket could not be hooked */
    PyObject *attribute;     /* owned: "_backward_hooks" */
    PyObject *key;           /* owned: ours in such a mapping */
    PyObject *make_mapping;  /* owned: collections.OrderedDict, as torch has it */
    int64_t began_ns;        /* CLOCK_MONOTONIC; 0: no backward yet */
    int64_t ended_ns;        /* of that backward; 0: it runs */
    bool installed;
    struct mu_py_gpu_marks marks; /* of the begin, then of each bucket */
};

static struct bucket_hook *hook_of(const struct mu_py_bucket_times *self, Py_ssize_t bucket) {
    return (struct bucket_hook *)self->hooks[bucket];
}

/* The pool that the recorder has now; NULL: no GPU times. */
static struct mu_cuda_pool *live_pool(struct mu_py_bucket_times *self) {
    struct mu_state *state = mu_state_of_object((PyObject *)self);
    if (state == NULL) {
        PyErr_Clear();
    }
    struct mu_recorder *recorder = state == NULL ? NULL : state->recorder;
    return recorder == NULL ? NULL : recorder->gpu;
}

/* 0, or -1 with an exception. */
static int hook_parameter(struct mu_py_bucket_times *self, struct watched *one) {
    PyObject *hooks = PyObject_GetAttr(one->parameter, self->attribute);
    if (hooks == NULL) {
        return -1;
    }
    one->is_ours = hooks == Py_None;
    if (one->is_ours) {
        Py_SETREF(hooks, PyObject_CallNoArgs(self->make_mapping));
    }
    if (hooks == NULL || PyObject_SetItem(hooks, self->key, self->hooks[one->bucket]) < 0 ||
        (one->is_ours && PyObject_SetAttr(one->parameter, self->attribute, hooks) < 0)) {
        Py_XDECREF(hooks);
        return -1;
    }
    one->hooks = hooks;
    return 0;
}

/* A hook that was added meanwhile stays. 0, or -1 with an exception. */
static int unhook_parameter(struct mu_py_bucket_times *self, struct watched *one) {
    PyObject *hooks = one->hooks;
    one->hooks = NULL;
    Py_ssize_t count = PyObject_Size(hooks);
    int failed = count < 0 ? -1 : PyObject_DelItem(hooks, self->key);
    if (failed == 0 && one->is_ours && count == 1) {
        failed = PyObject_SetAttr(one->parameter, self->attribute, Py_None);
    }
    Py_DECREF(hooks);
    return failed;
}

/* Threads of the backward before may be calling the hook. `marks` NULL: no GPU times. */
static void reset_hook(struct bucket_hook *hook, struct mu_py_gpu_marks *marks, Py_ssize_t mark) {
    MU_BEGIN_SECTION((PyObject *)hook);
    hook->ready_ns = 0;
    hook->marks = marks;
    hook->mark = mark;
    hook->missing = 0;
    MU_END_SECTION();
}

static void add_missing(struct bucket_hook *hook) {
    MU_BEGIN_SECTION((PyObject *)hook);
    hook->missing++;
    MU_END_SECTION();
}

static void reset_hooks(struct mu_py_bucket_times *self, struct mu_cuda_pool *gpu) {
    for (Py_ssize_t i = 0; i < self->bucket_count; i++) {
        reset_hook(hook_of(self, i), gpu == NULL ? NULL : &self->marks, i + 1);
        self->is_partial[i] = false;
    }
    for (Py_ssize_t i = 0; i < self->watched_count; i++) {
        add_missing(hook_of(self, self->watched[i].bucket));
    }
}

static void forget_marks(struct bucket_hook *hook) {
    MU_BEGIN_SECTION((PyObject *)hook);
    hook->marks = NULL;
    MU_END_SECTION();
}

void mu_py_bucket_times_install(struct mu_py_bucket_times *self, struct mu_cuda_pool *gpu) {
    mu_py_bucket_times_remove(self);
    struct mu_state *state = mu_state_of_object((PyObject *)self);
    if (gpu != NULL && state != NULL) {
        mu_py_exchange_find(&state->exchange); /* for mu_py_cuda_stream */
    }
    PyErr_Clear();
    mu_py_gpu_marks_begin(&self->marks, gpu);
    reset_hooks(self, gpu);
    self->installed = true;
    for (Py_ssize_t i = 0; i < self->watched_count; i++) {
        if (hook_parameter(self, &self->watched[i]) < 0) {
            PyErr_Clear();
            self->is_partial[self->watched[i].bucket] = true;
        }
    }
    self->ended_ns = 0;
    self->began_ns = mu_clock_monotonic_ns();
    mu_py_gpu_marks_set(&self->marks, 0);
}

void mu_py_bucket_times_remove(struct mu_py_bucket_times *self) {
    if (!self->installed) {
        return;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    self->ended_ns = mu_clock_monotonic_ns();
    self->installed = false;
    for (Py_ssize_t i = 0; i < self->bucket_count; i++) {
        forget_marks(hook_of(self, i));
    }
    for (Py_ssize_t i = 0; i < self->watched_count; i++) {
        if (self->watched[i].hooks != NULL && unhook_parameter(self, &self->watched[i]) < 0) {
            PyErr_Clear();
        }
    }
    PyErr_Restore(type, value, traceback);
}

/* --- methods ------------------------------------------------------------------------------ */

static PyObject *times_install(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    mu_py_bucket_times_install((struct mu_py_bucket_times *)self, NULL);
    Py_RETURN_NONE;
}

static PyObject *times_remove(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    mu_py_bucket_times_remove((struct mu_py_bucket_times *)self);
    Py_RETURN_NONE;
}

static PyObject *time_of(const struct mu_py_bucket_times *self, Py_ssize_t bucket) {
    struct bucket_hook *hook = hook_of(self, bucket);
    int64_t ready_ns;
    MU_BEGIN_SECTION((PyObject *)hook);
    ready_ns = hook->ready_ns;
    MU_END_SECTION();
    if (ready_ns == 0 || self->is_partial[bucket]) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLongLong((ready_ns - self->began_ns) / NS_IN_US);
}

static PyObject *times_read(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct mu_py_bucket_times *self = (struct mu_py_bucket_times *)object;
    PyObject *times = PyList_New(0);
    for (Py_ssize_t i = 0; times != NULL && i < self->bucket_count; i++) {
        if (mu_py_append_new(times, time_of(self, i)) < 0) {
            Py_CLEAR(times);
        }
    }
    return times == NULL ? NULL
                         : Py_BuildValue("(LLN)", (long long)self->began_ns,
                                         (long long)self->ended_ns, times);
}

static PyObject *times_read_gpu(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct mu_py_bucket_times *self = (struct mu_py_bucket_times *)object;
    return mu_py_gpu_marks_read(&self->marks, live_pool(self), self->began_ns);
}

/* --- the type ----------------------------------------------------------------------------- */

static int fill_watched(struct mu_py_bucket_times *self, PyObject *parameters, PyObject *buckets) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parameters); i++) {
        int64_t bucket;
        if (mu_py_int64_in(PyTuple_GET_ITEM(buckets, i), "buckets", 0,
                           PyTuple_GET_SIZE(buckets) - 1, &bucket) < 0) {
            return -1;
        }
        self->watched[i].parameter = Py_NewRef(PyTuple_GET_ITEM(parameters, i));
        self->watched[i].bucket = (Py_ssize_t)bucket;
        self->watched_count = i + 1;
        self->bucket_count = bucket + 1 > self->bucket_count ? bucket + 1 : self->bucket_count;
    }
    return 0;
}

static int make_hooks(struct mu_py_bucket_times *self, PyTypeObject *hook_type) {
    for (Py_ssize_t i = 0; i < self->bucket_count; i++) {
        self->hooks[i] = new_hook(hook_type);
        if (self->hooks[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

static int find_names(struct mu_py_bucket_times *self) {
    PyObject *collections = PyImport_ImportModule("collections");
    if (collections != NULL) {
        self->make_mapping = PyObject_GetAttrString(collections, "OrderedDict");
        Py_DECREF(collections);
    }
    self->attribute = PyUnicode_InternFromString("_backward_hooks");
    self->key = PyUnicode_InternFromString("my_utils.bucket");
    return self->make_mapping == NULL || self->attribute == NULL || self->key == NULL ? -1 : 0;
}

static int init_times(struct mu_py_bucket_times *self, PyObject *parameters, PyObject *buckets) {
    size_t count = (size_t)PyTuple_GET_SIZE(parameters);
    if ((size_t)PyTuple_GET_SIZE(buckets) != count) {
        PyErr_Format(PyExc_ValueError,
                     "buckets must have one number for each of %zu parameters, not %zd", count,
                     PyTuple_GET_SIZE(buckets));
        return -1;
    }
    self->watched = PyMem_Calloc(count + 1, sizeof(*self->watched));
    self->hooks = PyMem_Calloc(count + 1, sizeof(PyObject *));
    self->is_partial = PyMem_Calloc(count + 1, sizeof(bool));
    if (self->watched == NULL || self->hooks == NULL || self->is_partial == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    struct mu_state *state = mu_state_of_object((PyObject *)self);
    if (state == NULL || find_names(self) < 0 || fill_watched(self, parameters, buckets) < 0 ||
        mu_py_gpu_marks_init(&self->marks, self->bucket_count + 1) < 0) {
        return -1;
    }
    return make_hooks(self, state->bucket_hook_type);
}

static PyObject *times_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"", "", NULL};
    PyObject *parameters, *buckets;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!:BucketTimes", names, &PyTuple_Type,
                                     &parameters, &PyTuple_Type, &buckets)) {
        return NULL;
    }
    struct mu_py_bucket_times *self = (struct mu_py_bucket_times *)type->tp_alloc(type, 0);
    if (self != NULL && init_times(self, parameters, buckets) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int times_traverse(PyObject *object, visitproc visit, void *arg) {
    struct mu_py_bucket_times *self = (struct mu_py_bucket_times *)object;
    Py_VISIT(Py_TYPE(object));
    for (Py_ssize_t i = 0; i < self->watched_count; i++) {
        Py_VISIT(self->watched[i].parameter);
        Py_VISIT(self->watched[i].hooks);
    }
    return 0;
}

static int times_clear(PyObject *object) {
    struct mu_py_bucket_times *self = (struct mu_py_bucket_times *)object;
    mu_py_bucket_times_remove(self);
    for (Py_ssize_t i = 0; i < self->watched_count; i++) {
        Py_CLEAR(self->watched[i].parameter);
    }
    self->watched_count = 0;
    return 0;
}

static void times_dealloc(PyObject *object) {
    struct mu_py_bucket_times *self = (struct mu_py_bucket_times *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    times_clear(object);
    for (Py_ssize_t i = 0; self->hooks != NULL && i < self->bucket_count; i++) {
        Py_XDECREF(self->hooks[i]);
    }
    mu_py_gpu_marks_free(&self->marks, live_pool(self));
    PyMem_Free(self->watched);
    PyMem_Free(self->hooks);
    PyMem_Free(self->is_partial);
    Py_XDECREF(self->attribute);
    Py_XDECREF(self->key);
    Py_XDECREF(self->make_mapping);
    type->tp_free(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(install_doc, "install($self, /)\n--\n\n"
                          "Sets the hooks and forgets what was seen. What cannot be hooked is\n"
                          "passed over: the time of its bucket is None.");
PyDoc_STRVAR(remove_doc, "remove($self, /)\n--\n\nTakes the hooks away. Idempotent.");
PyDoc_STRVAR(read_doc, "read($self, /)\n--\n\n"
                       "(began_ns, ended_ns, times): when the hooks were set and taken away,\n"
                       "CLOCK_MONOTONIC, 0 for not yet, and of each bucket the time from the\n"
                       "first to its last gradient in us, or None.");
PyDoc_STRVAR(read_gpu_doc,
             "read_gpu($self, /)\n--\n\n"
             "(times, error_us), once: when the GPU came to the begin of the backward, and to the\n"
             "last gradient of each bucket, us after began_ns on the host's clock, or None, with\n"
             "the bound of their error. ([], 0) where no GPU was measured. None: not yet known.");

MU_LOCKED(times_install)
MU_LOCKED(times_remove)
MU_LOCKED(times_read)
MU_LOCKED(times_read_gpu)

static PyMethodDef times_methods[] = {
    {"install", times_install_locked, METH_NOARGS, install_doc},
    {"remove", times_remove_locked, METH_NOARGS, remove_doc},
    {"read", times_read_locked, METH_NOARGS, read_doc},
    {"read_gpu", times_read_gpu_locked, METH_NOARGS, read_gpu_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(times_doc, "BucketTimes(parameters, buckets, /)\n--\n\n"
                        "When the gradients of each bucket are ready in a backward.\n\n"
                        "parameters: a tuple of tensors that get gradients; they are kept alive.\n"
                        "buckets: a tuple with the number of each one's bucket.");

static PyType_Slot times_slots[] = {
    {Py_tp_doc, (void *)times_doc},
    {Py_tp_new, times_new},
    {Py_tp_dealloc, times_dealloc},
    {Py_tp_traverse, times_traverse},
    {Py_tp_clear, times_clear},
    {Py_tp_methods, times_methods},
    {0, NULL},
};

static PyType_Spec times_spec = {
    .name = "my_utils._core.BucketTimes",
    .basicsize = sizeof(struct mu_py_bucket_times),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = times_slots,
};

int mu_py_bucket_times_exec(PyObject *module) {
    struct mu_state *state = mu_state_of(module);
    state->bucket_hook_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &hook_spec, NULL);
    if (state->bucket_hook_type == NULL) {
        return -1;
    }
    return mu_py_add_type(module, &times_spec, &state->bucket_times_type);
}
