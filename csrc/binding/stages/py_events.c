/* Events of users as rows: `log_event` takes what Python has checked, `log_plain_event` what
 * log_profile_event gets most of the time, without any Python in between. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/event.h"
#include "core/args.h"
#include "csv/metadata.h"
#include "stages/recorder_state.h"

#include <math.h>
#include <string.h>

/* --- recording ---------------------------------------------------------------------------- */

static int64_t current_step(const struct mu_state *state) {
    return atomic_load_explicit(&state->event_timer->step, memory_order_relaxed);
}

static void record(struct mu_state *state, const struct mu_event *event) {
    struct mu_thread_buffer *buffer = mu_py_thread_buffer(state->event_timer);
    if (buffer != NULL) {
        mu_py_recording_begin(buffer);
        mu_thread_buffer_event(buffer, event);
        mu_py_recording_end(buffer);
    } else {
        mu_recorder_count_unplaced(state->recorder);
    }
}

/* --- log_event ---------------------------------------------------------------------------- */

enum event_argument {
    EVENT_NAME,
    EVENT_TYPE,
    EVENT_STEP,
    EVENT_METADATA,
    EVENT_TIMESTAMP,
    EVENT_DURATION,
    EVENT_ARGUMENTS,
};

static int event_type_of(PyObject *value, int *type) {
    struct mu_py_text text;
    if (mu_py_utf8(value, "event_type", &text) < 0) {
        return -1;
    }
    *type = mu_event_from_name(text.bytes, (size_t)text.length);
    if (*type == 0) {
        PyErr_Format(PyExc_ValueError,
                     "event_type must be START, END, INSTANT, COUNTER, ASYNC_START, ASYNC_END, "
                     "FLOW_START or FLOW_END, not %R",
                     value);
        return -1;
    }
    return 0;
}

static int optional_ns(const char *name, PyObject *value, bool *given, int64_t *out) {
    *given = value != NULL && value != Py_None;
    return *given ? mu_py_int64(value, name, out) : 0;
}

static void set_texts(struct mu_event *event, const struct mu_py_text *name,
                      const struct mu_py_text *metadata) {
    event->name = name->bytes;
    event->name_length = (size_t)name->length;
    event->metadata = metadata->bytes;
    event->metadata_length = (size_t)metadata->length;
}

static int fill_event(PyObject *const *values, struct mu_event *event) {
    struct mu_py_text name, metadata = {"", 0};
    if (mu_py_utf8(values[EVENT_NAME], "name", &name) < 0 ||
        event_type_of(values[EVENT_TYPE], &event->type) < 0 ||
        (values[EVENT_STEP] != NULL && values[EVENT_STEP] != Py_None &&
         mu_py_int64(values[EVENT_STEP], "step", &event->step) < 0) ||
        (values[EVENT_METADATA] != NULL &&
         mu_py_utf8(values[EVENT_METADATA], "metadata", &metadata) < 0) ||
        optional_ns("timestamp_ns", values[EVENT_TIMESTAMP], &event->has_time, &event->real_ns) <
            0 ||
        optional_ns("duration_ns", values[EVENT_DURATION], &event->has_duration,
                    &event->duration_ns) < 0) {
        return -1;
    }
    set_texts(event, &name, &metadata);
    return 0;
}

static PyObject *log_event(PyObject *module, PyObject *const *args, Py_ssize_t count,
                           PyObject *keywords) {
    static const char *const names[] = {"name",         "event_type",  "step", "metadata",
                                        "timestamp_ns", "duration_ns", NULL};
    static const struct mu_py_signature signature = {"log_event", names, 2, EVENT_ARGUMENTS};
    PyObject *values[EVENT_ARGUMENTS];
    struct mu_event event = {0};
    struct mu_state *state = mu_state_of(module);
    if (mu_py_bind(&signature, args, count, keywords, values) < 0 ||
        mu_py_recorder(state) == NULL) {
        return NULL;
    }
    event.step = current_step(state);
    if (fill_event(values, &event) < 0) {
        return NULL;
    }
    record(state, &event);
    Py_RETURN_NONE;
}

/* --- log_plain_event ---------------------------------------------------------------------- */

/* The limits of my_utils/record/log/: within the first, times and the offset that is added to them
 * stay in 64 bits; before the second, in the year 2000, a time is worth a warning. */
static const int64_t time_ns_max = INT64_C(1) << 62;
static const int64_t earliest_likely_ns = INT64_C(946684800) * 1000000000;

enum { MANTISSA_BITS = 53, UNIT_BITS = 30 };

static const int64_t second_ns = 1000000000, millisecond_ns = 1000000; /* below 2^UNIT_BITS */

/* Units of `unit_ns` nanoseconds, rounded once, to the nearest (a tie to even). False where that is
 * above time_ns_max, or no number. */
static bool ns_of_double(double value, int64_t unit_ns, int64_t *out) {
    if (!isfinite(value)) {
        return false;
    }
    int exponent;
    int64_t mantissa = (int64_t)ldexp(frexp(value, &exponent), MANTISSA_BITS);
    int shift = MANTISSA_BITS - exponent; /* value = mantissa / 2^shift */
    if (shift < 1) {
        return false;
    }
    if (shift > MANTISSA_BITS + UNIT_BITS + 1) {
        *out = 0; /* less than half of one */
        return true;
    }
    __int128 product = (__int128)mantissa * unit_ns, one = (__int128)1 << shift;
    __int128 ns = product >> shift, rest = product - ns * one;
    ns += rest > one / 2 || (rest == one / 2 && (ns & 1) != 0);
    *out = (int64_t)ns;
    return ns >= -time_ns_max && ns <= time_ns_max;
}

static bool plain_int(PyObject *value, int64_t *out) {
    int overflow = 0;
    if (!PyLong_CheckExact(value)) {
        return false;
    }
    *out = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0;
}

/* None leaves `*given` false. */
static bool plain_ns(PyObject *value, int64_t unit_ns, bool *given, int64_t *out) {
    *given = value != Py_None;
    if (!*given) {
        return true;
    }
    if (PyFloat_CheckExact(value)) {
        return ns_of_double(PyFloat_AS_DOUBLE(value), unit_ns, out);
    }
    return plain_int(value, out) && !__builtin_mul_overflow(*out, unit_ns, out) &&
           *out >= -time_ns_max && *out <= time_ns_max;
}

/* False, without an exception, for what is no str, and for one that UTF-8 cannot hold. */
static bool plain_text(PyObject *value, struct mu_py_text *out) {
    if (!PyUnicode_CheckExact(value)) {
        return false;
    }
    out->bytes = PyUnicode_AsUTF8AndSize(value, &out->length);
    if (out->bytes == NULL) {
        PyErr_Clear();
    }
    return out->bytes != NULL;
}

/* As plain_text, and without a line end; None is empty. */
static bool plain_metadata(PyObject *value, struct mu_py_text *out) {
    *out = (struct mu_py_text){"", 0};
    return value == Py_None ||
           (plain_text(value, out) && memchr(out->bytes, '\n', (size_t)out->length) == NULL &&
            memchr(out->bytes, '\r', (size_t)out->length) == NULL);
}

enum plain_argument {
    PLAIN_TIMESTAMP,
    PLAIN_STEP,
    PLAIN_NAME,
    PLAIN_TYPE,
    PLAIN_DURATION_MS,
    PLAIN_METADATA,
    PLAIN_TIMESTAMP_NS,
    PLAIN_ARGUMENTS,
};

/* False, without an exception, where an argument is of a rarer kind, or wrong. */
static bool fill_plain(PyObject *const *values, struct mu_event *event) {
    struct mu_py_text name, type, metadata;
    bool in_ns = values[PLAIN_TIMESTAMP_NS] != Py_None;
    PyObject *time = values[in_ns ? PLAIN_TIMESTAMP_NS : PLAIN_TIMESTAMP];
    if ((in_ns && !PyLong_CheckExact(time)) ||
        !plain_ns(time, in_ns ? 1 : second_ns, &event->has_time, &event->real_ns) ||
        (event->has_time && event->real_ns < earliest_likely_ns) ||
        !plain_ns(values[PLAIN_DURATION_MS], millisecond_ns, &event->has_duration,
                  &event->duration_ns) ||
        (values[PLAIN_STEP] != Py_None && !plain_int(values[PLAIN_STEP], &event->step)) ||
        !plain_text(values[PLAIN_NAME], &name) || !plain_text(values[PLAIN_TYPE], &type) ||
        !plain_metadata(values[PLAIN_METADATA], &metadata)) {
        return false;
    }
    event->type = mu_event_from_name(type.bytes, (size_t)type.length);
    set_texts(event, &name, &metadata);
    return event->type != 0;
}

/* The arguments are those of GlobalLogger.log_profile_event, all by position. False where nothing
 * was recorded: Python looks at them then. */
static PyObject *log_plain_event(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    struct mu_event event = {0};
    struct mu_state *state = mu_state_of(module);
    if (count != PLAIN_ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "log_plain_event() takes %d arguments, not %zd",
                     PLAIN_ARGUMENTS, count);
        return NULL;
    }
    if (mu_py_recorder(state) == NULL) {
        return NULL;
    }
    event.step = current_step(state);
    if (!fill_plain(args, &event)) {
        Py_RETURN_FALSE;
    }
    record(state, &event);
    Py_RETURN_TRUE;
}

static PyMethodDef methods[] = {
    {"log_event", (PyCFunction)(void (*)(void))log_event, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"log_plain_event", (PyCFunction)(void (*)(void))log_plain_event, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

/* The keys of metadata that have a meaning to the readers. */
static PyObject *metadata_keys(void) {
    PyObject *keys = PyFrozenSet_New(NULL);
    for (int i = 0; keys != NULL && i < MU_METADATA_KEY_COUNT; i++) {
        PyObject *key = PyUnicode_FromString(mu_metadata_keys[i].name);
        if (key == NULL || PySet_Add(keys, key) < 0) {
            Py_CLEAR(keys);
        }
        Py_XDECREF(key);
    }
    return keys;
}

int mu_py_events_exec(PyObject *module) {
    PyObject *keys = metadata_keys();
    int code = PyModule_AddObjectRef(module, "METADATA_KEYS", keys);
    Py_XDECREF(keys);
    return code < 0 ? -1 : PyModule_AddFunctions(module, methods);
}
