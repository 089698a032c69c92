/* The Timer type: the C base of MyTimer. */
#include "stages/py_timer.h"

#include <string.h>

#include "core/heap_types.h"
#include "core/warnings.h"
#include "stages/frame_order.h"
#include "stages/py_caller.h"
#include "stages/py_handles.h"

static const int64_t step_drain_wait_ns = 100000000;

/* --- misuse ------------------------------------------------------------------------------- */

enum { SHOWN_NAME_BYTES = 100 };

/* `name` cut for a message, at the start of a character. */
static int shown_length(const struct mu_py_name *name) {
    return (int)mu_utf8_cut(name->bytes, (size_t)name->length, SHOWN_NAME_BYTES);
}

/* Through the logger that set_logger gave this timer, if it gave one. */
static void warn(struct mu_py_timer *self, const char *kind, const char *message) {
    PyObject *error_type, *error, *traceback;
    PyErr_Fetch(&error_type, &error, &traceback);
    PyObject *logger = PyObject_GetAttrString((PyObject *)self, "_logger");
    PyErr_Restore(error_type, error, traceback); /* of a Timer that has none, not of the lookup */
    mu_py_warn_by(self->state, logger == Py_None ? NULL : logger, kind, message);
    Py_XDECREF(logger);
}

/* A stop without a matching start. A strict timer raises; any other warns and counts. */
static int misuse(struct mu_py_timer *self, const struct mu_py_name *name, const char *kind,
                  const char *what) {
    char message[320];
    const char *rest = self->strict ? "" : "; further ones are only counted";
    PyOS_snprintf(message, sizeof(message), "stop('%.*s') %s%s", shown_length(name), name->bytes,
                  what, rest);
    if (self->strict) {
        PyErr_SetString(PyExc_RuntimeError, message);
        return -1;
    }
    warn(self, kind, message);
    return 0;
}

/* Out of line, so that the code of a stop without misuse is short. */
#define SELDOM __attribute__((noinline, cold)) static

SELDOM int not_open(struct mu_py_timer *self, const struct mu_py_name *name) {
    atomic_fetch_add(&self->unmatched_stops, 1);
    return misuse(self, name, "unmatched_stop",
                  "found no stage of that name running on this thread, and did nothing");
}

SELDOM int closed_inner(struct mu_py_timer *self, const struct mu_py_name *name) {
    atomic_fetch_add(&self->closed_stages, 1);
    return misuse(self, name, "closed_stage",
                  "closed stages inside it that were still open, marked closed=out_of_order");
}

static inline int stopped(struct mu_py_timer *self, const struct mu_py_name *name,
                          enum mu_stop_result result) {
    if (__builtin_expect(result == MU_STOP_OK, 1)) {
        return 0;
    }
    return result == MU_STOP_NOT_OPEN ? not_open(self, name) : closed_inner(self, name);
}

static int not_initialised(void) {
    PyErr_SetString(PyExc_RuntimeError, "the timer's __init__ was not called");
    return -1;
}

/* --- the hot path ------------------------------------------------------------------------- */

int mu_py_timer_start(struct mu_py_timer *self, const struct mu_py_name *name,
                      const struct mu_py_appearance *appearance) {
    if (__builtin_expect(self->timer.recorder == NULL, 0)) {
        return not_initialised();
    }
    struct mu_thread_buffer *buffer = mu_py_thread_buffer(&self->timer);
    if (__builtin_expect(buffer == NULL, 0)) {
        mu_recorder_count_unplaced(self->timer.recorder);
        return 0;
    }
    if (__builtin_expect(self->gpu_events.any, 0)) {
        return mu_py_gpu_events_start(&self->gpu_events, buffer, name, appearance);
    }
    mu_py_recording_begin(buffer);
    mu_thread_buffer_start(buffer, name->bytes, (size_t)name->length, name->hash);
    mu_py_recording_end(buffer);
    return 0;
}

int mu_py_timer_stop(struct mu_py_timer *self, const struct mu_py_name *name) {
    if (__builtin_expect(self->timer.recorder == NULL, 0)) {
        return not_initialised();
    }
    struct mu_thread_buffer *buffer = mu_py_thread_buffer(&self->timer);
    if (__builtin_expect(buffer == NULL, 0)) {
        return 0;
    }
    mu_py_recording_begin(buffer);
    enum mu_stop_result result =
        mu_thread_buffer_stop(buffer, name->bytes, (size_t)name->length, name->hash);
    mu_py_recording_end(buffer);
    return stopped(self, name, result);
}

/* The start of a handle's stage; the caller records. 0, or -1 with an exception. */
static int start_owned(struct mu_py_timer *self, struct mu_thread_buffer *buffer,
                       const struct mu_py_stage *handle) {
    const struct mu_py_name *name = &handle->name;
    if (__builtin_expect(!self->gpu_events.any, 1)) {
        mu_thread_buffer_start(buffer, name->bytes, (size_t)name->length, name->hash);
        return 0;
    }
    mu_py_recording_end(buffer); /* the pattern cuda_stages is Python's */
    int rc = mu_py_gpu_events_start(&self->gpu_events, buffer, name,
                                    handle->has_appearance ? &handle->appearance : NULL);
    mu_py_recording_begin(buffer);
    if (rc < 0) {
        mu_frames_take_branch(buffer);
    }
    return rc;
}

int mu_py_timer_enter(struct mu_py_timer *self, struct mu_py_stage *handle) {
    if (__builtin_expect(self->timer.recorder == NULL, 0)) {
        return not_initialised();
    }
    struct mu_thread_buffer *buffer = mu_py_thread_buffer(&self->timer);
    if (__builtin_expect(buffer == NULL, 0)) {
        mu_recorder_count_unplaced(self->timer.recorder);
        return 0;
    }
    const struct mu_stage_owner owner = mu_py_owner(handle);
    mu_py_recording_begin(buffer);
    if (__builtin_expect(!mu_frames_parent_is_top(buffer, &owner), 0)) {
        mu_frames_choose_parent(buffer, &owner, mu_py_frame_calls);
    }
    uint32_t depth = buffer->depth;
    int rc = start_owned(self, buffer, handle);
    if (__builtin_expect(rc == 0 && buffer->depth > depth, 1)) {
        mu_frames_own(buffer, &owner);
    }
    mu_py_recording_end(buffer);
    return rc;
}

int mu_py_timer_leave(struct mu_py_timer *self, struct mu_py_stage *handle) {
    if (__builtin_expect(self->timer.recorder == NULL, 0)) {
        return not_initialised();
    }
    struct mu_thread_buffer *buffer = mu_py_thread_buffer(&self->timer);
    if (__builtin_expect(buffer == NULL, 0)) {
        return 0;
    }
    const struct mu_stage_owner owner = mu_py_owner(handle);
    mu_py_recording_begin(buffer);
    enum mu_stop_result result = mu_thread_buffer_stop_owned(buffer, &owner);
    mu_py_recording_end(buffer);
    return stopped(self, &handle->name, result);
}

enum start_argument { START_STAGE, START_COLOR, START_DOMAIN, START_ARGUMENTS };

static const char *const start_names[] = {"stage_name", "color", "domain_name", NULL};
static const struct mu_py_signature start_signature = {"start", start_names, 1, START_ARGUMENTS};

static PyObject *timer_start(PyObject *self, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords) {
    PyObject *values[START_ARGUMENTS];
    struct mu_py_name name;
    struct mu_py_appearance appearance;
    const struct mu_py_appearance *given = NULL;
    PyObject *stage = count > 0 ? args[0] : NULL;
    if (__builtin_expect(count != 1 || keywords != NULL, 0)) {
        if (mu_py_bind(&start_signature, args, count, keywords, values) < 0 ||
            mu_py_appearance_of(values[START_COLOR], values[START_DOMAIN], &appearance) < 0) {
            return NULL;
        }
        stage = values[START_STAGE];
        given = &appearance;
    }
    if (mu_py_name_of(stage, "stage_name", &name) < 0 ||
        mu_py_timer_start((struct mu_py_timer *)self, &name, given) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *timer_stop(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords) {
    static const char *const names[] = {"stage_name", NULL};
    static const struct mu_py_signature signature = {"stop", names, 1, 1};
    struct mu_py_name name;
    PyObject *stage = count > 0 ? args[0] : NULL;
    if (__builtin_expect(count != 1 || keywords != NULL, 0)) {
        if (mu_py_bind(&signature, args, count, keywords, &stage) < 0) {
            return NULL;
        }
    }
    if (mu_py_name_of(stage, "stage_name", &name) < 0 ||
        mu_py_timer_stop((struct mu_py_timer *)self, &name) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *timer_time_stage(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                  PyObject *keywords) {
    static const struct mu_py_signature signature = {"time_stage", start_names, 1, START_ARGUMENTS};
    struct mu_py_timer *self = (struct mu_py_timer *)object;
    PyObject *values[START_ARGUMENTS];
    PyObject *stage_name = count > 0 ? args[0] : NULL;
    if (__builtin_expect(count != 1 || keywords != NULL, 0)) {
        struct mu_py_appearance appearance;
        if (mu_py_bind(&signature, args, count, keywords, values) < 0 ||
            mu_py_appearance_of(values[START_COLOR], values[START_DOMAIN], &appearance) < 0) {
            return NULL;
        }
        stage_name = values[START_STAGE];
        if (mu_nvtx_attached(self->gpu_events.nvtx)) {
            return mu_py_stage_new(self, stage_name, &appearance, values[START_DOMAIN]);
        }
    }
    if (__builtin_expect(self->timer.recorder == NULL, 0)) {
        not_initialised();
        return NULL;
    }
    struct mu_py_handles *handles = mu_py_handles_of(self);
    if (__builtin_expect(handles == NULL, 0)) {
        return PyErr_Occurred() ? NULL : mu_py_stage_new(self, stage_name, NULL, NULL);
    }
    const struct mu_recent_stage *recent = mu_py_handles_recent(handles, stage_name);
    if (__builtin_expect(recent->name == stage_name && mu_py_count_of(&recent->stage->entered) == 0,
                         1)) {
        return Py_NewRef(recent->stage);
    }
    return mu_py_handles_get(handles, self, stage_name);
}

/* --- steps -------------------------------------------------------------------------------- */

/* Between two steps, requests of other processes are read, and windows open and close. */
static int call_step_hook(struct mu_py_timer *timer, int64_t step) {
    PyObject *hook = mu_py_shared_get(&timer->state->lock, &timer->state->step_hook);
    if (hook == NULL) {
        return 0;
    }
    PyObject *number = PyLong_FromLongLong(step);
    PyObject *result =
        number == NULL ? NULL : PyObject_CallFunctionObjArgs(hook, (PyObject *)timer, number, NULL);
    Py_DECREF(hook);
    Py_XDECREF(number);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

int mu_py_timer_set_step(struct mu_py_timer *self, int64_t step) {
    atomic_store_explicit(&self->timer.step, step, memory_order_relaxed);
    /* Events that name no step belong to the one that any timer set last. */
    atomic_store_explicit(&self->state->event_timer->step, step, memory_order_relaxed);
    struct mu_thread_buffer *buffer = mu_py_thread_buffer(&self->timer);
    uint32_t closed = 0;
    if (buffer != NULL) {
        mu_py_recording_begin(buffer);
        closed = mu_thread_buffer_set_step(buffer);
        mu_py_recording_end(buffer);
    }
    if (closed > 0) {
        atomic_fetch_add(&self->closed_stages, closed);
        warn(self, "stage_left_open",
             "set_step() found stages that an earlier step left open (an exception?); they were "
             "closed, marked closed=step; further ones are only counted");
    }
    bool calls = mu_control_calls(&self->timer.recorder->control);
    return __builtin_expect(calls, 0) ? call_step_hook(self, step) : 0;
}

static PyObject *timer_set_step(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                PyObject *keywords) {
    static const char *const names[] = {"iteration", NULL};
    static const struct mu_py_signature signature = {"set_step", names, 1, 1};
    struct mu_py_timer *self = (struct mu_py_timer *)object;
    PyObject *value;
    int64_t step;
    if (mu_py_bind(&signature, args, count, keywords, &value) < 0 ||
        mu_py_int64(value, "iteration", &step) < 0 ||
        (self->timer.recorder == NULL && not_initialised() < 0)) {
        return NULL;
    }
    if (mu_py_timer_set_step(self, step) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *timer_step(PyObject *object, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords) {
    static const char *const names[] = {"wait", NULL};
    static const struct mu_py_signature signature = {"step", names, 0, 1};
    struct mu_py_timer *self = (struct mu_py_timer *)object;
    PyObject *value;
    int wait = 1;
    if (mu_py_bind(&signature, args, count, keywords, &value) < 0 ||
        (value != NULL && mu_py_bool(value, "wait", &wait) < 0) ||
        (self->timer.recorder == NULL && not_initialised() < 0)) {
        return NULL;
    }
    struct mu_recorder *recorder = self->timer.recorder;
    mu_recorder_check_fork(recorder); /* a child has no pool */
    mu_py_recorder_try_again(self->state, recorder);
    struct mu_cuda_pool *gpu = self->gpu_events.use_cuda ? recorder->gpu : NULL;
    Py_BEGIN_ALLOW_THREADS;
    if (wait) {
        mu_cuda_wait(gpu);
    }
    mu_cuda_pool_step(gpu);
    mu_recorder_drain(recorder, wait ? step_drain_wait_ns : 0);
    Py_END_ALLOW_THREADS;
    mu_py_report_troubles(self->state);
    Py_RETURN_NONE;
}

/* --- figures ------------------------------------------------------------------------------ */

static PyObject *path_names(struct mu_recorder *recorder, uint16_t path) {
    PyObject *names = PyList_New(0);
    const char *name;
    size_t length;
    uint16_t parent;
    while (names != NULL && mu_recorder_path(recorder, path, &name, &length, &parent)) {
        PyObject *text = name == NULL ? PyUnicode_FromString("(other)")
                                      : PyUnicode_DecodeUTF8(name, (Py_ssize_t)length, "replace");
        if (mu_py_append_new(names, text) < 0) {
            Py_CLEAR(names);
        }
        path = parent;
    }
    if (names == NULL || PyList_Reverse(names) < 0) {
        Py_XDECREF(names);
        return NULL;
    }
    PyObject *tuple = PyList_AsTuple(names);
    Py_DECREF(names);
    return tuple;
}

static PyObject *figures(struct mu_recorder *recorder, uint16_t path,
                         const struct mu_aggregate *aggregate) {
    return Py_BuildValue("(NKKKKdddd)", path_names(recorder, path),
                         (unsigned long long)atomic_load(&aggregate->count),
                         (unsigned long long)atomic_load(&aggregate->sum),
                         (unsigned long long)atomic_load(&aggregate->min),
                         (unsigned long long)atomic_load(&aggregate->max),
                         mu_aggregate_std(aggregate), mu_aggregate_quantile(aggregate, 0.5),
                         mu_aggregate_quantile(aggregate, 0.9),
                         mu_aggregate_quantile(aggregate, 0.99));
}

/* Adds up the figures of a path. */
typedef void (*path_sum)(struct mu_timer *timer, uint16_t path, struct mu_aggregate *into);

static int append_figures(struct mu_py_timer *self, path_sum add_up, uint16_t path,
                          PyObject *list) {
    struct mu_aggregate *sum = PyMem_Malloc(sizeof(*sum));
    if (sum == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    mu_aggregate_init(sum);
    add_up(&self->timer, path, sum);
    int rc = 0;
    if (atomic_load(&sum->count) > 0) {
        rc = mu_py_append_new(list, figures(self->timer.recorder, path, sum));
    }
    PyMem_Free(sum);
    return rc;
}

static int append_cpu_figures(struct mu_py_timer *self, uint16_t path, PyObject *list) {
    return append_figures(self, mu_timer_aggregate, path, list);
}

static int append_gpu_figures(struct mu_py_timer *self, uint16_t path, PyObject *list) {
    return append_figures(self, mu_timer_gpu_aggregate, path, list);
}

static int append_totals(struct mu_py_timer *self, uint16_t path, PyObject *list) {
    struct mu_totals totals;
    mu_timer_totals(&self->timer, path, &totals);
    if (totals.count + totals.gpu_count == 0) {
        return 0;
    }
    return mu_py_append_new(list, Py_BuildValue("(NKKKK)", path_names(self->timer.recorder, path),
                                                (unsigned long long)totals.count,
                                                (unsigned long long)totals.sum,
                                                (unsigned long long)totals.gpu_count,
                                                (unsigned long long)totals.gpu_sum));
}

/* Appends the figures of a path; nothing when the path has no times. */
typedef int (*path_append)(struct mu_py_timer *self, uint16_t path, PyObject *list);

static PyObject *list_paths(PyObject *object, path_append append) {
    struct mu_py_timer *self = (struct mu_py_timer *)object;
    if (self->timer.recorder == NULL) {
        not_initialised();
        return NULL;
    }
    PyObject *list = PyList_New(0);
    uint32_t count = mu_recorder_path_count(self->timer.recorder);
    for (uint32_t path = 1; list != NULL && path < count; path++) {
        if (append(self, (uint16_t)path, list) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *timer_aggregates(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    return list_paths(object, append_cpu_figures);
}

static PyObject *timer_cuda_aggregates(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    return list_paths(object, append_gpu_figures);
}

static PyObject *timer_totals(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    return list_paths(object, append_totals);
}

static PyObject *timer_register_stage(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                      PyObject *keywords) {
    enum { CATEGORY = START_ARGUMENTS, ARGUMENTS };
    static const char *const names[] = {"stage_name", "color", "domain_name", "category", NULL};
    static const struct mu_py_signature signature = {"register_stage", names, 1, ARGUMENTS};
    struct mu_py_timer *self = (struct mu_py_timer *)object;
    PyObject *values[ARGUMENTS];
    struct mu_py_name name;
    struct mu_py_appearance appearance;
    if (mu_py_bind(&signature, args, count, keywords, values) < 0 ||
        mu_py_name_of(values[START_STAGE], "stage_name", &name) < 0 ||
        mu_py_appearance_of(values[START_COLOR], values[START_DOMAIN], &appearance) < 0) {
        return NULL;
    }
    if (values[CATEGORY] != NULL && values[CATEGORY] != Py_None) {
        PyErr_SetString(PyExc_TypeError, "register_stage() takes only category=None: the category "
                                         "of a timer's ranges is its tag");
        return NULL;
    }
    mu_py_gpu_events_register(&self->gpu_events, &name, &appearance);
    Py_RETURN_NONE;
}

/* --- the type ----------------------------------------------------------------------------- */

static PyObject *timer_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
                           PyObject *Py_UNUSED(kwargs)) {
    struct mu_py_timer *self = (struct mu_py_timer *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->state = mu_state_of_object((PyObject *)self);
        if (self->state == NULL) {
            Py_CLEAR(self);
        }
    }
    return (PyObject *)self;
}

static int init_locked(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"tag", "strict", "use_cuda", "cuda_stages", NULL};
    struct mu_py_timer *self = (struct mu_py_timer *)object;
    const char *tag = "";
    int strict = 0;
    int use_cuda = 0;
    PyObject *cuda_stages = NULL;
    struct mu_error err = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|s$ppO:Timer", names, &tag, &strict, &use_cuda,
                                     &cuda_stages)) {
        return -1;
    }
    if (self->timer.recorder != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "__init__ was called twice");
        return -1;
    }
    struct mu_recorder *recorder = mu_py_recorder(self->state);
    if (recorder == NULL) {
        return -1;
    }
    if (mu_py_place_timer(&self->timer, recorder, tag, &err) != MU_OK) {
        self->timer.recorder = NULL;
        mu_py_raise(&err);
        return -1;
    }
    if (!mu_timer_has_place(&self->timer)) {
        mu_py_report_troubles(self->state);
    }
    self->strict = strict != 0;
    return mu_py_gpu_events_init(&self->gpu_events, self->state, self->timer.tag, use_cuda,
                                 cuda_stages);
}

static int timer_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    int rc;
    MU_BEGIN_SECTION(object);
    rc = init_locked(object, args, kwargs);
    MU_END_SECTION();
    return rc;
}

static int timer_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((struct mu_py_timer *)object)->gpu_events.search);
    return mu_py_handles_traverse((struct mu_py_timer *)object, visit, arg);
}

static int timer_clear(PyObject *object) {
    mu_py_handles_clear((struct mu_py_timer *)object);
    return 0;
}

static void timer_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    timer_clear(object);
    mu_timer_release(&((struct mu_py_timer *)object)->timer);
    mu_py_handles_free((struct mu_py_timer *)object);
    mu_py_gpu_events_clear(&((struct mu_py_timer *)object)->gpu_events);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *get_tag(PyObject *object, void *Py_UNUSED(closure)) {
    return PyUnicode_FromString(((struct mu_py_timer *)object)->timer.tag);
}

static PyObject *get_strict(PyObject *object, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((struct mu_py_timer *)object)->strict);
}

static PyObject *get_use_cuda(PyObject *object, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((struct mu_py_timer *)object)->gpu_events.use_cuda);
}

static PyObject *get_current_step(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(atomic_load(&((struct mu_py_timer *)object)->timer.step));
}

static PyObject *get_depth(PyObject *object, void *Py_UNUSED(closure)) {
    struct mu_py_timer *self = (struct mu_py_timer *)object;
    struct mu_thread_buffer *buffer =
        self->timer.recorder == NULL ? NULL : mu_py_thread_buffer(&self->timer);
    return PyLong_FromUnsignedLong(buffer == NULL ? 0 : buffer->depth);
}

static PyObject *get_unmatched_stops(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLongLong(((struct mu_py_timer *)object)->unmatched_stops);
}

static PyObject *get_closed_stages(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLongLong(((struct mu_py_timer *)object)->closed_stages);
}

static PyGetSetDef timer_getset[] = {
    {"tag", get_tag, NULL, NULL, NULL},
    {"strict", get_strict, NULL, NULL, NULL},
    {"use_cuda", get_use_cuda, NULL, NULL, NULL},
    {"current_step", get_current_step, NULL, NULL, NULL},
    {"depth", get_depth, NULL, NULL, NULL},
    {"unmatched_stops", get_unmatched_stops, NULL, NULL, NULL},
    {"closed_stages", get_closed_stages, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(start_doc,
             "start($self, stage_name, color='blue', domain_name=None)\n--\n\n"
             "Begin a stage on the calling thread.\n\n"
             "Stages nest; `stop` with the same name ends it. Costs about half of two\n"
             "time.perf_counter() calls together with its stop. Thread-safe: every thread has a\n"
             "stack of its own. TypeError when stage_name is not a str.");
PyDoc_STRVAR(
    stop_doc,
    "stop($self, stage_name)\n--\n\n"
    "End the innermost stage of that name on the calling thread.\n\n"
    "Stages of `start` inside it that are still open are closed and marked\n"
    "closed=out_of_order. Stages of `time_stage` stay open: their handles end them, and stop\n"
    "ends one only where no stage of `start` has the name. Without a stage of that name\n"
    "nothing happens but one warning and a count; with strict=True both raise RuntimeError.");
PyDoc_STRVAR(
    time_stage_doc,
    "time_stage($self, stage_name, color='blue', domain_name=None)\n--\n\n"
    "The stage as a context manager and decorator.\n\n"
    "The same object comes back for the same name, unless a stage of it is open; where there\n"
    "is no GIL, each thread has its own. It ends the stage that it began, also where tasks or\n"
    "greenlets take turns on the thread. `async with` makes an asynchronous event instead,\n"
    "which leaves the thread's stack alone.");
PyDoc_STRVAR(
    set_step_doc,
    "set_step($self, iteration)\n--\n\n"
    "Name the step that stages started from now on belong to (an int).\n\n"
    "Stages of `start` of the calling thread that the step before left open, by an exception\n"
    "for instance, are closed and marked closed=step.");
PyDoc_STRVAR(
    step_doc,
    "step($self, wait=True)\n--\n\n"
    "Write what was recorded to the profile CSV.\n\n"
    "With use_cuda it waits for the GPU's last timed stage, never for the device. Releases\n"
    "the GIL. With wait=False nothing is waited for: neither GPU times nor a drain that\n"
    "is under way.");
PyDoc_STRVAR(synchronize_and_log_doc, "synchronize_and_log($self, wait=True)\n--\n\n"
                                      "Another name of `step`.");
PyDoc_STRVAR(
    aggregates_doc,
    "aggregates($self)\n--\n\n"
    "Figures of the whole run, a tuple for each path of stages: (names from the outermost\n"
    "on, count, sum, min, max, std, p50, p90, p99), times in ns. Percentiles are within\n"
    "1 %.");

PyDoc_STRVAR(cuda_aggregates_doc,
             "cuda_aggregates($self)\n--\n\n"
             "The same figures of GPU times: of the stages whose times are written already.");
PyDoc_STRVAR(totals_doc,
             "totals($self)\n--\n\n"
             "(names from the outermost on, count, sum, GPU count, GPU sum) of each path of the\n"
             "whole run, times in ns: what `aggregates` knows in a tenth of the time.");
PyDoc_STRVAR(register_stage_doc,
             "register_stage($self, stage_name, color='blue', domain_name=None, category=None)\n"
             "--\n\n"
             "Make a stage's NVTX range known before its first start.\n\n"
             "The first start of a stage registers its name with the tool, which takes some\n"
             "microseconds; this takes them out of the run. Does nothing when no tool listens.\n"
             "ValueError or TypeError for a color or domain_name that is none. The category is\n"
             "the timer's tag; another one than None raises TypeError.");

#define FAST(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL | METH_KEYWORDS

static PyMethodDef hot_methods[] = {
    {"start", FAST(timer_start), start_doc},
    {"stop", FAST(timer_stop), stop_doc},
    {"time_stage", FAST(timer_time_stage), time_stage_doc},
    {"set_step", FAST(timer_set_step), set_step_doc},
    {"step", FAST(timer_step), step_doc},
    {"synchronize_and_log", FAST(timer_step), synchronize_and_log_doc},
    {NULL, NULL, 0, NULL},
};

static PyObject *timer_init_subclass(PyObject *type, PyObject *Py_UNUSED(ignored)) {
    if (mu_py_own_descriptors((PyTypeObject *)type, hot_methods) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Methods that are not hot. Subclasses inherit them as they are. */
static PyMethodDef inherited_methods[] = {
    {"register_stage", FAST(timer_register_stage), register_stage_doc},
    {"aggregates", timer_aggregates, METH_NOARGS, aggregates_doc},
    {"cuda_aggregates", timer_cuda_aggregates, METH_NOARGS, cuda_aggregates_doc},
    {"totals", timer_totals, METH_NOARGS, totals_doc},
    {"__init_subclass__", timer_init_subclass, METH_NOARGS | METH_CLASS, NULL},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(timer_doc, "Timer(tag='', *, strict=False, use_cuda=False, cuda_stages=None)\n--\n\n"
                        "Records the stages of a run; the base of my_utils.utils.MyTimer.");

static PyType_Slot timer_slots[] = {
    {Py_tp_doc, (void *)timer_doc},
    {Py_tp_new, timer_new},
    {Py_tp_init, timer_init},
    {Py_tp_dealloc, timer_dealloc},
    {Py_tp_traverse, timer_traverse},
    {Py_tp_clear, timer_clear},
    {Py_tp_methods, inherited_methods},
    {Py_tp_getset, timer_getset},
    {0, NULL},
};

static PyType_Spec timer_spec = {
    .name = "my_utils._core.Timer",
    .basicsize = sizeof(struct mu_py_timer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = timer_slots,
};

int mu_py_timer_exec(PyObject *module) {
    struct mu_state *state = mu_state_of(module);
    if (mu_py_add_type(module, &timer_spec, &state->timer_type) < 0) {
        return -1;
    }
    return mu_py_own_descriptors(state->timer_type, hot_methods);
}
