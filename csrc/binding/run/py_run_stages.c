/* Calls of a training thread become stages that exclude each other. */
#include "run/py_run_stages.h"

#include <pythread.h>

#include "base/clock.h"
#include "core/warnings.h"
#include "stages/corrections.h"

/* --- trouble ------------------------------------------------------------------------------ */

/* Ctrl-C, an exit, and what a signal handler of the script raised. */
static bool is_interrupt(struct mu_py_run_stages *self, PyObject *error) {
    if (!PyErr_GivenExceptionMatches(error, PyExc_Exception)) {
        return true;
    }
    PyObject *answer =
        self->is_interrupt == NULL ? NULL : PyObject_CallOneArg(self->is_interrupt, error);
    PyErr_Clear();
    bool yes = answer == Py_True;
    Py_XDECREF(answer);
    return yes;
}

/* error: a reference that becomes the interpreter's. */
static int raise_again(void *error) {
    PyErr_SetObject((PyObject *)Py_TYPE((PyObject *)error), error);
    Py_DECREF((PyObject *)error);
    return -1;
}

static void warn_and_stop(struct mu_py_run_stages *self, PyObject *error) {
    PyObject *text = error == NULL ? NULL : PyObject_Repr(error);
    const char *reason = text == NULL ? NULL : PyUnicode_AsUTF8(text);
    char message[400];
    PyOS_snprintf(message, sizeof(message),
                  "the stages of this run are recorded no further (%.200s); the training goes on",
                  reason == NULL ? "unknown error" : reason);
    PyErr_Clear();
    self->on = false;
    struct mu_state *state = mu_state_of_object((PyObject *)self);
    if (state != NULL) {
        mu_py_warn(state, "run_stages", message);
    }
    PyErr_Clear();
    Py_XDECREF(text);
}

/* The training must not notice: one warning, and nothing is recorded from here on. What interrupts
 * it is the training's: it comes again, behind the recorder. */
static void step_aside(struct mu_py_run_stages *self) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value != NULL && traceback != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    if (value == NULL || !is_interrupt(self, value)) {
        warn_and_stop(self, value);
    } else if (Py_AddPendingCall(raise_again, Py_NewRef(value)) < 0) { /* too many are pending */
        Py_DECREF(value);
        PyErr_SetInterrupt();
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

/* An exception of the training, kept while the recorder does its work. */
struct kept_error {
    PyObject *type, *value, *traceback;
};

static struct kept_error keep_error(void) {
    struct kept_error kept;
    PyErr_Fetch(&kept.type, &kept.value, &kept.traceback);
    return kept;
}

static void restore_error(struct mu_py_run_stages *self, struct kept_error kept) {
    if (PyErr_Occurred()) {
        step_aside(self);
    }
    PyErr_Restore(kept.type, kept.value, kept.traceback);
}

/* --- the timer ---------------------------------------------------------------------------- */

int mu_py_run_make_timer(struct mu_py_run_stages *self) {
    struct mu_state *state = mu_state_of_object((PyObject *)self);
    PyObject *timer = state == NULL ? NULL : PyObject_CallNoArgs(self->make_timer);
    if (timer == NULL) {
        return -1;
    }
    if (!PyObject_TypeCheck(timer, state->timer_type)) {
        PyErr_Format(PyExc_TypeError, "make_timer must return a Timer, not %.100s",
                     Py_TYPE(timer)->tp_name);
        Py_DECREF(timer);
        return -1;
    }
    self->timer = (struct mu_py_timer *)timer;
    return 0;
}

struct mu_thread_buffer *mu_py_run_event_buffer(struct mu_py_run_stages *self) {
    struct mu_state *state = self->timer == NULL ? NULL : self->timer->state;
    return state == NULL ? NULL : mu_py_thread_buffer(state->event_timer);
}

static void start(struct mu_py_run_stages *self, enum mu_run_stage stage) {
    if (self->host.has_ended) {
        mu_py_host_costs_begin(&self->host, self->thread, mu_py_run_event_buffer(self));
    }
    if ((self->timer == NULL && mu_py_run_make_timer(self) < 0) ||
        mu_py_timer_start(self->timer, &self->names[stage], NULL) < 0) {
        step_aside(self);
        return;
    }
    self->open = stage;
}

static void stop(struct mu_py_run_stages *self) {
    enum mu_run_stage stage = self->open;
    self->open = MU_RUN_NONE;
    if (stage != MU_RUN_NONE && mu_py_timer_stop(self->timer, &self->names[stage]) < 0) {
        step_aside(self);
    }
}

static void take_back(struct mu_py_run_stages *self) {
    struct mu_thread_buffer *buffer = mu_py_thread_buffer(&self->timer->timer);
    self->open = MU_RUN_NONE;
    if (buffer != NULL) {
        mu_py_recording_begin(buffer);
        mu_thread_buffer_take_back(buffer);
        mu_py_recording_end(buffer);
    }
}

/* A forward, an input or a step after a forward: what was taken for its loss was not one. */
static void end_loss(struct mu_py_run_stages *self, bool was_loss) {
    if (self->open == MU_RUN_LOSS && !was_loss) {
        take_back(self);
    } else {
        stop(self);
    }
}

/* --- calls -------------------------------------------------------------------------------- */

static bool is_compute(enum mu_run_stage stage) {
    return stage == MU_RUN_FORWARD || stage == MU_RUN_BACKWARD || stage == MU_RUN_EVAL;
}

/* The first backward or step on another thread than the one that was taken for the training's. */
static bool follow_thread(struct mu_py_run_stages *self, enum mu_run_stage stage) {
    bool trains = stage == MU_RUN_BACKWARD || stage == MU_RUN_OPTIMIZER;
    if (!trains || self->counts[MU_RUN_BACKWARD] > 0 || self->inside != MU_RUN_NONE ||
        self->open != MU_RUN_NONE) {
        return false;
    }
    self->thread = PyThread_get_thread_ident();
    return true;
}

static bool is_training_thread(struct mu_py_run_stages *self, enum mu_run_stage stage) {
    return self->thread == PyThread_get_thread_ident() || follow_thread(self, stage);
}

static bool has_gradients(struct mu_py_run_stages *self) {
    PyObject *gradients = Py_NewRef(self->gradients); /* the calls below may let others in */
    PyObject *answer = PyObject_CallNoArgs(gradients);
    Py_DECREF(gradients);
    if (answer == NULL) {
        step_aside(self);
        return true;
    }
    bool yes = answer == Py_True;
    Py_DECREF(answer);
    return yes;
}

static void call(struct mu_py_run_stages *self, PyObject *function) {
    if (function == NULL) {
        return;
    }
    Py_INCREF(function); /* it may be replaced meanwhile */
    PyObject *result = PyObject_CallNoArgs(function);
    Py_DECREF(function);
    if (result == NULL) {
        step_aside(self);
    }
    Py_XDECREF(result);
}

/* NULL: no GPU times. */
static struct mu_cuda_pool *gpu_pool(struct mu_py_run_stages *self) {
    bool has_gpu = self->timer != NULL && self->timer->gpu_events.use_cuda;
    return has_gpu ? self->timer->timer.recorder->gpu : NULL;
}

void mu_py_run_remove_hooks(struct mu_py_run_stages *self) {
    if (self->buckets != NULL) {
        mu_py_bucket_times_remove(self->buckets);
    }
}

bool mu_py_run_begin(struct mu_py_run_stages *self, enum mu_run_stage stage, bool keeps_loss) {
    if (!self->on || self->inside != MU_RUN_NONE || !is_training_thread(self, stage)) {
        return false;
    }
    if (self->optimizer_depth > 0 && !is_compute(stage)) {
        if (stage != MU_RUN_INPUT) {
            return false; /* part of the step */
        }
        self->optimizer_depth = 0; /* the step was left by an exception */
    }
    if (stage == MU_RUN_FORWARD && !has_gradients(self)) {
        stage = MU_RUN_EVAL;
    }
    bool was_loss =
        keeps_loss || !(is_compute(stage) || stage == MU_RUN_INPUT) || stage == MU_RUN_BACKWARD;
    self->loss_goes_on =
        self->open == MU_RUN_LOSS && was_loss && (keeps_loss || stage != MU_RUN_BACKWARD);
    end_loss(self, was_loss);
    if (stage == MU_RUN_FORWARD && self->on_forward != NULL) {
        call(self, self->on_forward);
    }
    if (stage == MU_RUN_BACKWARD && !keeps_loss && self->buckets != NULL) {
        mu_py_bucket_times_install(self->buckets, gpu_pool(self));
    }
    start(self, stage);
    self->inside = stage;
    return true;
}

static void go_on(struct mu_py_run_stages *self, enum mu_run_stage ended) {
    if (ended == MU_RUN_FORWARD || self->loss_goes_on) {
        start(self, MU_RUN_LOSS);
    } else if (self->optimizer_depth > 0) {
        start(self, MU_RUN_OPTIMIZER);
    }
    self->loss_goes_on = false;
}

static void after_backward(struct mu_py_run_stages *self) {
    PyObject *function = self->stepped_inside ? self->on_step : self->on_backward;
    self->stepped_inside = false;
    if (function != NULL) {
        struct kept_error kept = keep_error();
        call(self, function);
        restore_error(self, kept);
    }
}

void mu_py_run_end(struct mu_py_run_stages *self) {
    enum mu_run_stage ended = self->inside;
    if (ended == MU_RUN_NONE) {
        return;
    }
    stop(self);
    if (ended == MU_RUN_BACKWARD) {
        mu_py_run_remove_hooks(self);
    }
    self->inside = MU_RUN_NONE;
    self->counts[ended]++;
    if (!self->on) {
        return;
    }
    go_on(self, ended);
    if (ended == MU_RUN_BACKWARD && self->optimizer_depth == 0) {
        after_backward(self);
    }
}

void mu_py_run_forget(struct mu_py_run_stages *self) {
    if (self->inside == MU_RUN_NONE) {
        return;
    }
    self->inside = MU_RUN_NONE;
    if (self->open != MU_RUN_NONE) {
        take_back(self);
    }
    if (self->on) {
        go_on(self, MU_RUN_NONE);
    }
}

/* --- optimizers --------------------------------------------------------------------------- */

static int find_optimizer(const struct mu_py_run_stages *self, const void *optimizer) {
    int at = self->optimizer_depth - 1;
    while (at >= 0 && self->optimizers[at] != optimizer) {
        at--;
    }
    return at;
}

void mu_py_run_begin_step(struct mu_py_run_stages *self, const void *optimizer) {
    if (!self->on || !is_training_thread(self, MU_RUN_OPTIMIZER)) {
        return;
    }
    if (self->inside != MU_RUN_NONE) {
        self->stepped_inside = self->stepped_inside || self->inside == MU_RUN_BACKWARD;
        return;
    }
    int known = find_optimizer(self, optimizer);
    if (known >= 0) {
        self->optimizer_depth = known; /* an exception ended that step */
    }
    if (self->optimizer_depth == MU_RUN_OPTIMIZERS_DEEP) {
        return;
    }
    self->optimizers[self->optimizer_depth++] = optimizer;
    if (self->open != MU_RUN_OPTIMIZER) {
        end_loss(self, false);
        start(self, MU_RUN_OPTIMIZER);
    }
}

/* Counts a step of the leader. True when somebody has to look: a forward was missing, or it is
 * time to. */
static bool lead(struct mu_py_run_stages *self) {
    struct mu_py_run_leader *leader = &self->leader;
    struct mu_thread_buffer *buffer = mu_py_thread_buffer(&self->timer->timer);
    leader->ended = buffer == NULL ? 0 : buffer->head;
    leader->number++;
    mu_py_batches_step(&self->batches, mu_py_run_event_buffer(self), true, leader->number - 1);
    mu_py_host_costs_end(&self->host, leader->number - 1);
    if (mu_py_timer_set_step(self->timer, leader->number) < 0) {
        step_aside(self);
        return false;
    }
    leader->forward_missing = self->counts[MU_RUN_FORWARD] == leader->forwards;
    leader->forwards = self->counts[MU_RUN_FORWARD];
    leader->calls_in--;
    return leader->forward_missing || leader->calls_in <= 0 ||
           mu_clock_monotonic_ns() >= leader->calls_at_ns;
}

/* Whether a step must be reported. */
static bool after_step(struct mu_py_run_stages *self, const void *optimizer) {
    self->leader.stepped = optimizer == self->leader.optimizer && self->timer != NULL;
    return !self->leader.stepped || lead(self);
}

bool mu_py_run_end_step(struct mu_py_run_stages *self, const void *optimizer) {
    if (self->inside != MU_RUN_NONE || self->thread != PyThread_get_thread_ident()) {
        return false;
    }
    int known = find_optimizer(self, optimizer);
    if (known < 0) {
        return false;
    }
    self->optimizer_depth = known;
    if (known > 0) {
        return false;
    }
    end_loss(self, false);
    self->counts[MU_RUN_OPTIMIZER]++;
    return self->on && after_step(self, optimizer);
}
