#include "tensor/py_measure.h"

#include <stddef.h>

#include "tensor/tensor_batch.h"

/* Measures a copy on the CPU, for a tensor on a GPU whose kernels cannot be used. */
static int measure_copy(struct mu_state *state, const struct mu_py_measure *measure,
                        const struct mu_py_tensor *tensor, void *value) {
    struct mu_py_tensor copy;
    if (mu_py_tensor_copy_to_cpu(state, "tensors", tensor, &copy) < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS;
    measure->measure(&copy.view, value);
    Py_END_ALLOW_THREADS;
    mu_py_tensor_release(&copy);
    return 0;
}

static void *value_at(const struct mu_py_measure *measure, void *values, int64_t place) {
    return (char *)values + (size_t)place * measure->value_bytes;
}

/* Of those that are on a GPU. */
static int measure_cuda(struct mu_state *state, const struct mu_py_measure *measure,
                        const struct mu_py_tensor *items, Py_ssize_t count, void *values) {
    int done = mu_py_gpu_results(state, measure->gpu, items, count, values, measure->value_bytes);
    for (Py_ssize_t i = 0; done == 0 && i < count; i++) {
        if (items[i].view.device != MU_DEVICE_CPU &&
            measure_copy(state, measure, &items[i], value_at(measure, values, i)) < 0) {
            return -1;
        }
    }
    return done < 0 ? -1 : 0;
}

/* --- one tensor --------------------------------------------------------------------------- */

static int measure_one(struct mu_state *state, const struct mu_py_measure *measure,
                       const struct mu_py_tensor *tensor, void *value) {
    if (tensor->view.device != MU_DEVICE_CPU) {
        return measure_cuda(state, measure, tensor, 1, value);
    }
    if (mu_tensor_bytes(&tensor->view) <= MU_PY_GIL_BYTES) {
        measure->measure(&tensor->view, value);
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS;
    measure->measure(&tensor->view, value);
    Py_END_ALLOW_THREADS;
    return 0;
}

static PyObject *result_of(struct mu_state *state, const struct mu_py_measure *measure,
                           PyObject *object) {
    struct mu_py_tensor tensor;
    _Alignas(max_align_t) char value[MU_PY_VALUE_BYTES];
    PyObject *result = NULL;
    if (mu_py_tensor_view(state, object, "tensors", &tensor) < 0) {
        return NULL;
    }
    if (measure_one(state, measure, &tensor, value) == 0) {
        result = measure->result(state, &tensor.view, value);
    }
    mu_py_tensor_release(&tensor);
    return result;
}

/* --- many --------------------------------------------------------------------------------- */

struct batch {
    const struct mu_py_measure *measure;
    const struct mu_tensor **views; /* owned: those on the CPU */
    int64_t *places;                /* owned: of the views among all */
    void *values;                   /* owned: of all */
    int64_t on_cpu;
};

static void measure_view(const struct mu_tensor *tensor, int64_t index, void *context) {
    const struct batch *batch = context;
    batch->measure->measure(tensor, value_at(batch->measure, batch->values, batch->places[index]));
}

static int make_batch(struct batch *batch, const struct mu_py_tensors *tensors) {
    size_t count = (size_t)tensors->count + 1;
    batch->views = PyMem_New(const struct mu_tensor *, count);
    batch->places = PyMem_New(int64_t, count);
    batch->values = PyMem_Calloc(count, batch->measure->value_bytes);
    if (batch->views == NULL || batch->places == NULL || batch->values == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < tensors->count; i++) {
        if (tensors->items[i].view.device == MU_DEVICE_CPU) {
            batch->places[batch->on_cpu] = i;
            batch->views[batch->on_cpu++] = &tensors->items[i].view;
        }
    }
    return 0;
}

static void free_batch(struct batch *batch) {
    PyMem_Free((void *)batch->views);
    PyMem_Free(batch->places);
    PyMem_Free(batch->values);
}

static int measure_all(struct mu_state *state, struct batch *batch,
                       const struct mu_py_tensors *tensors) {
    if (tensors->total_bytes <= MU_PY_GIL_BYTES) {
        mu_tensors_each(batch->views, batch->on_cpu, measure_view, batch);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        mu_tensors_each(batch->views, batch->on_cpu, measure_view, batch);
        Py_END_ALLOW_THREADS;
    }
    return tensors->on_cuda
               ? measure_cuda(state, batch->measure, tensors->items, tensors->count, batch->values)
               : 0;
}

static PyObject *list_results(struct mu_state *state, const struct batch *batch,
                              const struct mu_py_tensors *tensors) {
    PyObject *list = PyList_New(tensors->count);
    for (Py_ssize_t i = 0; list != NULL && i < tensors->count; i++) {
        PyObject *result = batch->measure->result(state, &tensors->items[i].view,
                                                  value_at(batch->measure, batch->values, i));
        if (result == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, result);
        }
    }
    return list;
}

static PyObject *results_of(struct mu_state *state, const struct mu_py_measure *measure,
                            PyObject *objects) {
    struct mu_py_tensors tensors;
    struct batch batch = {.measure = measure};
    PyObject *list = NULL;
    if (mu_py_tensors_view(state, objects, "tensors", &tensors) < 0) {
        return NULL;
    }
    if (make_batch(&batch, &tensors) == 0 && measure_all(state, &batch, &tensors) == 0) {
        list = list_results(state, &batch, &tensors);
    }
    free_batch(&batch);
    mu_py_tensors_release(&tensors);
    return list;
}

PyObject *mu_py_measure(PyObject *module, const struct mu_py_measure *measure, PyObject *tensors) {
    struct mu_state *state = mu_state_of(module);
    bool is_list = PyList_Check(tensors) || PyTuple_Check(tensors);
    return is_list ? results_of(state, measure, tensors) : result_of(state, measure, tensors);
}
