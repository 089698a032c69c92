/* A stand-in for libtorch_cpu.so: the functions of the stable C ABI that the operators use.
 *
 * It keeps the kernels that it is given, calls them as torch's dispatcher would, counts the handles
 * that are alive, and lets any of its functions fail. With -DOLD it lacks a function, as torch
 * before 2.10 does. In place of a C++ exception aoti_torch_check keeps the message and returns. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*kernel_fn)(uint64_t *stack, uint64_t arguments, uint64_t results);

struct tensor {
    int handles;
    int64_t ndim;
    int64_t shape[2];
    int64_t strides[2];
    int32_t dtype;
    int32_t device;
    int64_t data[64];
};

enum { CPU = 0, CUDA = 1, INT64 = 4, FLOAT32 = 6, KERNELS_MAX = 32 };

static struct {
    char name[64];
    kernel_fn kernel;
} kernels[KERNELS_MAX];
static int kernel_count;
static int live;
static int calls_left = -1; /* successful ones; negative: no end */
static char message[1024];

static bool fails(void) {
    return calls_left == 0 || (calls_left > 0 && calls_left-- == 0);
}

/* --- what the operators call --- */

void aoti_torch_check(bool condition, const char *function, const char *file, uint32_t line,
                      const char *text) {
    (void)function;
    (void)file;
    (void)line;
    if (!condition) {
        snprintf(message, sizeof(message), "%s", text);
    }
}

int32_t aoti_torch_delete_tensor_object(struct tensor *tensor) {
    live--;
    if (--tensor->handles == 0) {
        free(tensor);
    }
    return 0;
}

static struct tensor *make(int64_t ndim, const int64_t *shape, const int64_t *strides,
                           int32_t dtype, int32_t device) {
    struct tensor *tensor = calloc(1, sizeof(*tensor));
    tensor->handles = 1;
    tensor->ndim = ndim;
    memcpy(tensor->shape, shape, (size_t)ndim * sizeof(*shape));
    memcpy(tensor->strides, strides, (size_t)ndim * sizeof(*strides));
    tensor->dtype = dtype;
    tensor->device = device;
    live++;
    return tensor;
}

int32_t aoti_torch_empty_strided(int64_t ndim, const int64_t *shape, const int64_t *strides,
                                 int32_t dtype, int32_t device, int32_t index,
                                 struct tensor **out) {
    (void)index;
    if (fails()) {
        return 1;
    }
    *out = make(ndim, shape, strides, dtype, device);
    return 0;
}

#define GETTER(name, type, value)                                                                  \
    int32_t name(struct tensor *tensor, type *out) {                                               \
        if (fails()) {                                                                             \
            return 1;                                                                              \
        }                                                                                          \
        *out = value;                                                                              \
        return 0;                                                                                  \
    }

GETTER(aoti_torch_get_dim, int64_t, tensor->ndim)
GETTER(aoti_torch_get_sizes, int64_t *, tensor->shape)
GETTER(aoti_torch_get_strides, int64_t *, tensor->strides)
GETTER(aoti_torch_get_dtype, int32_t, tensor->dtype)
GETTER(aoti_torch_get_device_type, int32_t, tensor->device)
GETTER(aoti_torch_get_device_index, int32_t, ((void)tensor, 0))
GETTER(torch_get_const_data_ptr, const void *, tensor->data)
GETTER(aoti_torch_get_storage_size, int64_t, (int64_t)sizeof(tensor->data))
GETTER(aoti_torch_get_storage_offset, int64_t, ((void)tensor, 0))
#ifndef OLD
GETTER(torch_get_mutable_data_ptr, void *, tensor->data)
#endif

int32_t aoti_torch_library_init_impl(const char *name_space, const char *key, const char *file,
                                     uint32_t line, void **out) {
    (void)name_space;
    (void)file;
    (void)line;
    *out = (void *)(uintptr_t)key;
    return fails();
}

int32_t torch_library_impl(void *library, const char *name, kernel_fn kernel, uint64_t version) {
    if (fails() || version >> 48 != (2 << 8 | 10) || kernel_count == KERNELS_MAX) {
        return 1;
    }
    snprintf(kernels[kernel_count].name, sizeof(kernels->name), "%s %s", (const char *)library,
             name);
    kernels[kernel_count++].kernel = kernel;
    return 0;
}

int32_t aoti_torch_device_type_cpu(void) {
    return CPU;
}

int32_t aoti_torch_device_type_cuda(void) {
    return CUDA;
}

#define DTYPE(name, number)                                                                        \
    int32_t aoti_torch_dtype_##name(void) {                                                        \
        return number;                                                                             \
    }

DTYPE(uint8, 0)
DTYPE(int8, 1)
DTYPE(int16, 2)
DTYPE(int32, 3)
DTYPE(int64, INT64)
DTYPE(float16, 5)
DTYPE(float32, FLOAT32)
DTYPE(float64, 7)
DTYPE(complex32, 8)
DTYPE(complex64, 9)
DTYPE(complex128, 10)
DTYPE(bool, 11)
DTYPE(bfloat16, 15)
DTYPE(float8_e5m2, 23)
DTYPE(float8_e4m3fn, 24)
DTYPE(float8_e5m2fnuz, 25)
DTYPE(float8_e4m3fnuz, 26)
DTYPE(uint16, 27)
DTYPE(uint32, 28)
DTYPE(uint64, 29)

/* --- what the test calls --- */

int fake_live(void) {
    return live;
}

void fake_fail_after(int calls) {
    calls_left = calls;
}

const char *fake_message(void) {
    return message;
}

static kernel_fn kernel_of(const char *key, const char *operator) {
    char name[64];
    snprintf(name, sizeof(name), "%s %s", key, operator);
    for (int i = 0; i < kernel_count; i++) {
        if (strcmp(kernels[i].name, name) == 0) {
            return kernels[i].kernel;
        }
    }
    abort();
}

static struct tensor *three_floats(int32_t device) {
    return make(1, (int64_t[]){3}, (int64_t[]){1}, FLOAT32, device);
}

/* The first number of the result of an operator (Tensor x) -> Tensor, 0 after an error. */
int64_t fake_reduce(const char *key, const char *operator, int32_t device) {
    uint64_t stack[1] = {(uintptr_t)three_floats(device)};
    message[0] = 0;
    kernel_of(key, operator)(stack, 1, 1);
    if (message[0] != 0) {
        return 0;
    }
    struct tensor *result = (struct tensor *)(uintptr_t)stack[0];
    int64_t first = result->data[0];
    aoti_torch_delete_tensor_object(result);
    return first;
}

/* What hash_into leaves in the first number of the second of two rows. */
int64_t fake_hash_into(const char *key, int32_t device, int32_t out_device) {
    struct tensor *rows = make(2, (int64_t[]){2, 2}, (int64_t[]){2, 1}, INT64, out_device);
    uint64_t stack[3] = {(uintptr_t)three_floats(device), (uintptr_t)rows, 1};
    rows->handles++;
    live++;
    message[0] = 0;
    kernel_of(key, "hash_into")(stack, 3, 0);
    int64_t first = rows->data[2];
    aoti_torch_delete_tensor_object(rows);
    return first;
}
