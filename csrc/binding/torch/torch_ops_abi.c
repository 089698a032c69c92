#include "torch/stable_abi.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

struct torch_function {
    const char *symbol;
    size_t offset; /* of the entry in struct mu_torch */
};

#define FUNCTION(symbol, field) {symbol, offsetof(struct mu_torch, field)}

static const struct torch_function functions[] = {
    FUNCTION("aoti_torch_check", check),
    FUNCTION("aoti_torch_delete_tensor_object", delete_tensor),
    FUNCTION("aoti_torch_empty_strided", empty_strided),
    FUNCTION("aoti_torch_get_dim", get_dim),
    FUNCTION("aoti_torch_get_sizes", get_sizes),
    FUNCTION("aoti_torch_get_strides", get_strides),
    FUNCTION("aoti_torch_get_dtype", get_dtype),
    FUNCTION("aoti_torch_get_device_type", get_device_type),
    FUNCTION("aoti_torch_get_device_index", get_device_index),
    FUNCTION("torch_get_const_data_ptr", get_const_data_ptr),
    FUNCTION("torch_get_mutable_data_ptr", get_mutable_data_ptr),
    FUNCTION("aoti_torch_get_storage_size", storage.get_size),
    FUNCTION("aoti_torch_get_storage_offset", storage.get_offset),
    FUNCTION("aoti_torch_library_init_impl", library_init_impl),
    FUNCTION("torch_library_impl", library_impl),
};

static int lacks(const char *symbol, struct mu_error *err) {
    return mu_error_set(err, MU_ERR_STATE,
                        "the operators need torch 2.10 or newer: this one has no %s", symbol);
}

/* One of the functions without arguments that return a number of torch. */
static int ask(void *library, const char *symbol, int32_t *out, struct mu_error *err) {
    int32_t (*number)(void);
    if (!mu_torch_symbol(library, symbol, &number)) {
        return lacks(symbol, err);
    }
    *out = number();
    return MU_OK;
}

/* Types from these two on have another prefix in the ABI, since torch 2.11; 2.10 has the numbers
 * below, of torch/headeronly/core/ScalarType.h. */
static int ask_dtype(void *library, int dtype, int32_t *out, struct mu_error *err) {
    const char *name = mu_dtype_info(dtype)->name;
    char symbol[64];
    snprintf(symbol, sizeof(symbol), "torch_dtype_%s", name);
    if (dlsym(library, symbol) != NULL) {
        return ask(library, symbol, out, err);
    }
    if (dtype == MU_DTYPE_FLOAT8_E8M0FNU || dtype == MU_DTYPE_FLOAT4_E2M1FN_X2) {
        *out = dtype == MU_DTYPE_FLOAT8_E8M0FNU ? 44 : 45;
        return MU_OK;
    }
    snprintf(symbol, sizeof(symbol), "aoti_torch_dtype_%s", name);
    return ask(library, symbol, out, err);
}

static int ask_dtypes(void *library, struct mu_torch *torch, struct mu_error *err) {
    for (int dtype = 0; dtype < MU_DTYPE_COUNT; dtype++) {
        int code = ask_dtype(library, dtype, &torch->dtypes[dtype], err);
        if (code != MU_OK) {
            return code;
        }
    }
    return MU_OK;
}

static int fill(void *library, struct mu_torch *torch, struct mu_error *err) {
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        if (!mu_torch_symbol(library, functions[i].symbol, (char *)torch + functions[i].offset)) {
            return lacks(functions[i].symbol, err);
        }
    }
    int code = ask(library, "aoti_torch_device_type_cpu", &torch->device_cpu, err);
    if (code == MU_OK) {
        code = ask(library, "aoti_torch_device_type_cuda", &torch->device_cuda, err);
    }
    return code == MU_OK ? ask_dtypes(library, torch, err) : code;
}

/* A torch without CUDA does not have it, and does not need it. */
static void find_cuda(struct mu_torch *torch) {
    torch->get_current_cuda_stream = NULL;
    void *library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    if (library != NULL) {
        mu_torch_symbol(library, "aoti_torch_get_current_cuda_stream",
                        &torch->get_current_cuda_stream);
        dlclose(library);
    }
}

int mu_torch_load(struct mu_torch *torch, struct mu_error *err) {
    void *library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    if (library == NULL) {
        return mu_error_set(err, MU_ERR_STATE,
                            "the operators need torch: no libtorch_cpu.so is loaded");
    }
    int code = fill(library, torch, err);
    find_cuda(torch);
    dlclose(library); /* torch keeps it loaded for good */
    return code;
}
