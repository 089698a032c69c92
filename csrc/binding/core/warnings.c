#include "core/warnings.h"

#include "core/args.h"

void mu_py_warn(struct mu_state *state, const char *kind, const char *message) {
    mu_py_warn_by(state, NULL, kind, message);
}

void mu_py_warn_by(struct mu_state *state, PyObject *logger, const char *kind,
                   const char *message) {
    if (state->warning_hook == NULL) {
        return;
    }
    PyObject *error_type, *error, *traceback;
    PyErr_Fetch(&error_type, &error, &traceback);
    PyObject *text = mu_py_message(message);
    PyObject *result = logger == NULL
                           ? PyObject_CallFunction(state->warning_hook, "sN", kind, text)
                           : PyObject_CallFunction(state->warning_hook, "sNO", kind, text, logger);
    if (result == NULL) {
        PyErr_WriteUnraisable(state->warning_hook);
    }
    Py_XDECREF(result);
    PyErr_Restore(error_type, error, traceback);
}
