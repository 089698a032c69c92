#include "core/warnings.h"

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
    PyObject *result =
        logger == NULL ? PyObject_CallFunction(state->warning_hook, "ss", kind, message)
                       : PyObject_CallFunction(state->warning_hook, "ssO", kind, message, logger);
    if (result == NULL) {
        PyErr_WriteUnraisable(state->warning_hook);
    }
    Py_XDECREF(result);
    PyErr_Restore(error_type, error, traceback);
}
