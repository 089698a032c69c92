#include "tensor/py_tensor.h"

#include <string.h>

#include "base/parallel.h"
#include "core/args.h"

static int not_a_tensor(const char *name, PyObject *object) {
    PyErr_Format(PyExc_TypeError,
                 "%s must be a torch tensor, or an object with the buffer protocol or __dlpack__, "
                 "not %.100s",
                 name, Py_TYPE(object)->tp_name);
    return -1;
}

/* --- DLPack ------------------------------------------------------------------------------- */

#define CELL(NAME, name, kind, bytes, numbers, NUMBER, code, bits)                                 \
    [code][__builtin_ctz(bits)] = 1 + MU_DTYPE_##NAME,

/* By DLPack's code and the logarithm of the bits: 1 and the element type, or 0. */
static const uint8_t dtypes[32][8] = {MU_DTYPES(CELL)};

/* The element type, or -1. */
static int dtype_of(const struct mu_dlpack_tensor *tensor) {
    int dtype = tensor->code < 32 ? dtypes[tensor->code][__builtin_ctz(tensor->bits | 0x80u)] : 0;
    return dtype > 0 && tensor->bits * tensor->lanes == 8 * mu_dtype_info(dtype - 1)->size
               ? dtype - 1
               : -1;
}

/* The device, or -1. */
static int device_of(const struct mu_dlpack_tensor *tensor) {
    switch (tensor->device_type) {
    case MU_DLPACK_CPU:
    case MU_DLPACK_CUDA_HOST:
        return MU_DEVICE_CPU;
    case MU_DLPACK_CUDA:
    case MU_DLPACK_CUDA_MANAGED:
        return MU_DEVICE_CUDA;
    default:
        return -1;
    }
}

static int view_of_dlpack(const struct mu_dlpack_tensor *tensor, const char *name,
                          struct mu_tensor *view) {
    int dtype = dtype_of(tensor);
    int device = device_of(tensor);
    if (dtype < 0) {
        PyErr_Format(PyExc_TypeError,
                     "%s has elements of a type that is not known here (DLPack code %d, %d bits, "
                     "%d lanes)",
                     name, (int)tensor->code, (int)tensor->bits, (int)tensor->lanes);
        return -1;
    }
    if (device < 0) {
        PyErr_Format(PyExc_TypeError,
                     "%s must be on the CPU or a CUDA device, not on a device of DLPack's type %d",
                     name, (int)tensor->device_type);
        return -1;
    }
    *view = (struct mu_tensor){
        .data = tensor->data == NULL ? NULL : (const char *)tensor->data + tensor->byte_offset,
        .shape = tensor->shape,
        .strides = tensor->strides,
        .ndim = tensor->ndim,
        .dtype = (uint8_t)dtype,
        .device = (uint8_t)device,
        .device_index = (int16_t)tensor->device_id,
    };
    struct mu_error err;
    if (mu_tensor_check(view, &err) != MU_OK) {
        PyErr_Format(PyExc_ValueError, "%s: %s", name, err.message);
        return -1;
    }
    return 0;
}

/* --- torch -------------------------------------------------------------------------------- */

static bool has_elements(const struct mu_dlpack_tensor *tensor) {
    for (int dim = 0; dim < tensor->ndim; dim++) {
        if (tensor->shape[dim] == 0) {
            return false;
        }
    }
    return true;
}

/* From here on an address is one of memory: that of a storage without memory is an offset in bytes,
 * and no tensor has 32 TiB. Asking torch takes half as long as the hash of a small tensor. A large
 * one is asked: the memory behind a storage that was cut may be no process's. */
#define SURELY_MEMORY (UINT64_C(1) << 45)
#define ASKED_BYTES (64 * 1024)

static bool is_surely_memory(const struct mu_tensor *view) {
    return (uintptr_t)view->data >= SURELY_MEMORY && mu_tensor_bytes(view) < ASKED_BYTES;
}

/* The address of the tensor's TensorImpl, a new reference. Python code that may come in between, as
 * __torch_function__ does, is kept out: an address of its making would be read. */
static PyObject *impl_of(struct mu_py_exchange *exchange, PyObject *tensor) {
    PyObject *overridden = PyObject_CallOneArg(exchange->is_overridden, tensor);
    if (overridden == NULL) {
        return NULL;
    }
    PyObject *impl = NULL;
    if (overridden == Py_False) {
        impl = Py_TYPE(exchange->impl)
                   ->tp_descr_get(exchange->impl, tensor, (PyObject *)Py_TYPE(tensor));
    } else {
        PyObject *kinds = PyImport_ImportModule("my_utils.tensors.tensor_kinds");
        impl = kinds == NULL ? NULL : PyObject_CallMethod(kinds, "impl_address", "O", tensor);
        Py_XDECREF(kinds);
    }
    Py_DECREF(overridden);
    return impl;
}

/* 1 when all elements of the view are in memory, else 0; -1 with an exception. */
static int is_in_memory(struct mu_py_exchange *exchange, PyObject *tensor,
                        const struct mu_tensor *view) {
    if (view->elements == 0) {
        return 1;
    }
    PyObject *impl = impl_of(exchange, tensor);
    if (impl == NULL) {
        return -1;
    }
    void *handle = PyLong_AsVoidPtr(impl);
    Py_DECREF(impl);
    if (handle == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    return mu_torch_storage_holds(&exchange->storage, (struct mu_torch_tensor *)&handle, view);
}

/* Calls a method of torch.Tensor that returns a bool. torch's own methods are C functions without
 * arguments; they are called directly, because the checks of a normal call take a tenth of the
 * time. */
static PyObject *ask(PyObject *method, PyObject *tensor) {
    if (Py_IS_TYPE(method, &PyMethodDescr_Type)) {
        const PyMethodDef *function = ((PyMethodDescrObject *)method)->d_method;
        if (function->ml_flags == METH_NOARGS) {
            return function->ml_meth(tensor, NULL);
        }
    }
    return PyObject_CallOneArg(method, tensor);
}

/* 1 when the values are those in memory. 0 when a negation or conjugation is pending, or when the
 * tensor does not say. -1 with an exception. */
static int is_plain(struct mu_py_exchange *exchange, PyObject *tensor,
                    const struct mu_tensor *view) {
    bool is_complex = mu_dtype_info(view->dtype)->kind == MU_KIND_COMPLEX;
    PyObject *flags[] = {exchange->is_neg, is_complex ? exchange->is_conj : NULL};
    for (int i = 0; i < 2 && flags[i] != NULL; i++) {
        PyObject *answer = ask(flags[i], tensor);
        if (answer == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
            PyErr_Clear(); /* a subclass refuses, as an uninitialized parameter does */
            return 0;
        }
        if (answer == NULL) {
            return -1;
        }
        int lazy = answer != Py_False;
        Py_DECREF(answer);
        if (lazy) {
            return 0;
        }
    }
    return 1;
}

/* 1 with the view when the elements are in memory that is read here; 0, and no exception, when they
 * are not: there is no memory, or it is on a device without kernels of ours. -1 with an exception.
 * A subclass without elements may stand for something of another shape. */
static int plain_memory(struct mu_py_exchange *exchange, PyObject *tensor, const char *name,
                        struct mu_tensor *view) {
    struct mu_dlpack_tensor dlpack;
    const struct mu_dlpack_exchange *table = exchange->table;
    if (table->dltensor_from_py_object_no_sync(tensor, &dlpack) != 0) {
        PyErr_Clear();
        return 0;
    }
    bool no_elements = !has_elements(&dlpack);
    if (device_of(&dlpack) < 0 || (dlpack.data == NULL && !no_elements) ||
        (no_elements && !Py_IS_TYPE(tensor, exchange->tensor_type))) {
        return 0;
    }
    if (view_of_dlpack(&dlpack, name, view) < 0) {
        return -1;
    }
    int in_memory = is_surely_memory(view) ? 1 : is_in_memory(exchange, tensor, view);
    return in_memory == 1 ? is_plain(exchange, tensor, view) : in_memory;
}

/* The replacement for a tensor that has no plain memory, by my_utils.tensors.tensor_kinds. Returns
 * a new reference, or NULL with TypeError. */
static PyObject *resolve(PyObject *tensor, const char *name) {
    PyObject *kinds = PyImport_ImportModule("my_utils.tensors.tensor_kinds");
    if (kinds == NULL) {
        return NULL;
    }
    PyObject *resolved = PyObject_CallMethod(kinds, "resolve", "Os", tensor, name);
    Py_DECREF(kinds);
    return resolved;
}

static int view_torch(struct mu_state *state, PyObject *object, const char *name,
                      struct mu_py_tensor *out) {
    PyObject *tensor = Py_NewRef(object);
    int plain = plain_memory(&state->exchange, tensor, name, &out->view);
    if (plain == 0) {
        Py_SETREF(tensor, resolve(object, name));
        plain = tensor == NULL ? -1 : plain_memory(&state->exchange, tensor, name, &out->view);
        if (plain == 0) {
            PyErr_Format(PyExc_TypeError, "%s is a %.100s without memory of its own", name,
                         Py_TYPE(object)->tp_name);
            plain = -1;
        }
    }
    if (plain < 0) {
        Py_XDECREF(tensor);
        return -1;
    }
    out->owner = tensor;
    return 0;
}

/* --- the buffer protocol ------------------------------------------------------------------ */

/* The kind of number that a format of the struct module names, or -1; numpy's 'Zf' is complex. */
static int kind_of_format(const char *format, Py_ssize_t item_size) {
    if (*format == '@' || *format == '=' || *format == '<' || (*format == '>' && item_size == 1)) {
        format++;
    }
    bool complex_prefix = *format == 'Z';
    format += complex_prefix;
    if (format[0] == '\0' || format[1] != '\0') {
        return -1;
    }
    if (complex_prefix) {
        return strchr("efd", *format) != NULL ? MU_KIND_COMPLEX : -1;
    }
    return *format == '?'                       ? MU_KIND_BOOL
           : strchr("bhilqn", *format) != NULL  ? MU_KIND_INT
           : strchr("BHILQNc", *format) != NULL ? MU_KIND_UINT
           : strchr("efd", *format) != NULL     ? MU_KIND_FLOAT
                                                : -1;
}

/* The first type of that kind and size in the order of the enum: float16 before bfloat16. */
static int dtype_of_buffer(const Py_buffer *buffer) {
    int kind = kind_of_format(buffer->format == NULL ? "B" : buffer->format, buffer->itemsize);
    for (int dtype = 0; dtype < MU_DTYPE_FLOAT8_E4M3FN; dtype++) {
        const struct mu_dtype_info *info = mu_dtype_info(dtype);
        if (info->kind == kind && info->size == buffer->itemsize) {
            return dtype;
        }
    }
    return -1;
}

/* ctypes never gives strides, not even on request: its arrays are row-major. */
static bool strides_are_whole(const Py_buffer *buffer) {
    for (int dim = 0; buffer->strides != NULL && dim < buffer->ndim; dim++) {
        if (buffer->strides[dim] % buffer->itemsize != 0) {
            return false;
        }
    }
    return true;
}

/* Fills the view from a buffer of a known type; 0, or -1 with an exception. */
static int view_of_buffer(const Py_buffer *buffer, const char *name, struct mu_py_tensor *out) {
    int dtype = dtype_of_buffer(buffer);
    if (dtype < 0) {
        PyErr_Format(PyExc_TypeError,
                     "%s has elements of the format '%.50s', which is none of torch's types (in "
                     "the byte order of this machine)",
                     name, buffer->format);
        return -1;
    }
    out->layout = PyMem_Malloc(sizeof(int64_t) * 2 * (size_t)(buffer->ndim + 1));
    if (out->layout == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int64_t *strides = buffer->strides == NULL ? NULL : out->layout + buffer->ndim;
    for (int dim = 0; dim < buffer->ndim; dim++) {
        out->layout[dim] = buffer->shape[dim];
        if (strides != NULL) {
            strides[dim] = buffer->strides[dim] / buffer->itemsize;
        }
    }
    out->view = (struct mu_tensor){
        .data = buffer->buf,
        .shape = out->layout,
        .strides = strides,
        .ndim = buffer->ndim,
        .dtype = (uint8_t)dtype,
        .device = MU_DEVICE_CPU,
    };
    struct mu_error err;
    if (mu_tensor_check(&out->view, &err) != MU_OK) {
        PyErr_Format(PyExc_ValueError, "%s: %s", name, err.message);
        return -1;
    }
    return 0;
}

/* A buffer whose strides are multiples of the element's size. Where they are not, as for a field of
 * a structured array, it is the buffer of a copy. */
static int hold_buffer(PyObject *object, Py_buffer *buffer) {
    if (PyObject_GetBuffer(object, buffer, PyBUF_RECORDS_RO) < 0) {
        return -1;
    }
    if (buffer->itemsize == 0 || strides_are_whole(buffer)) {
        return 0;
    }
    PyBuffer_Release(buffer);
    PyObject *copy = PyMemoryView_GetContiguous(object, PyBUF_READ, 'C');
    if (copy == NULL) {
        return -1;
    }
    int status = PyObject_GetBuffer(copy, buffer, PyBUF_RECORDS_RO); /* holds `copy` */
    Py_DECREF(copy);
    return status;
}

/* Turns what numpy raises for a datetime64, or a released memoryview, into a TypeError that names
 * the argument. */
static int no_buffer(PyObject *object, const char *name) {
    if (!PyErr_ExceptionMatches(PyExc_MemoryError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s is a %.100s whose memory cannot be read as a buffer",
                     name, Py_TYPE(object)->tp_name);
    }
    return -1;
}

static int view_buffer(PyObject *object, const char *name, struct mu_py_tensor *out) {
    Py_buffer *buffer = PyMem_Calloc(1, sizeof(*buffer));
    if (buffer == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (hold_buffer(object, buffer) < 0) {
        PyMem_Free(buffer);
        return no_buffer(object, name);
    }
    out->buffer = buffer;
    if (view_of_buffer(buffer, name, out) < 0) {
        mu_py_tensor_release(out);
        return -1;
    }
    return 0;
}

/* --- __dlpack__ --------------------------------------------------------------------------- */

/* The capsule, of the newer kind where the producer knows it; a new reference. */
static PyObject *capsule_of(PyObject *object) {
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    PyObject *nothing = PyTuple_New(0);
    PyObject *version = Py_BuildValue("{s(ii)}", "max_version", MU_DLPACK_MAJOR, 0);
    PyObject *capsule = NULL;
    if (method != NULL && nothing != NULL && version != NULL) {
        capsule = PyObject_Call(method, nothing, version);
        if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            capsule = PyObject_CallNoArgs(method);
        }
    }
    Py_XDECREF(method);
    Py_XDECREF(nothing);
    Py_XDECREF(version);
    return capsule;
}

/* The capsule keeps its name, so its own destructor gives the memory back. */
static const struct mu_dlpack_tensor *tensor_in(PyObject *capsule, const char *name) {
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        struct mu_dlpack_versioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (managed->major == MU_DLPACK_MAJOR) {
            return &managed->tensor;
        }
    } else if (PyCapsule_IsValid(capsule, "dltensor")) {
        struct mu_dlpack_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
        return &managed->tensor;
    }
    PyErr_Format(PyExc_TypeError, "%s has a __dlpack__ whose capsule is not of DLPack 0 or 1",
                 name);
    return NULL;
}

static int view_dlpack(PyObject *object, const char *name, struct mu_py_tensor *out) {
    PyObject *capsule = capsule_of(object);
    const struct mu_dlpack_tensor *tensor = capsule == NULL ? NULL : tensor_in(capsule, name);
    if (tensor == NULL || view_of_dlpack(tensor, name, &out->view) < 0) {
        Py_XDECREF(capsule);
        return -1;
    }
    out->owner = capsule;
    return 0;
}

/* --- one tensor, or many ------------------------------------------------------------------ */

static bool is_torch_tensor(struct mu_py_exchange *exchange, PyObject *object) {
    return mu_py_exchange_find(exchange) && exchange->tensor_type != NULL &&
           PyObject_TypeCheck(object, exchange->tensor_type);
}

int mu_py_tensor_view(struct mu_state *state, PyObject *object, const char *name,
                      struct mu_py_tensor *out) {
    out->owner = NULL;
    out->buffer = NULL;
    out->layout = NULL;
    if (is_torch_tensor(&state->exchange, object)) {
        return view_torch(state, object, name, out);
    }
    if (PyObject_CheckBuffer(object)) {
        return view_buffer(object, name, out);
    }
    if (PyObject_HasAttrString((PyObject *)Py_TYPE(object), "__dlpack__")) {
        return view_dlpack(object, name, out);
    }
    return not_a_tensor(name, object);
}

void mu_py_tensor_release(struct mu_py_tensor *tensor) {
    if (tensor->buffer != NULL) {
        PyBuffer_Release(tensor->buffer);
        PyMem_Free(tensor->buffer);
        tensor->buffer = NULL;
    }
    PyMem_Free(tensor->layout);
    tensor->layout = NULL;
    Py_CLEAR(tensor->owner);
}

int mu_py_tensor_copy_to_cpu(struct mu_state *state, const char *name,
                             const struct mu_py_tensor *tensor, struct mu_py_tensor *copy) {
    if (PyCapsule_CheckExact(tensor->owner)) {
        PyErr_Format(PyExc_TypeError,
                     "%s must be torch's where it is on a GPU; pass torch.from_dlpack(x)", name);
        return -1;
    }
    PyObject *on_cpu = PyObject_CallMethod(tensor->owner, "cpu", NULL);
    int status = on_cpu == NULL ? -1 : mu_py_tensor_view(state, on_cpu, name, copy);
    Py_XDECREF(on_cpu);
    return status;
}

int mu_py_tensor_to_cpu(struct mu_state *state, const char *name, struct mu_py_tensor *tensor) {
    struct mu_py_tensor copy;
    if (tensor->view.device == MU_DEVICE_CPU) {
        return 0;
    }
    if (mu_py_tensor_copy_to_cpu(state, name, tensor, &copy) < 0) {
        return -1;
    }
    mu_py_tensor_release(tensor);
    *tensor = copy;
    return 0;
}

static int add_item(struct mu_state *state, PyObject *object, const char *name,
                    struct mu_py_tensors *out) {
    struct mu_py_tensor *item = &out->items[out->count];
    if (mu_py_tensor_view(state, object, name, item) < 0) {
        return -1;
    }
    out->count++;
    if (__builtin_add_overflow(out->total_bytes, mu_tensor_bytes(&item->view), &out->total_bytes)) {
        out->total_bytes = INT64_MAX;
    }
    out->on_cuda = out->on_cuda || item->view.device == MU_DEVICE_CUDA;
    return 0;
}

/* Making a view may run code that changes the list, so its length is read each time. */
static int add_items(struct mu_state *state, PyObject *list, const char *name,
                     struct mu_py_tensors *out) {
    Py_ssize_t length = PySequence_Fast_GET_SIZE(list);
    out->items = PyMem_New(struct mu_py_tensor, (size_t)(length > 0 ? length : 1));
    if (out->items == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < length && i < PySequence_Fast_GET_SIZE(list); i++) {
        PyObject *object =
            PyList_Check(list) ? mu_py_list_item(list, i) : Py_NewRef(PyTuple_GET_ITEM(list, i));
        int status = object == NULL ? -1 : add_item(state, object, name, out);
        Py_XDECREF(object);
        if (status < 0) {
            return -1;
        }
    }
    return 0;
}

int mu_py_tensors_view(struct mu_state *state, PyObject *object, const char *name,
                       struct mu_py_tensors *out) {
    *out = (struct mu_py_tensors){.is_list = PyList_Check(object) || PyTuple_Check(object)};
    out->items = &out->one;
    int status =
        out->is_list ? add_items(state, object, name, out) : add_item(state, object, name, out);
    if (status < 0) {
        mu_py_tensors_release(out);
    }
    return status;
}

void mu_py_tensors_release(struct mu_py_tensors *tensors) {
    for (Py_ssize_t i = 0; i < tensors->count; i++) {
        mu_py_tensor_release(&tensors->items[i]);
    }
    tensors->count = 0;
    if (tensors->items != &tensors->one) {
        PyMem_Free(tensors->items);
        tensors->items = &tensors->one;
    }
}

int mu_py_current_stream(struct mu_state *state, int device_index, void **stream) {
    const struct mu_dlpack_exchange *table =
        mu_py_exchange_find(&state->exchange) ? state->exchange.table : NULL;
    if (table == NULL || table->current_work_stream == NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "a CUDA tensor, but torch 2.10 or newer is not imported");
        return -1;
    }
    return table->current_work_stream(MU_DLPACK_CUDA, device_index, stream);
}

PyDoc_STRVAR(
    has_memory_doc,
    "has_memory($module, tensor, /)\n--\n\n"
    "Whether all elements of a torch tensor are in memory, on any device.\n\n"
    "False where they are not in one storage (sparse, quantized, wrapper subclasses), where it\n"
    "has no bytes (meta and fake tensors), and where it was freed or cut. An address says less:\n"
    "that of a slice is not 0 where the storage begins at 0. TypeError for what is not a torch\n"
    "tensor.");

static PyObject *has_memory(PyObject *module, PyObject *tensor) {
    struct mu_py_exchange *exchange = &mu_state_of(module)->exchange;
    struct mu_dlpack_tensor dlpack;
    struct mu_tensor view;
    if (!is_torch_tensor(exchange, tensor)) {
        return PyErr_Format(PyExc_TypeError, "tensor must be a torch tensor, not %.100s",
                            Py_TYPE(tensor)->tp_name);
    }
    const struct mu_dlpack_exchange *table = exchange->table;
    int status = table->dltensor_from_py_object_no_sync(tensor, &dlpack);
    if (status == 0) {
        dlpack.device_type = MU_DLPACK_CPU; /* all are views alike */
        status = view_of_dlpack(&dlpack, "tensor", &view);
    }
    if (status != 0) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    int in_memory = is_in_memory(exchange, tensor, &view);
    return in_memory < 0 ? NULL : PyBool_FromLong(in_memory);
}

static PyMethodDef functions[] = {
    {"has_memory", has_memory, METH_O, has_memory_doc},
    {NULL, NULL, 0, NULL},
};

/* Bytes an element by the types' names, a new dict. */
static PyObject *item_bytes(void) {
    PyObject *sizes = PyDict_New();
    for (int dtype = 0; sizes != NULL && dtype < MU_DTYPE_COUNT; dtype++) {
        PyObject *size = PyLong_FromLong(mu_dtype_info(dtype)->size);
        if (size == NULL || PyDict_SetItemString(sizes, mu_dtype_info(dtype)->name, size) < 0) {
            Py_CLEAR(sizes);
        }
        Py_XDECREF(size);
    }
    return sizes;
}

int mu_py_tensor_exec(PyObject *module) {
    mu_parallel_load();
    PyObject *sizes = item_bytes();
    int status = PyModule_AddObjectRef(module, "ITEM_BYTES", sizes);
    Py_XDECREF(sizes);
    return status < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
