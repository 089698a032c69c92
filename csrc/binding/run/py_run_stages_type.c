/* The RunStages type: its methods and attributes. */
#include "run/py_run_stages.h"

#include <limits.h>
#include <pythread.h>
#include <string.h>

#include "base/clock.h"
#include "core/free_threading.h"
#include "core/heap_types.h"
#include "cuda/py_cuda.h"
#include "stages/corrections.h"

static const char *const stage_names[MU_RUN_STAGES] = {
    "input",     "h2d",        "forward",    "loss", "backward",
    "optimizer", "collective", "checkpoint", "eval", "restore"};

/* --- calls and steps ---------------------------------------------------------------------- */

static int stage_of(PyObject *value, enum mu_run_stage *out) {
    int64_t number;
    if (mu_py_int64_in(value, "stage", 0, MU_RUN_STAGES - 1, &number) < 0) {
        return -1;
    }
    *out = (enum mu_run_stage)number;
    return 0;
}

static PyObject *run_begin(PyObject *self, PyObject *value) {
    enum mu_run_stage stage;
    if (stage_of(value, &stage) < 0) {
        return NULL;
    }
    return PyBool_FromLong(mu_py_run_begin((struct mu_py_run_stages *)self, stage, false));
}

static PyObject *run_begin_forward(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    return PyBool_FromLong(mu_py_run_begin((struct mu_py_run_stages *)self, MU_RUN_FORWARD, false));
}

static PyObject *run_end(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    mu_py_run_end((struct mu_py_run_stages *)self);
    Py_RETURN_NONE;
}

static PyObject *run_forget(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    mu_py_run_forget((struct mu_py_run_stages *)self);
    Py_RETURN_NONE;
}

static PyObject *run_begin_step(PyObject *self, PyObject *optimizer) {
    mu_py_run_begin_step((struct mu_py_run_stages *)self, optimizer);
    Py_RETURN_NONE;
}

static PyObject *run_end_step(PyObject *self, PyObject *optimizer) {
    return PyBool_FromLong(mu_py_run_end_step((struct mu_py_run_stages *)self, optimizer));
}

/* --- the leader --------------------------------------------------------------------------- */

static PyObject *run_follow(PyObject *object, PyObject *args) {
    struct mu_py_run_stages *self = (struct mu_py_run_stages *)object;
    unsigned long long optimizer;
    long long number, steps, ns;
    if (!PyArg_ParseTuple(args, "KLLL:follow", &optimizer, &number, &steps, &ns)) {
        return NULL;
    }
    struct mu_thread_buffer *buffer =
        self->timer == NULL ? NULL : mu_py_thread_buffer(&self->timer->timer);
    self->leader = (struct mu_py_run_leader){
        .optimizer = (const void *)(uintptr_t)optimizer,
        .number = number,
        .ended = buffer == NULL ? 0 : buffer->head,
        .forwards = self->counts[MU_RUN_FORWARD],
        .calls_at_ns = mu_clock_monotonic_ns() + ns,
        .calls_in = steps,
        .stepped = self->leader.stepped,
    };
    Py_RETURN_NONE;
}

static PyObject *run_unfollow(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct mu_py_run_leader *leader = &((struct mu_py_run_stages *)object)->leader;
    if (leader->optimizer == NULL) {
        Py_RETURN_NONE;
    }
    leader->optimizer = NULL;
    return Py_BuildValue("(LK)", (long long)leader->number, (unsigned long long)leader->ended);
}

/* --- batches ------------------------------------------------------------------------------ */

static PyObject *run_know_tensors(PyObject *object, PyObject *args) {
    struct mu_py_batches *batches = &((struct mu_py_run_stages *)object)->batches;
    PyObject *type, *first, *second;
    if (!PyArg_ParseTuple(args, "O!OO:know_tensors", &PyType_Type, &type, &first, &second)) {
        return NULL;
    }
    if (mu_py_batches_know(batches, type, first, second) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *run_add_batch(PyObject *self, PyObject *batch) {
    return PyBool_FromLong(mu_py_batches_add(&((struct mu_py_run_stages *)self)->batches, batch));
}

static PyObject *run_add_samples(PyObject *self, PyObject *args) {
    long long samples, tokens;
    if (!PyArg_ParseTuple(args, "LL:add_samples", &samples, &tokens)) {
        return NULL;
    }
    mu_py_batches_put(&((struct mu_py_run_stages *)self)->batches,
                      (struct mu_py_batch_size){samples, tokens});
    Py_RETURN_NONE;
}

static PyObject *run_step_batches(PyObject *object, PyObject *args) {
    struct mu_py_run_stages *self = (struct mu_py_run_stages *)object;
    int begins;
    long long iteration;
    if (!PyArg_ParseTuple(args, "pL:step_batches", &begins, &iteration)) {
        return NULL;
    }
    mu_py_batches_step(&self->batches, mu_py_run_event_buffer(self), begins != 0, iteration);
    Py_RETURN_NONE;
}

static PyObject *run_write_batches(PyObject *object, PyObject *iteration) {
    struct mu_py_run_stages *self = (struct mu_py_run_stages *)object;
    int64_t number;
    if (mu_py_int64(iteration, "iteration", &number) < 0) {
        return NULL;
    }
    mu_py_batches_write(&self->batches, mu_py_run_event_buffer(self), number);
    Py_RETURN_NONE;
}

static PyObject *run_forget_batches(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct mu_py_batches *batches = &((struct mu_py_run_stages *)object)->batches;
    batches->since_step = batches->newest = batches->iteration = (struct mu_py_batch_size){0, 0};
    Py_RETURN_NONE;
}

static PyObject *run_forget_newest_batch(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    ((struct mu_py_run_stages *)object)->batches.newest = (struct mu_py_batch_size){0, 0};
    Py_RETURN_NONE;
}

/* --- the host ----------------------------------------------------------------------------- */

/* With a GIL collections on other threads are left out: the training waits for those only if they
 * hold it when it wants it. Without one all threads stand still meanwhile. */
static PyObject *run_collected(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    struct mu_py_run_stages *self = (struct mu_py_run_stages *)object;
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "collected() takes phase and info, not %zd arguments", count);
        return NULL;
    }
    bool counts = self->on && (MU_FREE_THREADED || self->thread == PyThread_get_thread_ident());
    if (counts && mu_py_host_costs_collect(&self->host, args[0], args[1]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *run_end_host(PyObject *object, PyObject *iteration) {
    int64_t number;
    if (mu_py_int64(iteration, "iteration", &number) < 0) {
        return NULL;
    }
    mu_py_host_costs_end(&((struct mu_py_run_stages *)object)->host, number);
    Py_RETURN_NONE;
}

static PyObject *run_forget_host(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    mu_py_host_costs_forget(&((struct mu_py_run_stages *)object)->host);
    Py_RETURN_NONE;
}

static PyObject *run_sample_host(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct mu_py_run_stages *self = (struct mu_py_run_stages *)object;
    return PyBool_FromLong(mu_py_host_samples_switch_on(&self->host.samples));
}

static PyObject *run_watch_workers(PyObject *object, PyObject *list) {
    struct mu_py_run_stages *self = (struct mu_py_run_stages *)object;
    pid_t processes[MU_SAMPLER_WORKERS_MAX];
    Py_ssize_t count = PyList_Check(list) ? PyList_GET_SIZE(list) : -1;
    if (count < 0) {
        return PyErr_Format(PyExc_TypeError, "processes must be a list, not %.100s",
                            Py_TYPE(list)->tp_name);
    }
    count = count < MU_SAMPLER_WORKERS_MAX ? count : MU_SAMPLER_WORKERS_MAX;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t number;
        PyObject *item = mu_py_list_item(list, i);
        int rc = item == NULL ? -1 : mu_py_int64_in(item, "processes", 1, INT_MAX, &number);
        Py_XDECREF(item);
        if (rc < 0) {
            return NULL;
        }
        processes[i] = (pid_t)number;
    }
    mu_py_host_samples_set_workers(&self->host.samples, processes, (int)count);
    Py_RETURN_NONE;
}

static PyObject *run_watch_gpu(PyObject *object, PyObject *uuid) {
    const char *text = PyUnicode_Check(uuid) ? PyUnicode_AsUTF8(uuid) : NULL;
    if (text == NULL) {
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_TypeError, "uuid must be a str, not %.100s",
                                               Py_TYPE(uuid)->tp_name);
    }
    mu_py_gpu_health_watch(&((struct mu_py_run_stages *)object)->host.gpu, text);
    Py_RETURN_NONE;
}

/* --- records ------------------------------------------------------------------------------ */

static struct mu_thread_buffer *own_buffer(struct mu_py_run_stages *self) {
    bool own = self->timer != NULL && self->thread == PyThread_get_thread_ident();
    return own ? mu_py_thread_buffer(&self->timer->timer) : NULL;
}

static PyObject *run_position(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    struct mu_thread_buffer *buffer = own_buffer((struct mu_py_run_stages *)self);
    return PyLong_FromUnsignedLongLong(buffer == NULL ? 0 : buffer->head);
}

static PyObject *run_change_step(PyObject *self, PyObject *args) {
    unsigned long long from, to, written = 0;
    long long step;
    if (!PyArg_ParseTuple(args, "KKL:change_step", &from, &to, &step)) {
        return NULL;
    }
    struct mu_thread_buffer *buffer = own_buffer((struct mu_py_run_stages *)self);
    if (buffer != NULL) {
        Py_BEGIN_ALLOW_THREADS;
        written = mu_thread_buffer_change_step(buffer, from, to, step);
        Py_END_ALLOW_THREADS;
    }
    return PyLong_FromUnsignedLongLong(written);
}

/* Wakes the drain thread, so that the training thread writes no rows itself. */
static PyObject *run_drain_soon(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct mu_py_run_stages *self = (struct mu_py_run_stages *)object;
    struct mu_state *state = mu_state_of_object(object);
    if (state == NULL) {
        return NULL;
    }
    if (self->timer != NULL) {
        struct mu_recorder *recorder = self->timer->timer.recorder;
        mu_recorder_check_fork(recorder);
        mu_cuda_pool_step(self->timer->gpu_events.use_cuda ? recorder->gpu : NULL);
        recorder->call_drain(recorder);
        mu_py_report_troubles(state);
    }
    Py_RETURN_NONE;
}

static PyObject *run_use_cuda(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    struct mu_py_run_stages *self = (struct mu_py_run_stages *)object;
    struct mu_state *state = mu_state_of_object(object);
    if (state == NULL || (self->timer == NULL && mu_py_run_make_timer(self) < 0) ||
        mu_py_cuda_use(state) < 0) {
        return NULL;
    }
    struct mu_py_gpu_events *events = &self->timer->gpu_events;
    const struct mu_recorder *recorder = state->recorder;
    events->use_cuda = recorder->gpu != NULL;
    events->any = events->any || events->use_cuda;
    return PyBool_FromLong(events->use_cuda);
}

static PyObject *run_counts(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    PyObject *counts = PyDict_New();
    for (int i = 0; counts != NULL && i < MU_RUN_STAGES; i++) {
        uint64_t count = ((struct mu_py_run_stages *)self)->counts[i];
        PyObject *number = PyLong_FromUnsignedLongLong(count);
        if (number == NULL || PyDict_SetItemString(counts, stage_names[i], number) < 0) {
            Py_CLEAR(counts);
        }
        Py_XDECREF(number);
    }
    return counts;
}

/* --- the type ----------------------------------------------------------------------------- */

static PyObject *run_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"make_timer", "gradients", NULL};
    PyObject *factory, *gradients;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:RunStages", names, &factory, &gradients)) {
        return NULL;
    }
    struct mu_py_run_stages *self = (struct mu_py_run_stages *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->make_timer = Py_NewRef(factory);
    self->gradients = Py_NewRef(gradients);
    self->thread = PyThread_get_thread_ident();
    self->open = self->inside = MU_RUN_NONE;
    self->on = true;
    for (int i = 0; i < MU_RUN_STAGES; i++) {
        self->texts[i] = PyUnicode_InternFromString(stage_names[i]);
        if (self->texts[i] == NULL ||
            mu_py_name_of(self->texts[i], "stage_name", &self->names[i]) < 0) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static int run_traverse(PyObject *object, visitproc visit, void *arg) {
    struct mu_py_run_stages *self = (struct mu_py_run_stages *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->make_timer);
    Py_VISIT(self->timer);
    Py_VISIT(self->gradients);
    Py_VISIT(self->on_backward);
    Py_VISIT(self->on_forward);
    Py_VISIT(self->is_interrupt);
    Py_VISIT(self->on_step);
    Py_VISIT(self->buckets);
    return mu_py_batches_traverse(&self->batches, visit, arg);
}

static int run_clear(PyObject *object) {
    struct mu_py_run_stages *self = (struct mu_py_run_stages *)object;
    self->on = false;
    Py_CLEAR(self->make_timer);
    Py_CLEAR(self->timer);
    Py_CLEAR(self->gradients);
    Py_CLEAR(self->on_backward);
    Py_CLEAR(self->on_forward);
    Py_CLEAR(self->is_interrupt);
    Py_CLEAR(self->on_step);
    Py_CLEAR(self->buckets);
    mu_py_batches_clear(&self->batches);
    mu_py_host_costs_clear(&self->host);
    return 0;
}

static void run_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    run_clear(object);
    for (int i = 0; i < MU_RUN_STAGES; i++) {
        Py_CLEAR(((struct mu_py_run_stages *)object)->texts[i]);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *get_callback(PyObject *self, void *offset) {
    PyObject *function = *(PyObject **)((char *)self + (size_t)offset);
    return Py_NewRef(function == NULL ? Py_None : function);
}

static int set_callback(PyObject *self, PyObject *value, void *offset) {
    if (value == NULL || (value != Py_None && !PyCallable_Check(value))) {
        PyErr_SetString(PyExc_TypeError, "a callback must be callable or None");
        return -1;
    }
    PyObject **place = (PyObject **)((char *)self + (size_t)offset);
    Py_XSETREF(*place, value == Py_None ? NULL : Py_NewRef(value));
    return 0;
}

static PyObject *get_on(PyObject *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((struct mu_py_run_stages *)self)->on);
}

static int set_on(PyObject *object, PyObject *value, void *Py_UNUSED(closure)) {
    struct mu_py_run_stages *self = (struct mu_py_run_stages *)object;
    int on;
    if (mu_py_bool(value == NULL ? Py_None : value, "on", &on) < 0) {
        return -1;
    }
    self->on = on != 0;
    mu_py_run_remove_hooks(self);
    self->open = self->inside = MU_RUN_NONE;
    self->optimizer_depth = 0;
    self->loss_goes_on = self->stepped_inside = false;
    memset(&self->leader, 0, sizeof(self->leader));
    return 0;
}

static PyObject *get_buckets(PyObject *object, void *Py_UNUSED(closure)) {
    PyObject *buckets = (PyObject *)((struct mu_py_run_stages *)object)->buckets;
    return Py_NewRef(buckets == NULL ? Py_None : buckets);
}

static int set_buckets(PyObject *object, PyObject *value, void *Py_UNUSED(closure)) {
    struct mu_py_run_stages *self = (struct mu_py_run_stages *)object;
    struct mu_state *state = mu_state_of_object(object);
    if (state == NULL) {
        return -1;
    }
    if (value == NULL ||
        (value != Py_None && !PyObject_TypeCheck(value, state->bucket_times_type))) {
        PyErr_SetString(PyExc_TypeError, "buckets must be a BucketTimes or None");
        return -1;
    }
    mu_py_run_remove_hooks(self);
    value = value == Py_None ? NULL : Py_NewRef(value);
    Py_XSETREF(self->buckets, (struct mu_py_bucket_times *)value);
    return 0;
}

static PyObject *get_timer(PyObject *object, void *Py_UNUSED(closure)) {
    struct mu_py_run_stages *self = (struct mu_py_run_stages *)object;
    if (self->timer == NULL && mu_py_run_make_timer(self) < 0) {
        return NULL;
    }
    return Py_NewRef((PyObject *)self->timer);
}

static PyObject *get_forwards(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLongLong(((struct mu_py_run_stages *)self)->counts[MU_RUN_FORWARD]);
}

static PyObject *get_steps(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLongLong(((struct mu_py_run_stages *)self)->counts[MU_RUN_OPTIMIZER]);
}

static PyObject *get_led(PyObject *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((struct mu_py_run_stages *)self)->leader.stepped);
}

static PyObject *get_following(PyObject *self, void *Py_UNUSED(closure)) {
    const struct mu_py_run_leader *leader = &((struct mu_py_run_stages *)self)->leader;
    if (leader->optimizer == NULL) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLongLong(leader->number);
}

static PyObject *get_forward_missing(PyObject *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((struct mu_py_run_stages *)self)->leader.forward_missing);
}

static PyObject *get_thread(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLong(((struct mu_py_run_stages *)self)->thread);
}

MU_LOCKED(run_begin)
MU_LOCKED(run_begin_forward)
MU_LOCKED(run_end)
MU_LOCKED(run_forget)
MU_LOCKED(run_begin_step)
MU_LOCKED(run_end_step)
MU_LOCKED(run_position)
MU_LOCKED(run_change_step)
MU_LOCKED(run_drain_soon)
MU_LOCKED(run_use_cuda)
MU_LOCKED(run_counts)
MU_LOCKED(run_follow)
MU_LOCKED(run_unfollow)
MU_LOCKED(run_know_tensors)
MU_LOCKED(run_add_batch)
MU_LOCKED(run_add_samples)
MU_LOCKED(run_step_batches)
MU_LOCKED(run_write_batches)
MU_LOCKED(run_forget_batches)
MU_LOCKED(run_forget_newest_batch)
MU_LOCKED(run_end_host)
MU_LOCKED(run_forget_host)
MU_LOCKED(run_sample_host)
MU_LOCKED(run_watch_gpu)
MU_LOCKED(run_watch_workers)
MU_LOCKED_POSITIONAL(run_collected)
MU_LOCKED_GET(get_callback)
MU_LOCKED_GET(get_on)
MU_LOCKED_GET(get_buckets)
MU_LOCKED_GET(get_timer)
MU_LOCKED_GET(get_forwards)
MU_LOCKED_GET(get_steps)
MU_LOCKED_GET(get_led)
MU_LOCKED_GET(get_following)
MU_LOCKED_GET(get_forward_missing)
MU_LOCKED_GET(get_thread)
MU_LOCKED_SET(set_callback)
MU_LOCKED_SET(set_on)
MU_LOCKED_SET(set_buckets)

#define CALLBACK(name)                                                                             \
    {#name, get_callback_locked, set_callback_locked, NULL,                                        \
     (void *)offsetof(struct mu_py_run_stages, name)}

static PyGetSetDef run_getset[] = {
    CALLBACK(on_backward),
    CALLBACK(on_forward),
    CALLBACK(is_interrupt),
    CALLBACK(on_step),
    {"buckets", get_buckets_locked, set_buckets_locked, NULL, NULL},
    {"on", get_on_locked, set_on_locked, NULL, NULL},
    {"timer", get_timer_locked, NULL, NULL, NULL},
    {"forwards", get_forwards_locked, NULL, NULL, NULL},
    {"forward_missing", get_forward_missing_locked, NULL, NULL, NULL},
    {"led", get_led_locked, NULL, NULL, NULL},
    {"following", get_following_locked, NULL, NULL, NULL},
    {"steps", get_steps_locked, NULL, NULL, NULL},
    {"thread", get_thread_locked, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(begin_doc, "begin($self, stage, /)\n--\n\n"
                        "A call begins, by the number of its stage. True when it is a stage: then\n"
                        "`end` or `forget` must follow on the same thread.");
PyDoc_STRVAR(begin_forward_doc, "begin_forward($self, /)\n--\n\n"
                                "`begin` of a forward; without gradients it is an evaluation.");
PyDoc_STRVAR(end_doc, "end($self, /)\n--\n\nThe stage that `begin` began ends.");
PyDoc_STRVAR(forget_doc, "forget($self, /)\n--\n\nThe stage that `begin` began was none.");
PyDoc_STRVAR(begin_step_doc, "begin_step($self, optimizer, /)\n--\n\nAn optimizer steps.");
PyDoc_STRVAR(end_step_doc, "end_step($self, optimizer, /)\n--\n\n"
                           "Its step ends. True when no other step is around it, unless it was\n"
                           "counted as one of the leader that nobody needs to hear of.");
PyDoc_STRVAR(follow_doc, "follow($self, optimizer, number, steps, ns, /)\n--\n\n"
                         "Counts the steps of the optimizer with that id() as iterations from\n"
                         "`number` on. `end_step` is True again after `steps` of them or so many\n"
                         "ns, or when one had no forward; then `led` is True.");
PyDoc_STRVAR(unfollow_doc, "unfollow($self, /)\n--\n\n"
                           "Ends that. The number of the iteration that comes next, and where the\n"
                           "records of the last step end; None where nobody was followed.");
PyDoc_STRVAR(know_tensors_doc, "know_tensors($self, type, first, second, /)\n--\n\n"
                               "The type of tensors, and the two dtypes of tokens.");
PyDoc_STRVAR(add_batch_doc, "add_batch($self, batch, /)\n--\n\n"
                            "A batch was loaded. False where its size is not seen at once.");
PyDoc_STRVAR(add_samples_doc, "add_samples($self, samples, tokens, /)\n--\n\n"
                              "A batch of that size was loaded.");
PyDoc_STRVAR(step_batches_doc,
             "step_batches($self, begins, iteration, /)\n--\n\n"
             "An optimizer has stepped. begins: with what was loaded for it begins\n"
             "`iteration`, and the one before is complete.");
PyDoc_STRVAR(write_batches_doc, "write_batches($self, iteration, /)\n--\n\n"
                                "The row of an iteration, if its batches showed anything.");
PyDoc_STRVAR(forget_batches_doc, "forget_batches($self, /)\n--\n\nNothing was loaded.");
PyDoc_STRVAR(forget_newest_batch_doc,
             "forget_newest_batch($self, /)\n--\n\nThe last batch was not trained with.");
PyDoc_STRVAR(collected_doc, "collected($self, phase, info, /)\n--\n\n"
                            "For gc.callbacks: times the collections on the training thread.");
PyDoc_STRVAR(end_host_doc,
             "end_host($self, iteration, /)\n--\n\n"
             "The iteration has ended: the next stage writes what the host took from\n"
             "it, since the row before.");
PyDoc_STRVAR(forget_host_doc, "forget_host($self, /)\n--\n\nNothing of the host was read yet.");
PyDoc_STRVAR(sample_host_doc,
             "sample_host($self, /)\n--\n\n"
             "What the training thread waits for is sampled from the next stage on. Whether\n"
             "waits for the GIL can be told.");
PyDoc_STRVAR(watch_gpu_doc, "watch_gpu($self, uuid, /)\n--\n\n"
                            "How the GPU is, by NVML, goes into a row a second. uuid: as NVML has\n"
                            "it; where there is none, or no NVML, there are no rows.");
PyDoc_STRVAR(watch_workers_doc, "watch_workers($self, processes, /)\n--\n\n"
                                "The loader has these workers, a list of process ids.");
PyDoc_STRVAR(position_doc, "position($self, /)\n--\n\n"
                           "The place in the thread's records that comes next.");
PyDoc_STRVAR(change_step_doc, "change_step($self, begin, end, step, /)\n--\n\n"
                              "Gives the records between two positions another step. Returns how\n"
                              "many slots a drain had written already and that keep theirs.");
PyDoc_STRVAR(drain_soon_doc, "drain_soon($self, /)\n--\n\n"
                             "Has the drain thread write what was recorded; waits for nothing.");
PyDoc_STRVAR(use_cuda_doc, "use_cuda($self, /)\n--\n\n"
                           "Takes GPU times from here on. False when there is no driver.");
PyDoc_STRVAR(counts_doc, "counts($self, /)\n--\n\nHow many calls each stage had.");

static PyMethodDef run_methods[] = {
    {"begin", run_begin_locked, METH_O, begin_doc},
    {"begin_forward", run_begin_forward_locked, METH_NOARGS, begin_forward_doc},
    {"end", run_end_locked, METH_NOARGS, end_doc},
    {"forget", run_forget_locked, METH_NOARGS, forget_doc},
    {"begin_step", run_begin_step_locked, METH_O, begin_step_doc},
    {"end_step", run_end_step_locked, METH_O, end_step_doc},
    {"position", run_position_locked, METH_NOARGS, position_doc},
    {"change_step", run_change_step_locked, METH_VARARGS, change_step_doc},
    {"drain_soon", run_drain_soon_locked, METH_NOARGS, drain_soon_doc},
    {"use_cuda", run_use_cuda_locked, METH_NOARGS, use_cuda_doc},
    {"counts", run_counts_locked, METH_NOARGS, counts_doc},
    {"follow", run_follow_locked, METH_VARARGS, follow_doc},
    {"unfollow", run_unfollow_locked, METH_NOARGS, unfollow_doc},
    {"know_tensors", run_know_tensors_locked, METH_VARARGS, know_tensors_doc},
    {"add_batch", run_add_batch_locked, METH_O, add_batch_doc},
    {"add_samples", run_add_samples_locked, METH_VARARGS, add_samples_doc},
    {"step_batches", run_step_batches_locked, METH_VARARGS, step_batches_doc},
    {"write_batches", run_write_batches_locked, METH_O, write_batches_doc},
    {"forget_batches", run_forget_batches_locked, METH_NOARGS, forget_batches_doc},
    {"forget_newest_batch", run_forget_newest_batch_locked, METH_NOARGS, forget_newest_batch_doc},
    {"collected", (PyCFunction)(void (*)(void))run_collected_locked, METH_FASTCALL, collected_doc},
    {"end_host", run_end_host_locked, METH_O, end_host_doc},
    {"forget_host", run_forget_host_locked, METH_NOARGS, forget_host_doc},
    {"sample_host", run_sample_host_locked, METH_NOARGS, sample_host_doc},
    {"watch_gpu", run_watch_gpu_locked, METH_O, watch_gpu_doc},
    {"watch_workers", run_watch_workers_locked, METH_O, watch_workers_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(run_doc,
             "RunStages(make_timer, gradients)\n--\n\n"
             "Turns the calls of a training thread into stages that exclude each other.\n\n"
             "make_timer: returns the timer that records them; called at the first stage.\n"
             "gradients: torch.is_grad_enabled.");

static PyType_Slot run_slots[] = {
    {Py_tp_doc, (void *)run_doc}, {Py_tp_new, run_new},
    {Py_tp_dealloc, run_dealloc}, {Py_tp_traverse, run_traverse},
    {Py_tp_clear, run_clear},     {Py_tp_methods, run_methods},
    {Py_tp_getset, run_getset},   {0, NULL},
};

static PyType_Spec run_spec = {
    .name = "my_utils._core.RunStages",
    .basicsize = sizeof(struct mu_py_run_stages),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = run_slots,
};

int mu_py_run_stages_exec(PyObject *module) {
    struct mu_state *state = mu_state_of(module);
    return mu_py_add_type(module, &run_spec, &state->run_stages_type);
}
