/* Runs a function in the main thread, between two of its instructions, as signal handlers run. */
#include "core/state.h"

static int call_pending(void *argument) {
    PyObject *function = argument;
    PyObject *result = PyObject_CallNoArgs(function);
    if (result == NULL) {
        PyErr_WriteUnraisable(function);
    }
    Py_XDECREF(result);
    Py_DECREF(function);
    return 0;
}

static PyObject *call_in_main_thread(PyObject *Py_UNUSED(module), PyObject *function) {
    if (!PyCallable_Check(function)) {
        return PyErr_Format(PyExc_TypeError, "function must be callable, not %.100s (%.200R)",
                            Py_TYPE(function)->tp_name, function);
    }
    if (Py_AddPendingCall(call_pending, Py_NewRef(function)) < 0) {
        Py_DECREF(function);
        PyErr_SetString(PyExc_RuntimeError, "too many calls wait for the main thread");
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(call_doc,
             "call_in_main_thread(function, /)\n--\n\n"
             "Has the main thread call the function soon, and returns at once. What it raises is\n"
             "reported as unraisable. TypeError for what cannot be called; RuntimeError when too\n"
             "many calls wait.");

static PyMethodDef functions[] = {
    {"call_in_main_thread", call_in_main_thread, METH_O, call_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_main_thread_exec(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
