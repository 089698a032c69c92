#include "run/py_batches.h"

#include "run/py_counter.h"

enum { TEXT_BYTES = 64 };

int mu_py_batches_know(struct mu_py_batches *self, PyObject *tensor_type, PyObject *first,
                       PyObject *second) {
    PyObject *shape = PyUnicode_InternFromString("shape");
    PyObject *dtype = PyUnicode_InternFromString("dtype");
    if (shape == NULL || dtype == NULL) {
        Py_XDECREF(shape);
        Py_XDECREF(dtype);
        return -1;
    }
    Py_XSETREF(self->shape, shape);
    Py_XSETREF(self->dtype, dtype);
    Py_XSETREF(self->tensor_type, Py_NewRef(tensor_type));
    Py_XSETREF(self->whole_types[0], Py_NewRef(first));
    Py_XSETREF(self->whole_types[1], Py_NewRef(second));
    return 0;
}

/* --- sizes -------------------------------------------------------------------------------- */

static bool holds_tokens(const struct mu_py_batches *self, PyObject *tensor) {
    PyObject *type = PyObject_GetAttr(tensor, self->dtype);
    bool yes = type != NULL && (type == self->whole_types[0] || type == self->whole_types[1]);
    Py_XDECREF(type);
    return yes;
}

static bool size_of_shape(const struct mu_py_batches *self, PyObject *tensor, PyObject *shape,
                          struct mu_py_batch_size *out) {
    Py_ssize_t dimensions = PyTuple_GET_SIZE(shape);
    if (dimensions == 0) {
        return true;
    }
    out->samples = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, 0));
    if (dimensions == 2 && holds_tokens(self, tensor)) {
        out->tokens = out->samples * PyLong_AsLongLong(PyTuple_GET_ITEM(shape, 1));
    }
    return !PyErr_Occurred();
}

static bool size_of_tensor(const struct mu_py_batches *self, PyObject *tensor,
                           struct mu_py_batch_size *out) {
    PyObject *shape = PyObject_GetAttr(tensor, self->shape);
    bool known = shape != NULL && PyTuple_Check(shape) && size_of_shape(self, tensor, shape, out);
    Py_XDECREF(shape);
    PyErr_Clear();
    return known;
}

/* A new reference; NULL without an exception for an empty one. */
static PyObject *first_of(PyObject *batch) {
    if (PyList_CheckExact(batch)) {
        PyObject *first = PyList_GET_SIZE(batch) > 0 ? mu_py_list_item(batch, 0) : NULL;
        PyErr_Clear();
        return first;
    }
    if (PyTuple_Check(batch)) {
        return PyTuple_GET_SIZE(batch) > 0 ? Py_NewRef(PyTuple_GET_ITEM(batch, 0)) : NULL;
    }
    return Py_NewRef(batch);
}

static struct mu_py_batch_size sum_of(struct mu_py_batch_size a, struct mu_py_batch_size b) {
    return (struct mu_py_batch_size){a.samples + b.samples, a.tokens + b.tokens};
}

void mu_py_batches_put(struct mu_py_batches *self, struct mu_py_batch_size size) {
    self->since_step = sum_of(self->since_step, self->newest);
    self->newest = size;
}

bool mu_py_batches_add(struct mu_py_batches *self, PyObject *batch) {
    struct mu_py_batch_size size = {0, 0};
    PyObject *first = first_of(batch);
    bool known = first != NULL && (PyObject *)Py_TYPE(first) == self->tensor_type &&
                 size_of_tensor(self, first, &size);
    if (known) {
        mu_py_batches_put(self, size);
    }
    Py_XDECREF(first);
    return known;
}

/* --- rows --------------------------------------------------------------------------------- */

void mu_py_batches_write(const struct mu_py_batches *self, struct mu_thread_buffer *buffer,
                         int64_t iteration) {
    struct mu_py_batch_size size = self->iteration;
    if (buffer == NULL || iteration < 0 || (size.samples == 0 && size.tokens == 0)) {
        return;
    }
    char text[TEXT_BYTES];
    char *end = mu_py_counter_put(text, "samples=", size.samples);
    if (size.tokens != 0) {
        end = mu_py_counter_put(end, ",tokens=", size.tokens);
    }
    mu_py_counter_write(buffer, "batch", text, end, iteration);
}

void mu_py_batches_step(struct mu_py_batches *self, struct mu_thread_buffer *buffer, bool begins,
                        int64_t iteration) {
    struct mu_py_batch_size added = sum_of(self->since_step, self->newest);
    self->since_step = self->newest = (struct mu_py_batch_size){0, 0};
    if (begins) {
        mu_py_batches_write(self, buffer, iteration - 1);
        self->iteration = added;
    } else {
        self->iteration = sum_of(self->iteration, added);
    }
}

/* --- the collector ------------------------------------------------------------------------ */

int mu_py_batches_traverse(struct mu_py_batches *self, visitproc visit, void *arg) {
    Py_VISIT(self->tensor_type);
    Py_VISIT(self->whole_types[0]);
    Py_VISIT(self->whole_types[1]);
    return 0;
}

void mu_py_batches_clear(struct mu_py_batches *self) {
    Py_CLEAR(self->tensor_type);
    Py_CLEAR(self->whole_types[0]);
    Py_CLEAR(self->whole_types[1]);
    Py_CLEAR(self->shape);
    Py_CLEAR(self->dtype);
}
