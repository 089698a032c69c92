#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "base/digits.h"
#include "base/event.h"
#include "run/py_counter.h"
#include "stages/recorder_state.h"

char *mu_py_counter_put(char *at, const char *key, int64_t value) {
    size_t length = strlen(key);
    memcpy(at, key, length);
    return mu_digits_put_i64(at + length, value);
}

void mu_py_counter_write(struct mu_thread_buffer *buffer, const char *name, const char *text,
                         const char *end, int64_t iteration) {
    struct mu_event event = {
        .type = MU_EVENT_COUNTER,
        .name = name,
        .name_length = strlen(name),
        .metadata = text,
        .metadata_length = (size_t)(end - text),
        .step = iteration,
    };
    mu_py_recording_begin(buffer);
    mu_thread_buffer_event(buffer, &event);
    mu_py_recording_end(buffer);
}
