/* The function md5. */
#include "core/args.h"
#include "core/state.h"
#include "hash/md5.h"
#include "tensor/py_tensor.h"

/* The copying waits for the GPU. */
static int all_to_cpu(struct mu_state *state, struct mu_py_tensors *tensors) {
    for (Py_ssize_t i = 0; tensors->on_cuda && i < tensors->count; i++) {
        if (mu_py_tensor_to_cpu(state, "tensors", &tensors->items[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *hex_text(const uint8_t digest[MU_MD5_BYTES]) {
    PyObject *text = PyUnicode_New(2 * MU_MD5_BYTES, 127);
    if (text == NULL) {
        return NULL;
    }
    Py_UCS1 *to = PyUnicode_1BYTE_DATA(text);
    for (int i = 0; i < MU_MD5_BYTES; i++) {
        *to++ = (Py_UCS1) "0123456789abcdef"[digest[i] >> 4];
        *to++ = (Py_UCS1) "0123456789abcdef"[digest[i] & 15];
    }
    return text;
}

static PyObject *hex_texts(const struct mu_md5_job *jobs, Py_ssize_t count) {
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *text = hex_text(jobs[i].digest);
        if (text == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, text);
        }
    }
    return list;
}

static int run_jobs(struct mu_md5_job *jobs, const struct mu_py_tensors *tensors) {
    for (Py_ssize_t i = 0; i < tensors->count; i++) {
        jobs[i].tensor = &tensors->items[i].view;
    }
    struct mu_error err;
    int code;
    if (tensors->total_bytes < MU_PY_GIL_BYTES) {
        code = mu_md5_batch(jobs, (size_t)tensors->count, &err);
    } else {
        Py_BEGIN_ALLOW_THREADS code = mu_md5_batch(jobs, (size_t)tensors->count, &err);
        Py_END_ALLOW_THREADS
    }
    if (code != MU_OK) {
        mu_py_raise(&err);
        return -1;
    }
    return 0;
}

static PyObject *digests_of(const struct mu_py_tensors *tensors) {
    struct mu_md5_job one;
    struct mu_md5_job *jobs = &one;
    PyObject *result = NULL;
    if (tensors->is_list) {
        jobs = PyMem_New(struct mu_md5_job, (size_t)(tensors->count > 0 ? tensors->count : 1));
        if (jobs == NULL) {
            return PyErr_NoMemory();
        }
    }
    if (run_jobs(jobs, tensors) == 0) {
        result = tensors->is_list ? hex_texts(jobs, tensors->count) : hex_text(one.digest);
    }
    if (jobs != &one) {
        PyMem_Free(jobs);
    }
    return result;
}

PyDoc_STRVAR(
    md5_doc,
    "md5(tensors, /)\n--\n\n"
    "MD5 of the row-major bytes of each tensor, in hexadecimal: what\n"
    "``hashlib.md5(t.detach().cpu().contiguous().numpy().tobytes()).hexdigest()`` gives,\n"
    "for every dtype.\n\n"
    "tensors: one tensor gives a ``str``, a list or tuple of them a ``list`` in the same\n"
    "order. Give many at once: they go through the processor's vectors side by side, at\n"
    "more than eight times the speed of one after the other, and over torch's threads.\n"
    "Dtype and shape are not part of the digest.\n\n"
    "Tensors in memory are read where they lie, whatever their strides. Those on a GPU\n"
    "are copied to the CPU first, all of them, which waits for the GPU; `tensor_hash` does\n"
    "not. The GIL is released when there is much to do; nobody may write to the tensors\n"
    "meanwhile. Thread-safe. TypeError for what is not a tensor or has no memory, MemoryError.\n"
    "\n"
    ">>> import numpy\n"
    ">>> from my_utils.tensors import md5\n"
    ">>> md5(numpy.zeros(0))\n"
    "'d41d8cd98f00b204e9800998ecf8427e'\n"
    ">>> len(md5([numpy.zeros(3), b\"abc\"]))\n"
    "2");

static PyObject *md5(PyObject *module, PyObject *argument) {
    struct mu_state *state = mu_state_of(module);
    struct mu_py_tensors tensors;
    if (mu_py_tensors_view(state, argument, "tensors", &tensors) < 0) {
        return NULL;
    }
    PyObject *result = all_to_cpu(state, &tensors) < 0 ? NULL : digests_of(&tensors);
    mu_py_tensors_release(&tensors);
    return result;
}

static PyMethodDef functions[] = {
    {"md5", md5, METH_O, md5_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_md5_exec(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
