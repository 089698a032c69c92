/* Requests from other processes: at set_step a job reads what its control file asks for. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>

#include "core/args.h"
#include "process_stacks/py_process_stacks.h"
#include "stages/recorder_state.h"

PyDoc_STRVAR(set_step_hook_doc,
             "set_step_hook($module, hook, /)\n--\n\n"
             "The callable(timer, step) that hears of requests, or None for nobody.\n\n"
             "It is called by set_step() while a text of the control file waits, or after\n"
             "watch_steps(True). What it raises, set_step() raises.");

static PyObject *set_step_hook(PyObject *module, PyObject *hook) {
    struct mu_state *state = mu_state_of(module);
    if (hook != Py_None && !PyCallable_Check(hook)) {
        PyErr_Format(PyExc_TypeError, "hook must be callable or None, not %.100s",
                     Py_TYPE(hook)->tp_name);
        return NULL;
    }
    mu_py_shared_set(&state->lock, &state->step_hook, hook == Py_None ? NULL : Py_NewRef(hook));
    mu_py_listen(state);
    Py_RETURN_NONE;
}

static const char *const troubles[] = {
    [MU_CONTROL_FINE] = "",
    [MU_CONTROL_STRANGER] = "stranger",
    [MU_CONTROL_WRITABLE] = "writable",
    [MU_CONTROL_TOO_LARGE] = "too_large",
    [MU_CONTROL_NOT_A_FILE] = "not_a_file",
    [MU_CONTROL_UNREADABLE] = "unreadable",
};

PyDoc_STRVAR(take_control_doc,
             "take_control($module, /)\n--\n\n"
             "A text of the control file that waits: (bytes, trouble, at_start), or None.\n\n"
             "trouble: '' for none, else 'stranger', 'writable', 'too_large', 'not_a_file' or\n"
             "'unreadable'; at_start: the file was there when the log directory was opened.");

static PyObject *take_control(PyObject *module, PyObject *Py_UNUSED(ignored)) {
    struct mu_recorder *recorder = mu_py_recorder(mu_state_of(module));
    struct mu_control_text text;
    if (recorder == NULL) {
        return NULL;
    }
    mu_recorder_check_fork(recorder);
    if (!mu_control_take(&recorder->control, &text)) {
        Py_RETURN_NONE;
    }
    PyObject *found =
        Py_BuildValue("(y#sO)", text.bytes == NULL ? "" : text.bytes, (Py_ssize_t)text.length,
                      troubles[text.trouble], text.at_start ? Py_True : Py_False);
    free(text.bytes);
    return found;
}

PyDoc_STRVAR(watch_steps_doc, "watch_steps($module, watch, /)\n--\n\n"
                              "Whether the step hook is called at every set_step().");

static PyObject *watch_steps(PyObject *module, PyObject *watch) {
    struct mu_recorder *recorder = mu_py_recorder(mu_state_of(module));
    int on;
    if (recorder == NULL || mu_py_bool(watch, "watch", &on) < 0) {
        return NULL;
    }
    mu_recorder_check_fork(recorder);
    mu_control_watch_steps(&recorder->control, on != 0);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_step_hook", set_step_hook, METH_O, set_step_hook_doc},
    {"take_control", take_control, METH_NOARGS, take_control_doc},
    {"watch_steps", watch_steps, METH_O, watch_steps_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_control_exec(PyObject *module) {
    return PyModule_AddFunctions(module, methods);
}
