#include "py_measure.h"

#include <stddef.h>

#include "tensor_batch.h"

/* Of a tensor on a GPU whose kernels cannot be used, by a copy of it on the CPU. */
static int measure_copy(struct mu_state *state, const struct mu_py_measure *measure,
                        const struct mu_py_tensor *tensor, void *fact) {
    struct mu_py_tensor copy;
    if (mu_py_tensor_copy_to_cpu(state, "tensors", tensor, &copy) < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS;
    measure->measure(&copy.view, fact);
    Py_END_ALLOW_THREADS;
    mu_py_tensor_release(&copy);
    return 0;
}

static void *fact_at(const struct mu_py_measure *measure, void *facts, int64_t place) {
    return (char *)facts + (size_t)place * measure->fact_bytes;
}

/* Of those that are on a GPU. */
static int measure_cuda(struct mu_state *state, const struct mu_py_measure *measure,
                        const struct mu_py_tensor *items, Py_ssize_t count, void *facts) {
    int done = mu_py_gpu_results(state, measure->gpu, items, count, facts, measure->fact_bytes);
    for (Py_ssize_t i = 0; done == 0 && i < count; i++) {
        if (items[i].view.device != MU_DEVICE_CPU &&
            measure_copy(state, measure, &items[i], fact_at(measure, facts, i)) < 0) {
            return -1;
        }
    }
    return done < 0 ? -1 : 0;
}

/* --- one tensor --------------------------------------------------------------------------- */

static int measure_one(struct mu_state *state, const struct mu_py_measure *measure,
                       const struct mu_py_tensor *tensor, void *fact) {
    if (tensor->view.device != MU_DEVICE_CPU) {
        return measure_cuda(state, measure, tensor, 1, fact);
    }
    if (mu_tensor_bytes(&tensor->view) <= MU_PY_GIL_BYTES) {
        measure->measure(&tensor->view, fact);
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS;
    measure->measure(&tensor->view, fact);
    Py_END_ALLOW_THREADS;
    return 0;
}

static PyObject *result_of(struct mu_state *state, const struct mu_py_measure *measure,
                           PyObject *object) {
    struct mu_py_tensor tensor;
    _Alignas(max_align_t) char fact[MU_PY_FACT_BYTES];
    PyObject *result = NULL;
    if (mu_py_tensor_view(state, object, "tensors", &tensor) < 0) {
        return NULL;
    }
    if (measure_one(state, measure, &tensor, fact) == 0) {
        result = measure->result(state, &tensor.view, fact);
    }
    mu_py_tensor_release(&tensor);
    return result;
}

/* --- many --------------------------------------------------------------------------------- */

struct facts {
    const struct mu_py_measure *measure;
    const struct mu_tensor **views; /* owned: those on the CPU */
    int64_t *places;                /* owned: of the views among all */
    void *facts;                    /* owned: of all */
    int64_t on_cpu;
};

static void measure_view(const struct mu_tensor *tensor, int64_t index, void *context) {
    const struct facts *facts = context;
    facts->measure->measure(tensor, fact_at(facts->measure, facts->facts, facts->places[index]));
}

static int make_facts(struct facts *facts, const struct mu_py_tensors *tensors) {
    size_t count = (size_t)tensors->count + 1;
    facts->views = PyMem_New(const struct mu_tensor *, count);
    facts->places = PyMem_New(int64_t, count);
    facts->facts = PyMem_Calloc(count, facts->measure->fact_bytes);
    if (facts->views == NULL || facts->places == NULL || facts->facts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < tensors->count; i++) {
        if (tensors->items[i].view.device == MU_DEVICE_CPU) {
            facts->places[facts->on_cpu] = i;
            facts->views[facts->on_cpu++] = &tensors->items[i].view;
        }
    }
    return 0;
}

static void free_facts(struct facts *facts) {
    PyMem_Free((void *)facts->views);
    PyMem_Free(facts->places);
    PyMem_Free(facts->facts);
}

static int measure_all(struct mu_state *state, struct facts *facts,
                       const struct mu_py_tensors *tensors) {
    if (tensors->total_bytes <= MU_PY_GIL_BYTES) {
        mu_tensors_each(facts->views, facts->on_cpu, measure_view, facts);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        mu_tensors_each(facts->views, facts->on_cpu, measure_view, facts);
        Py_END_ALLOW_THREADS;
    }
    return tensors->on_cuda
               ? measure_cuda(state, facts->measure, tensors->items, tensors->count, facts->facts)
               : 0;
}

static PyObject *list_results(struct mu_state *state, const struct facts *facts,
                              const struct mu_py_tensors *tensors) {
    PyObject *list = PyList_New(tensors->count);
    for (Py_ssize_t i = 0; list != NULL && i < tensors->count; i++) {
        PyObject *result = facts->measure->result(state, &tensors->items[i].view,
                                                  fact_at(facts->measure, facts->facts, i));
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
    struct facts facts = {.measure = measure};
    PyObject *list = NULL;
    if (mu_py_tensors_view(state, objects, "tensors", &tensors) < 0) {
        return NULL;
    }
    if (make_facts(&facts, &tensors) == 0 && measure_all(state, &facts, &tensors) == 0) {
        list = list_results(state, &facts, &tensors);
    }
    free_facts(&facts);
    mu_py_tensors_release(&tensors);
    return list;
}

PyObject *mu_py_measure(PyObject *module, const struct mu_py_measure *measure, PyObject *tensors) {
    struct mu_state *state = mu_state_of(module);
    bool is_list = PyList_Check(tensors) || PyTuple_Check(tensors);
    return is_list ? results_of(state, measure, tensors) : result_of(state, measure, tensors);
}
