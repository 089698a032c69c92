/* The exceptions of the module, and the way from an error of the engine to one of them. */
#include "core/args.h"
#include "core/state.h"

#include <string.h>

int mu_py_errors_exec(PyObject *module) {
    struct mu_state *state = mu_state_of(module);
    state->format_error = PyErr_NewExceptionWithDoc(
        "my_utils._core.FormatError",
        "A file is not what it should be: foreign, cut, broken, or written by a newer version.",
        PyExc_ValueError, NULL);
    if (state->format_error == NULL) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "FormatError", state->format_error);
}

PyObject *mu_py_message(const char *message) {
    return PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "backslashreplace");
}

static void set_error(PyObject *type, const char *message) {
    PyObject *text = mu_py_message(message);
    if (text != NULL) {
        PyErr_SetObject(type, text);
        Py_DECREF(text);
    }
}

/* This function finds the module by its name, so that its callers need not pass the module's
 * state. */
static void raise_format(const struct mu_error *err) {
    PyObject *module = PyImport_ImportModule(mu_module.m_name);
    if (module == NULL) {
        return;
    }
    set_error(mu_state_of(module)->format_error, err->message);
    Py_DECREF(module);
}

static void raise_io(const struct mu_error *err) {
    if (err->sys_errno == 0) {
        set_error(PyExc_OSError, err->message);
        return;
    }
    PyObject *args = Py_BuildValue("(iN)", err->sys_errno, mu_py_message(err->message));
    if (args != NULL) {
        PyErr_SetObject(PyExc_OSError, args);
        Py_DECREF(args);
    }
}

PyObject *mu_py_raise(const struct mu_error *err) {
    switch (err->code) {
    case MU_ERR_ARGUMENT:
        set_error(PyExc_ValueError, err->message);
        break;
    case MU_ERR_NO_MEMORY:
        set_error(PyExc_MemoryError, err->message);
        break;
    case MU_ERR_IO:
        raise_io(err);
        break;
    case MU_ERR_FORMAT:
    case MU_ERR_VERSION:
        raise_format(err);
        break;
    case MU_ERR_STOPPED: /* by a signal, whose handler has raised, or by another thread */
        if (!PyErr_Occurred()) {
            set_error(PyExc_RuntimeError, err->message);
        }
        break;
    default:
        set_error(PyExc_RuntimeError, err->message);
        break;
    }
    return NULL;
}
