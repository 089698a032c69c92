#include "core/warnings.h"

#include "core/args.h"

void mu_py_warn(struct mu_state *state, const char *kind, const char *message) {
    mu_py_warn_by(state, NULL, kind, message);
}

void mu_py_warn_by(struct mu_state *state, PyObject *logger, const char *kind,
                   const char *message) {
    PyObject *hook = mu_py_shared_get(&state->lock, &state->warning_hook);
    if (hook == NULL) {
        return;
    }
    PyObject *error_type, *error, *traceback;
    PyErr_Fetch(&error_type, &error, &traceback);
    PyObject *text = mu_py_message(message);
    PyObject *result = logger == NULL ? PyObject_CallFunction(hook, "sN", kind, text)
                                      : PyObject_CallFunction(hook, "sNO", kind, text, logger);
    if (result == NULL) {
        PyErr_WriteUnraisable(hook);
    }
    Py_XDECREF(result);
    Py_DECREF(hook);
    PyErr_Restore(error_type, error, traceback);
}
