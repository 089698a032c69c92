/* The kernels of torch.ops.my_utils.*; my_utils/tensors/torch_ops.py has their schemas.
 *
 * torch calls a kernel without the GIL, from any thread. What a kernel owns is freed before an
 * error is raised, which goes through these functions as a C++ exception: this file is compiled
 * with -fexceptions.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core/state.h"
#include "torch/stable_abi.h"

#include <stdio.h>

#include "core/args.h"
#include "torch/torch_ops_quantities.h"

/* Filled once, before torch knows any kernel; only read from then on. */
static struct mu_torch torch;
static bool is_registered; /* under mu_state.lock */

/* --- tensors of torch ----------------------------------------------------------------------- */

static struct mu_torch_tensor *handle_of(uint64_t value) {
    return (struct mu_torch_tensor *)(uintptr_t)value;
}

/* An enum mu_dtype, or -1. */
static int dtype_of(int32_t number) {
    for (int dtype = 0; dtype < MU_DTYPE_COUNT; dtype++) {
        if (torch.dtypes[dtype] == number) {
            return dtype;
        }
    }
    return -1;
}

static int no_view(struct mu_error *err) {
    return mu_error_set(err, MU_ERR_STATE, "the tensor has no plain memory");
}

static int set_dtype_and_device(struct mu_torch_tensor *tensor, struct mu_tensor *view,
                                struct mu_error *err) {
    int32_t number, device_type, device_index;
    if (torch.get_dtype(tensor, &number) != 0 || torch.get_device_type(tensor, &device_type) != 0 ||
        torch.get_device_index(tensor, &device_index) != 0) {
        return no_view(err);
    }
    int dtype = dtype_of(number);
    if (dtype < 0) {
        return mu_error_set(err, MU_ERR_ARGUMENT,
                            "elements of c10::ScalarType number %d are none of the known types",
                            (int)number);
    }
    view->dtype = (uint8_t)dtype;
    view->device = device_type == torch.device_cuda ? MU_DEVICE_CUDA : MU_DEVICE_CPU;
    view->device_index = (int16_t)device_index;
    return MU_OK;
}

static int view_of(struct mu_torch_tensor *tensor, struct mu_tensor *view, struct mu_error *err) {
    int64_t ndim, *shape, *strides;
    if (torch.get_dim(tensor, &ndim) != 0 || torch.get_sizes(tensor, &shape) != 0 ||
        torch.get_strides(tensor, &strides) != 0 ||
        torch.get_const_data_ptr(tensor, &view->data) != 0) {
        return no_view(err);
    }
    view->ndim = (int32_t)ndim;
    view->shape = shape;
    view->strides = strides;
    int code = set_dtype_and_device(tensor, view, err);
    if (code == MU_OK) {
        code = mu_tensor_check(view, err);
    }
    if (code == MU_OK && !mu_torch_storage_holds(&torch.storage, tensor, view)) {
        code = mu_error_set(err, MU_ERR_STATE,
                            "a tensor with elements, but no memory for all of them");
    }
    return code;
}

/* --- what the operators compute ------------------------------------------------------------- */

static int compute(const struct mu_quantity *quantity, const struct mu_tensor *tensor, void *out,
                   struct mu_error *err) {
    if (tensor->device == MU_DEVICE_CPU) {
        quantity->on_cpu(tensor, out);
        return MU_OK;
    }
    void *stream = NULL;
    if (torch.get_current_cuda_stream == NULL ||
        torch.get_current_cuda_stream(tensor->device_index, &stream) != 0) {
        return mu_error_set(err, MU_ERR_STATE, "this torch has no CUDA stream to work on");
    }
    return mu_gpu_enqueue(quantity->on_gpu, tensor, stream, out, err);
}

/* --- kernels -------------------------------------------------------------------------------- */

/* An operator (Tensor x) -> Tensor, or one that writes into a row of `out`. */
struct reduction {
    const char *name;
    const struct mu_quantity *quantity;
};

static const struct reduction tensor_hash_op = {"tensor_hash", &mu_content_hash};
static const struct reduction stats_op = {"stats", &mu_statistics};
static const struct reduction nan_inf_op = {"nan_inf_count", &mu_nan_inf_counts};
static const struct reduction hash_into_op = {"hash_into", &mu_content_hash};
static const struct reduction sums_into_op = {"sums_into", &mu_content_sums};

static void raise(const char *operator, const struct mu_error *err) {
    char message[MU_ERROR_MESSAGE_MAX + 64];
    snprintf(message, sizeof(message), "my_utils::%s: %s", operator, err->message);
    torch.check(false, operator, "torch_ops.c", __LINE__, message);
}

/* On success the caller owns `*result`. */
static int reduce(const struct reduction *op, struct mu_torch_tensor *x,
                  struct mu_torch_tensor **result, struct mu_error *err) {
    static const int64_t stride = 1;
    struct mu_tensor view = {0};
    void *out = NULL;
    int code = view_of(x, &view, err);
    if (code != MU_OK) {
        return code;
    }
    int32_t device = view.device == MU_DEVICE_CUDA ? torch.device_cuda : torch.device_cpu;
    if (torch.empty_strided(1, &op->quantity->count, &stride, torch.dtypes[op->quantity->dtype],
                            device, view.device_index, result) != 0) {
        return mu_error_no_memory(err, "the result");
    }
    code = torch.get_mutable_data_ptr(*result, &out) != 0 ? no_view(err)
                                                          : compute(op->quantity, &view, out, err);
    if (code != MU_OK) {
        torch.delete_tensor(*result);
    }
    return code;
}

static void run_reduction(const struct reduction *op, uint64_t *stack) {
    struct mu_torch_tensor *x = handle_of(stack[0]), *result;
    struct mu_error err;
    int code = reduce(op, x, &result, &err);
    torch.delete_tensor(x);
    if (code != MU_OK) {
        raise(op->name, &err);
        return;
    }
    stack[0] = (uintptr_t)result;
}

static void tensor_hash_kernel(uint64_t *stack, uint64_t arguments, uint64_t results) {
    (void)arguments;
    (void)results;
    run_reduction(&tensor_hash_op, stack);
}

static void stats_kernel(uint64_t *stack, uint64_t arguments, uint64_t results) {
    (void)arguments;
    (void)results;
    run_reduction(&stats_op, stack);
}

static void nan_inf_kernel(uint64_t *stack, uint64_t arguments, uint64_t results) {
    (void)arguments;
    (void)results;
    run_reduction(&nan_inf_op, stack);
}

/* "[2, 3]" */
static const char *shape_text(const struct mu_tensor *view, char *text, size_t capacity) {
    size_t length = (size_t)snprintf(text, capacity, "[");
    for (int dim = 0; dim < view->ndim && length < capacity; dim++) {
        length += (size_t)snprintf(text + length, capacity - length, "%s%lld", dim > 0 ? ", " : "",
                                   (long long)view->shape[dim]);
    }
    if (length < capacity) {
        snprintf(text + length, capacity - length, "]");
    }
    return text;
}

static int check_rows(const struct mu_tensor *out, int64_t columns, struct mu_error *err) {
    if (out->dtype == MU_DTYPE_INT64 && out->ndim == 2 && out->shape[1] == columns &&
        mu_tensor_is_contiguous(out)) {
        return MU_OK;
    }
    char shape[64];
    return mu_error_set(err, MU_ERR_ARGUMENT,
                        "out must be a contiguous int64 tensor of shape [rows, %d], not %s%s of "
                        "shape %s",
                        (int)columns, mu_tensor_is_contiguous(out) ? "" : "non-contiguous ",
                        mu_dtype_info(out->dtype)->name, shape_text(out, shape, sizeof(shape)));
}

/* The row of `out`, on the device of `x`. */
static int row_of(struct mu_torch_tensor *out, const struct mu_tensor *x, int64_t columns,
                  int64_t row, void **place, struct mu_error *err) {
    struct mu_tensor view = {0};
    int code = view_of(out, &view, err);
    if (code == MU_OK) {
        code = check_rows(&view, columns, err);
    }
    if (code != MU_OK) {
        return code;
    }
    if (view.device != x->device || view.device_index != x->device_index) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "out must be on the device of x");
    }
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): no view after an error */
    if (row < 0 || row >= view.shape[0]) {
        return mu_error_set(err, MU_ERR_ARGUMENT,
                            "row must be from 0 to %lld, the last one of out, not %lld",
                            (long long)view.shape[0] - 1, (long long)row);
    }
    void *data;
    if (torch.get_mutable_data_ptr(out, &data) != 0) {
        return no_view(err);
    }
    *place = (int64_t *)data + columns * row;
    return MU_OK;
}

static int compute_into(const struct mu_quantity *quantity, struct mu_torch_tensor *x,
                        struct mu_torch_tensor *out, int64_t row, struct mu_error *err) {
    struct mu_tensor view = {0};
    void *place = NULL;
    int code = view_of(x, &view, err);
    if (code == MU_OK) {
        code = row_of(out, &view, quantity->count, row, &place, err);
    }
    return code == MU_OK ? compute(quantity, &view, place, err) : code;
}

static void run_into(const struct reduction *op, uint64_t *stack) {
    struct mu_torch_tensor *x = handle_of(stack[0]), *out = handle_of(stack[1]);
    struct mu_error err;
    int code = compute_into(op->quantity, x, out, (int64_t)stack[2], &err);
    torch.delete_tensor(x);
    torch.delete_tensor(out);
    if (code != MU_OK) {
        raise(op->name, &err);
    }
}

static void hash_into_kernel(uint64_t *stack, uint64_t arguments, uint64_t results) {
    (void)arguments;
    (void)results;
    run_into(&hash_into_op, stack);
}

static void sums_into_kernel(uint64_t *stack, uint64_t arguments, uint64_t results) {
    (void)arguments;
    (void)results;
    run_into(&sums_into_op, stack);
}

/* --- registration --------------------------------------------------------------------------- */

static const struct {
    const char *name;
    mu_torch_kernel kernel;
} kernels[] = {
    {"tensor_hash", tensor_hash_kernel}, {"hash_into", hash_into_kernel},
    {"sums_into", sums_into_kernel},     {"stats", stats_kernel},
    {"nan_inf_count", nan_inf_kernel},
};

/* The handle of the library is kept for good, as the kernels are. */
static int register_for(const char *dispatch_key, struct mu_error *err) {
    struct mu_torch_library *library;
    if (torch.library_init_impl("my_utils", dispatch_key, __FILE__, __LINE__, &library) != 0) {
        return mu_error_set(err, MU_ERR_STATE, "torch takes no kernels for %s", dispatch_key);
    }
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
        if (torch.library_impl(library, kernels[i].name, kernels[i].kernel, MU_TORCH_ABI_VERSION) !=
            0) {
            return mu_error_set(err, MU_ERR_STATE, "torch does not take the kernel of %s for %s",
                                kernels[i].name, dispatch_key);
        }
    }
    return MU_OK;
}

static int register_once(struct mu_error *err) {
    int code = mu_torch_load(&torch, err);
    if (code == MU_OK) {
        code = register_for("CPU", err);
    }
    return code == MU_OK ? register_for("CUDA", err) : code;
}

PyDoc_STRVAR(register_torch_kernels_doc,
             "register_torch_kernels($module, /)\n--\n\n"
             "Gives torch the kernels of torch.ops.my_utils.*, once in a process.\n\n"
             "RuntimeError where torch is not loaded, or older than 2.10.");

static PyObject *register_torch_kernels(PyObject *module, PyObject *unused) {
    (void)unused;
    struct mu_state *state = mu_state_of(module);
    struct mu_error err;
    mu_py_lock_take(&state->lock);
    is_registered = is_registered || register_once(&err) == MU_OK;
    bool registered = is_registered;
    mu_py_lock_release(&state->lock);
    return registered ? Py_NewRef(Py_None) : mu_py_raise(&err);
}

static PyMethodDef functions[] = {
    {"register_torch_kernels", register_torch_kernels, METH_NOARGS, register_torch_kernels_doc},
    {NULL, NULL, 0, NULL},
};

int mu_py_torch_ops_exec(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
