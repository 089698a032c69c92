/* Functions on the recorder of the process: where rows go, drains, warnings. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/event.h"
#include "base/host_name.h"
#include "core/args.h"
#include "core/warnings.h"
#include "cuda/nvtx.h"
#include "cuda/py_cuda.h"
#include "process_stacks/py_process_stacks.h"
#include "stages/output_state.h"
#include "stages/recorder_state.h"
#include "stages/stack_service.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t inline_drain_wait_ns = 1000000000;

/* --- the recorder in the module's state --------------------------------------------------- */

/* A new reference to what the weak reference leads to; NULL without an error where it is gone. */
static PyObject *strong(PyObject *weak) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *object = NULL;
    return PyWeakref_GetRef(weak, &object) < 0 ? NULL : object;
#else
    PyObject *object = PyWeakref_GetObject(weak);
    return object == NULL || object == Py_None ? NULL : Py_NewRef(object);
#endif
}

/* A forked child closes its parent's files at once. While it holds their locks, a restarted job
 * would take the dead parent for a living process. */
static PyObject *after_fork_in_child(PyObject *weak_module, PyObject *Py_UNUSED(ignored)) {
    PyObject *module = strong(weak_module);
    if (module == NULL && PyErr_Occurred() != NULL) {
        return NULL;
    }
    struct mu_state *state = module == NULL ? NULL : mu_state_of(module);
    struct mu_recorder *recorder = state == NULL ? NULL : state->recorder;
    if (recorder != NULL) {
        mu_recorder_check_fork(recorder);
    }
    Py_XDECREF(module);
    Py_RETURN_NONE;
}

static PyMethodDef fork_method = {"after_fork_in_child", after_fork_in_child, METH_NOARGS, NULL};

/* An interpreter drops what it calls at forks after its last garbage collection: what that held
 * then would stay forever, and so would a module's recorder. */
static int watch_forks(void) {
    PyObject *module = PyImport_ImportModule(mu_module.m_name);
    PyObject *weak = module == NULL ? NULL : PyWeakref_NewRef(module, NULL);
    PyObject *os = weak == NULL ? NULL : PyImport_ImportModule("os");
    PyObject *function = os == NULL ? NULL : PyCFunction_New(&fork_method, weak);
    PyObject *keywords =
        function == NULL ? NULL : Py_BuildValue("{s:O}", "after_in_child", function);
    PyObject *none = PyTuple_New(0);
    PyObject *registrar = keywords == NULL ? NULL : PyObject_GetAttrString(os, "register_at_fork");
    PyObject *result =
        registrar == NULL || none == NULL ? NULL : PyObject_Call(registrar, none, keywords);
    Py_XDECREF(registrar);
    Py_XDECREF(none);
    Py_XDECREF(keywords);
    Py_XDECREF(function);
    Py_XDECREF(os);
    Py_XDECREF(weak);
    Py_XDECREF(module);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Where there is no memory for it, the next call tries again. */
static int watch_forks_once(struct mu_state *state) {
    if (state->watches_forks || atomic_exchange(&state->watches_forks, true) ||
        watch_forks() == 0) {
        return 0;
    }
    state->watches_forks = false;
    if (!PyErr_ExceptionMatches(PyExc_MemoryError)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

static int reserve_recorder(struct mu_state *state) {
    state->reserved = mu_recorder_reserve();
    state->event_timer = PyMem_RawCalloc(1, sizeof(*state->event_timer));
    if (state->reserved == NULL || state->event_timer == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

/* False where another thread has started it meanwhile. */
static bool start_locked(struct mu_state *state) {
    struct mu_recorder *recorder = state->reserved;
    if (recorder == NULL) {
        return false;
    }
    state->reserved = NULL;
    mu_recorder_start(recorder);
    if (MU_FREE_THREADED) {
        mu_recording_guard(recorder);
    }
    mu_error_kept(mu_timer_init(state->event_timer, recorder, "", NULL));
    state->recorder = recorder;
    return true;
}

static void start_recorder(struct mu_state *state) {
    mu_py_lock_take(&state->lock);
    bool started = start_locked(state);
    mu_py_lock_release(&state->lock);
    if (started) {
        mu_py_listen(state);
    }
}

void mu_py_listen(struct mu_state *state) {
    struct mu_recorder *recorder = state->recorder;
    PyObject *hook = mu_py_shared_get(&state->lock, &state->step_hook);
    if (recorder != NULL && hook != NULL) {
        mu_stack_service_start(recorder, mu_py_stack_reader(state));
    }
    if (recorder != NULL) {
        mu_control_listen(&recorder->control, hook != NULL);
    }
    Py_XDECREF(hook);
}

struct mu_recorder *mu_py_recorder(struct mu_state *state) {
    if (state->recorder == NULL) {
        start_recorder(state);
    }
    mu_py_recorder_try_again(state, state->recorder);
    return watch_forks_once(state) < 0 ? NULL : state->recorder;
}

static bool interpreter_ends(void) {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
}

void mu_py_recorder_release(struct mu_state *state) {
    if (interpreter_ends()) {
        return; /* a daemon thread may be in the middle of a drain, which needs no GIL */
    }
    if (state->event_timer != NULL) {
        mu_timer_release(state->event_timer);
        PyMem_RawFree(state->event_timer);
        state->event_timer = NULL;
    }
    free(state->reserved);
    state->reserved = NULL;
    mu_recorder_destroy(state->recorder);
    state->recorder = NULL;
    mu_nvtx_free(state->nvtx);
    state->nvtx = NULL;
    free(state->stack_reader);
    state->stack_reader = NULL;
}

/* Python's name of the calling thread; a new reference. */
static PyObject *python_thread_name(void) {
    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *thread =
        threading == NULL ? NULL : PyObject_CallMethod(threading, "current_thread", NULL);
    PyObject *name = thread == NULL ? NULL : PyObject_GetAttrString(thread, "name");
    Py_XDECREF(thread);
    Py_XDECREF(threading);
    return name;
}

static bool is_power_of_two(uint64_t n) {
    return n != 0 && (n & (n - 1)) == 0;
}

/* Collects also where the collector is switched off, as some training loops do; PyGC_Collect does
 * nothing there. */
static void collect_garbage(void) {
    PyObject *error_type, *error, *traceback;
    PyErr_Fetch(&error_type, &error, &traceback);
    PyObject *gc = PyImport_ImportModule("gc");
    PyObject *found = gc == NULL ? NULL : PyObject_CallMethod(gc, "collect", NULL);
    Py_XDECREF(found);
    Py_XDECREF(gc);
    PyErr_Restore(error_type, error, traceback);
}

/* A timer whose stages were kept is freed by the garbage collector only, and holds its thread
 * buffers until then. Called rarely: for the first failure, the second, the fourth and so on. */
static struct mu_thread_buffer *new_buffer_after_collection(struct mu_timer *timer) {
    collect_garbage();
    /* Of the two attempts at most one counts, and what was lost before stays counted. */
    atomic_fetch_sub(&timer->recorder->troubles.dropped_buffers, 1);
    return mu_timer_new_thread_buffer(timer);
}

int mu_py_place_timer(struct mu_timer *timer, struct mu_recorder *recorder, const char *tag,
                      struct mu_error *err) {
    int code = mu_timer_init(timer, recorder, tag, err);
    if (code != MU_OK || mu_timer_has_place(timer) ||
        !is_power_of_two(atomic_load(&recorder->troubles.unplaced_timers))) {
        return code;
    }
    collect_garbage();
    atomic_fetch_sub(&recorder->troubles.unplaced_timers, 1);
    return mu_timer_init(timer, recorder, tag, err);
}

struct mu_thread_buffer *mu_py_new_thread_buffer(struct mu_timer *timer) {
    struct mu_thread_buffer *buffer = mu_timer_new_thread_buffer(timer);
    if (!mu_timer_has_place(timer)) {
        return NULL;
    }
    if (buffer == NULL && mu_recorder_give_up_journal(timer->recorder)) {
        buffer = mu_timer_new_thread_buffer(timer);
    }
    if (buffer == NULL &&
        is_power_of_two(atomic_load(&timer->recorder->troubles.dropped_buffers))) {
        buffer = new_buffer_after_collection(timer);
    }
    if (buffer == NULL) {
        return NULL;
    }
    PyObject *error_type, *error, *traceback;
    PyErr_Fetch(&error_type, &error, &traceback);
    PyObject *name = python_thread_name();
    PyObject *text = name != NULL && PyUnicode_Check(name)
                         ? PyUnicode_AsEncodedString(name, "utf-8", "backslashreplace")
                         : NULL;
    if (text != NULL) {
        mu_recorder_set_thread_name(timer->recorder, buffer, PyBytes_AS_STRING(text));
    }
    Py_XDECREF(text);
    Py_XDECREF(name);
    PyErr_Restore(error_type, error, traceback);
    return buffer;
}

/* --- troubles ----------------------------------------------------------------------------- */

struct trouble {
    const char *kind;
    size_t offset; /* of the count in struct mu_troubles */
    const char *message;
};

#define COUNT_OF(field) offsetof(struct mu_troubles, field)

static const struct trouble troubles[] = {
    {"dropped_records", COUNT_OF(dropped_records),
     "stages came faster than they could be written, and records were dropped; call step() more "
     "often or time fewer stages (the totals of the report stay right)"},
    {"dropped_lanes", COUNT_OF(dropped_buffers),
     "no space for another thread (64 pairs of threads and timers at once, a full disk, or no "
     "memory); its records are lost"},
    {"unplaced_timers", COUNT_OF(unplaced_timers),
     "479 timers live already; a further one records nothing, and the rows count what is lost"},
    {"no_thread_key", COUNT_OF(no_thread_key),
     "other libraries have taken all thread keys of the process (pthread_key_create); nothing is "
     "recorded in it"},
    {"no_memory", COUNT_OF(no_memory),
     "not enough memory to start; nothing is recorded until a step() or setup() finds some"},
    {"failed_writes", COUNT_OF(failed_writes),
     "the profile CSV could not be written, and rows were lost; the training goes on"},
    {"full_names", COUNT_OF(full_names),
     "more than 4096 different stage names; further ones are recorded, but the report adds them up "
     "under (other)"},
    {"too_deep", COUNT_OF(too_deep), "stages nest deeper than 4096; deeper ones are not recorded"},
    {"cut_metadata", COUNT_OF(cut_metadata), "metadata above 32768 bytes was cut"},
    {"failed_windows", COUNT_OF(failed_windows),
     "windows of steps could not be written; the profile CSV has the steps, as long as it is kept"},
    {"failed_rotations", COUNT_OF(failed_rotations),
     "the next part of the profile CSV could not be begun; rows go on into the same file"},
    {"removed_parts", COUNT_OF(removed_parts),
     "the oldest parts of the profile CSV were removed to stay under keep_csv_bytes"},
    {"missing_csv", COUNT_OF(missing_csv),
     "the profile CSV or its directory was deleted while it was written; what is recorded from "
     "then on is lost unless setup() is called again"},
    {"lost_journal", COUNT_OF(lost_journal),
     "the journal could not grow and was given up: rows are written as usual, but a kill loses "
     "those that are not yet written"},
};

enum { TROUBLES = sizeof(troubles) / sizeof(troubles[0]) };

static uint64_t trouble_count(const struct mu_recorder *recorder, const struct trouble *trouble) {
    const char *counts = (const char *)&recorder->troubles;
    const _Atomic uint64_t *count = (const void *)(counts + trouble->offset);
    return atomic_load_explicit(count, memory_order_relaxed);
}

static void warn_of(struct mu_state *state, const struct trouble *trouble) {
    char message[2048];
    struct mu_recorder *recorder = state->recorder;
    char path[MU_PATH_BYTES];
    mu_recorder_opened_path(recorder, path);
    int error = atomic_load(&recorder->troubles.last_errno);
    bool of_csv =
        trouble->offset == COUNT_OF(failed_writes) || trouble->offset == COUNT_OF(failed_rotations);
    if (of_csv && error != 0) {
        snprintf(message, sizeof(message), "%s (%s: %s)", trouble->message, path, strerror(error));
    } else if (trouble->offset == COUNT_OF(missing_csv)) {
        snprintf(message, sizeof(message), "%s (%s)", trouble->message, path);
    } else {
        snprintf(message, sizeof(message), "%s (so far: %llu)", trouble->message,
                 (unsigned long long)trouble_count(recorder, trouble));
    }
    mu_py_warn(state, trouble->kind, message);
}

/* The caller that gets its error warns. */
static void take_no_memory_as_reported(struct mu_state *state) {
    const struct mu_recorder *recorder = state->recorder;
    for (int i = 0; i < TROUBLES; i++) {
        if (troubles[i].offset == COUNT_OF(no_memory) && recorder->broken) {
            atomic_fetch_or(&state->reported_troubles, UINT32_C(1) << i);
        }
    }
}

void mu_py_report_troubles(struct mu_state *state) {
    const struct mu_recorder *recorder = state->recorder;
    if (recorder == NULL) {
        return;
    }
    for (int i = 0; i < TROUBLES; i++) {
        uint32_t bit = UINT32_C(1) << i;
        if (trouble_count(recorder, &troubles[i]) != 0 &&
            (atomic_fetch_or(&state->reported_troubles, bit) & bit) == 0) {
            warn_of(state, &troubles[i]);
        }
    }
    mu_py_report_cuda(state);
}

/* --- functions of the module -------------------------------------------------------------- */

static PyObject *set_warning_hook(PyObject *module, PyObject *hook) {
    if (hook != Py_None && !PyCallable_Check(hook)) {
        PyErr_Format(PyExc_TypeError, "hook must be callable or None, not %.100s",
                     Py_TYPE(hook)->tp_name);
        return NULL;
    }
    struct mu_state *state = mu_state_of(module);
    mu_py_shared_set(&state->lock, &state->warning_hook, hook == Py_None ? NULL : Py_NewRef(hook));
    state->reported_troubles = 0; /* the new hook gets them all again */
    Py_RETURN_NONE;
}

static int choose(const char *name, PyObject *value, const char *const *allowed, int *out) {
    struct mu_py_text text;
    if (value == NULL) {
        return 0;
    }
    if (mu_py_utf8(value, name, &text) < 0) {
        return -1;
    }
    for (int i = 0; allowed[i] != NULL; i++) {
        if (strcmp(text.bytes, allowed[i]) == 0) {
            *out = i;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "%s must be one of %s, %s, %s, not %R", name, allowed[0],
                 allowed[1], allowed[2], value);
    return -1;
}

static int copy_bytes(const char *name, const char *bytes, Py_ssize_t length, char *out,
                      size_t size) {
    if ((size_t)length >= size) {
        PyErr_Format(PyExc_ValueError, "%s must have at most %zu bytes, not %zd", name, size - 1,
                     length);
        return -1;
    }
    memcpy(out, bytes, (size_t)length);
    out[length] = '\0';
    return 0;
}

static int copy_text(const char *name, PyObject *value, char *out, size_t size) {
    struct mu_py_text text;
    if (value == NULL) {
        return 0;
    }
    if (mu_py_utf8(value, name, &text) < 0) {
        return -1;
    }
    return copy_bytes(name, text.bytes, text.length, out, size);
}

static int copy_path(const char *name, PyObject *value, char *out, size_t size) {
    PyObject *bytes;
    if (value == NULL) {
        return 0;
    }
    if (mu_py_path(value, name, &bytes) < 0) {
        return -1;
    }
    int rc = copy_bytes(name, PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes), out, size);
    Py_DECREF(bytes);
    return rc;
}

static int take_int(const char *name, PyObject *value, int64_t low, int64_t high, int64_t *out) {
    return value == NULL ? 0 : mu_py_int64_in(value, name, low, high, out);
}

enum open_argument {
    OPEN_KIND,
    OPEN_LOG_DIR,
    OPEN_RANK,
    OPEN_WORLD_SIZE,
    OPEN_HOST,
    OPEN_MACHINE,
    OPEN_LABEL,
    OPEN_IO,
    OPEN_JOURNAL_DIR,
    OPEN_MAX_BYTES,
    OPEN_KEEP_BYTES,
    OPEN_WINDOWS_BYTES,
    OPEN_ATTEMPT,
    OPEN_ARGUMENTS,
};

static const char *const open_names[] = {
    "kind", "log_dir",     "rank",          "world_size",     "host",          "machine", "label",
    "io",   "journal_dir", "max_csv_bytes", "keep_csv_bytes", "windows_bytes", "attempt", NULL};
static const struct mu_py_signature open_signature = {"open_output", open_names, 0, 0};
static const char *const kind_names[] = {"memory", "null", "file", NULL};
static const char *const io_names[] = {"auto", "inline", "background", NULL};

static int fill_config(PyObject *const *values, struct mu_output_config *config) {
    int64_t rank = 0, world_size = 1, max_bytes = 0, keep_bytes = 0, windows_bytes = 0, attempt = 0;
    config->kind = MU_OUTPUT_FILE;
    if (choose("kind", values[OPEN_KIND], kind_names, &config->kind) < 0 ||
        choose("io", values[OPEN_IO], io_names, &config->io) < 0 ||
        take_int("rank", values[OPEN_RANK], 0, INT32_MAX, &rank) < 0 ||
        take_int("world_size", values[OPEN_WORLD_SIZE], 1, INT32_MAX, &world_size) < 0 ||
        take_int("max_csv_bytes", values[OPEN_MAX_BYTES], 0, INT64_MAX, &max_bytes) < 0 ||
        take_int("keep_csv_bytes", values[OPEN_KEEP_BYTES], 0, INT64_MAX, &keep_bytes) < 0 ||
        take_int("windows_bytes", values[OPEN_WINDOWS_BYTES], 0, INT64_MAX, &windows_bytes) < 0 ||
        take_int("attempt", values[OPEN_ATTEMPT], 0, UINT16_MAX, &attempt) < 0 ||
        copy_path("log_dir", values[OPEN_LOG_DIR], config->log_dir, sizeof(config->log_dir)) < 0 ||
        copy_path("journal_dir", values[OPEN_JOURNAL_DIR], config->journal_dir,
                  sizeof(config->journal_dir)) < 0 ||
        copy_text("host", values[OPEN_HOST], config->host, sizeof(config->host)) < 0 ||
        copy_text("machine", values[OPEN_MACHINE], config->machine, sizeof(config->machine)) < 0 ||
        copy_text("label", values[OPEN_LABEL], config->text_label, sizeof(config->text_label)) <
            0) {
        return -1;
    }
    if (config->machine[0] == '\0') {
        mu_host_name(config->machine, sizeof(config->machine));
    }
    config->rank = (int)rank;
    config->world_size = (int)world_size;
    config->least_attempt = (uint32_t)attempt;
    config->max_csv_bytes = (uint64_t)max_bytes;
    config->keep_csv_bytes = (uint64_t)keep_bytes;
    config->windows_bytes = (uint64_t)windows_bytes;
    if (config->kind == MU_OUTPUT_FILE && config->log_dir[0] == '\0') {
        PyErr_SetString(PyExc_ValueError, "log_dir must not be empty");
        return -1;
    }
    return 0;
}

static PyObject *path_object(const char *path) {
    return PyUnicode_DecodeFSDefault(path);
}

static PyObject *report_object(const struct mu_open_report *report) {
    return Py_BuildValue("{s:N,s:N,s:N,s:s,s:i,s:I,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:N}", "csv_path",
                         path_object(report->csv_path), "journal_path",
                         path_object(report->journal_path), "journal_error",
                         mu_py_message(report->journal_error.message), "label", report->label,
                         "worker", report->worker, "attempt", report->attempt, "adopted_journals",
                         (unsigned long long)report->adopted_journals, "adopted_rows",
                         (unsigned long long)report->adopted_rows, "foreign_journals",
                         (unsigned long long)report->foreign_journals, "unreadable_journals",
                         (unsigned long long)report->unreadable_journals, "doubtful_journals",
                         (unsigned long long)report->doubtful_journals, "doubtful_rows",
                         (unsigned long long)report->doubtful_rows, "unproven_records",
                         (unsigned long long)report->unproven_records, "foreign_csv",
                         PyBool_FromLong(report->foreign_csv));
}

/* Takes the GIL for the moments in which nobody may record. Where there is none, that keeps forks
 * away, and mu_recording_pause the threads. */
struct gil {
    PyThreadState *thread;
};

static void take_gil(void *owner) {
    PyEval_RestoreThread(((struct gil *)owner)->thread);
}

static void leave_gil(void *owner) {
    ((struct gil *)owner)->thread = PyEval_SaveThread();
}

static int open_without_gil(struct mu_recorder *recorder, const struct mu_output_config *config,
                            struct mu_open_report *report, struct mu_error *err) {
    struct gil gil = {PyEval_SaveThread()};
    struct mu_alone alone = {take_gil, leave_gil, &gil};
    int code = mu_recorder_open_with(recorder, config, &alone, report, err);
    PyEval_RestoreThread(gil.thread);
    return code;
}

static int close_without_gil(struct mu_recorder *recorder, struct mu_error *err) {
    struct gil gil = {PyEval_SaveThread()};
    struct mu_alone alone = {take_gil, leave_gil, &gil};
    int code = mu_recorder_close_with(recorder, &alone, err);
    PyEval_RestoreThread(gil.thread);
    return code;
}

static PyObject *open_output(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords) {
    PyObject *values[OPEN_ARGUMENTS];
    struct mu_state *state = mu_state_of(module);
    struct mu_output_config config = {0};
    struct mu_open_report report;
    struct mu_error err = {0};
    if (mu_py_bind(&open_signature, args, count, keywords, values) < 0 ||
        fill_config(values, &config) < 0 || mu_py_recorder(state) == NULL) {
        return NULL;
    }
    if (open_without_gil(state->recorder, &config, &report, &err) != MU_OK) {
        take_no_memory_as_reported(state);
        return mu_py_raise(&err);
    }
    return report_object(&report);
}

static PyObject *close_output(PyObject *module, PyObject *Py_UNUSED(ignored)) {
    struct mu_state *state = mu_state_of(module);
    struct mu_error err = {0};
    if (state->recorder != NULL && close_without_gil(state->recorder, &err) != MU_OK) {
        return mu_py_raise(&err);
    }
    mu_py_report_troubles(state);
    Py_RETURN_NONE;
}

static PyObject *drain(PyObject *module, PyObject *const *args, Py_ssize_t count,
                       PyObject *keywords) {
    static const char *const names[] = {"wait_s", NULL};
    static const struct mu_py_signature signature = {"drain", names, 0, 1};
    PyObject *value;
    double wait_s = 1.0;
    struct mu_state *state = mu_state_of(module);
    if (mu_py_bind(&signature, args, count, keywords, &value) < 0 ||
        (value != NULL && mu_py_double(value, "wait_s", &wait_s) < 0)) {
        return NULL;
    }
    if (wait_s < 0 || wait_s > 1e6) {
        PyErr_Format(PyExc_ValueError, "wait_s must be from 0 to 1000000 seconds, not %R", value);
        return NULL;
    }
    struct mu_recorder *recorder = mu_py_recorder(state);
    if (recorder == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    mu_recorder_drain(recorder, (int64_t)(wait_s * 1e9));
    Py_END_ALLOW_THREADS;
    mu_py_report_troubles(state);
    Py_RETURN_NONE;
}

static PyObject *set_time_offset_ns(PyObject *module, PyObject *value) {
    int64_t offset_ns;
    bool set;
    struct mu_state *state = mu_state_of(module);
    struct mu_recorder *recorder = mu_py_recorder(state);
    if (recorder == NULL ||
        mu_py_int64_in(value, "offset_ns", -INT64_MAX / 4, INT64_MAX / 4, &offset_ns) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    set = mu_recorder_set_time_offset(recorder, offset_ns);
    Py_END_ALLOW_THREADS;
    if (!set) {
        mu_py_warn(state, "time_offset",
                   "the time offset stays as it was: the profile CSV does not answer, and rows "
                   "before it could not be written");
    }
    Py_RETURN_NONE;
}

static PyObject *troubles_object(PyObject *module, PyObject *Py_UNUSED(ignored)) {
    struct mu_recorder *recorder = mu_py_recorder(mu_state_of(module));
    PyObject *counts = recorder == NULL ? NULL : PyDict_New();
    if (counts == NULL) {
        return NULL;
    }
    for (int i = 0; i < TROUBLES; i++) {
        PyObject *count = PyLong_FromUnsignedLongLong(trouble_count(recorder, &troubles[i]));
        if (count == NULL || PyDict_SetItemString(counts, troubles[i].kind, count) < 0) {
            Py_XDECREF(count);
            Py_DECREF(counts);
            return NULL;
        }
        Py_DECREF(count);
    }
    PyObject *rest = Py_BuildValue(
        "{s:K,s:K,s:K,s:i}", "unplaced_records",
        (unsigned long long)atomic_load(&recorder->troubles.unplaced_records), "lost_rows",
        (unsigned long long)atomic_load(&recorder->troubles.lost_rows), "lost_records",
        (unsigned long long)atomic_load(&recorder->troubles.lost_records), "last_errno",
        atomic_load(&recorder->troubles.last_errno));
    if (rest == NULL || PyDict_Update(counts, rest) < 0) {
        Py_CLEAR(counts);
    }
    Py_XDECREF(rest);
    return counts;
}

static PyObject *memory_rows(PyObject *module, PyObject *Py_UNUSED(ignored)) {
    struct mu_recorder *recorder = mu_py_recorder(mu_state_of(module));
    if (recorder == NULL) {
        return NULL;
    }
    struct mu_error err = {0};
    char *text;
    size_t length;
    int code;
    Py_BEGIN_ALLOW_THREADS;
    mu_recorder_drain(recorder, inline_drain_wait_ns);
    code = mu_recorder_copy_memory(recorder, inline_drain_wait_ns, &text, &length, &err);
    Py_END_ALLOW_THREADS;
    if (code != MU_OK) {
        return mu_py_raise(&err);
    }
    PyObject *rows = PyBytes_FromStringAndSize(text, (Py_ssize_t)length);
    free(text);
    return rows;
}

static PyObject *output_state(PyObject *module, PyObject *Py_UNUSED(ignored)) {
    struct mu_recorder *recorder = mu_py_recorder(mu_state_of(module));
    if (recorder == NULL) {
        return NULL;
    }
    struct mu_output_state state;
    mu_recorder_check_fork(recorder);
    mu_recorder_output_state(recorder, &state);
    return Py_BuildValue(
        "{s:s,s:N,s:N,s:K,s:K,s:O,s:O,s:s,s:I,s:i}", "kind", kind_names[state.kind], "csv_path",
        path_object(state.csv_path), "journal_path", path_object(state.journal_path), "csv_bytes",
        (unsigned long long)state.csv_bytes, "part", (unsigned long long)state.part,
        "in_background", recorder->in_background ? Py_True : Py_False, "records",
        recorder->broken ? Py_False : Py_True, "label", state.label, "attempt", state.attempt,
        "rank", state.rank);
}

static PyMethodDef methods[] = {
    {"open_output", (PyCFunction)(void (*)(void))open_output, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"close_output", close_output, METH_NOARGS, NULL},
    {"drain", (PyCFunction)(void (*)(void))drain, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"set_time_offset_ns", set_time_offset_ns, METH_O, NULL},
    {"troubles", troubles_object, METH_NOARGS, NULL},
    {"memory_rows", memory_rows, METH_NOARGS, NULL},
    {"output_state", output_state, METH_NOARGS, NULL},
    {"set_warning_hook", set_warning_hook, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int mu_py_recorder_exec(PyObject *module) {
    if (reserve_recorder(mu_state_of(module)) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
