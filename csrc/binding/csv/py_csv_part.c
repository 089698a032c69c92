/* Parts of profile CSVs, from tuples. */
#include "csv/py_csv_part.h"

int mu_py_csv_part(PyObject *tuple, struct mu_csv_input *input, PyObject **name) {
    PyObject *given, *data;
    long long limit;
    int fd, has_header;
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 5) {
        PyErr_Format(PyExc_TypeError, "parts must hold tuples of five, not %.200R", tuple);
        return -1;
    }
    if (!PyArg_ParseTuple(tuple, "OiLOp:part", &given, &fd, &limit, &data, &has_header)) {
        return -1;
    }
    if (fd < 0 && !PyBytes_Check(data)) {
        PyErr_Format(PyExc_TypeError, "a part without a file must have bytes, not %.200R", data);
        return -1;
    }
    if (mu_py_path(given, "the name of a part", name) < 0) {
        return -1;
    }
    input->name = PyBytes_AS_STRING(*name);
    input->fd = fd;
    input->limit = limit < 0 ? UINT64_MAX : (uint64_t)limit;
    input->has_header = has_header;
    if (fd < 0) {
        input->data = PyBytes_AS_STRING(data);
        input->length = (size_t)PyBytes_GET_SIZE(data);
    }
    return 0;
}

int mu_py_signal_raised(void *context) {
    struct mu_py_wait *wait = context;
    PyEval_RestoreThread(wait->saved);
    int raised = PyErr_CheckSignals() < 0;
    wait->saved = PyEval_SaveThread();
    return raised;
}

int mu_py_add_error(PyObject *errors, const struct mu_error *err) {
    return mu_py_append_new(errors, mu_py_message(err->message));
}
