/* The part of libtorch's stable C ABI that the operators use, found at run time.
 *
 * The prototypes are those of torch/csrc/inductor/aoti_torch/c/shim.h (the names that begin with
 * aoti_torch_) and of torch/csrc/stable/c/shim.h (those that begin with torch_), as of torch 2.10;
 * torch keeps them for all later versions of 2. The functions return 0, or another number after
 * they have caught a C++ exception, but for `check`, which throws one. They need no GIL.
 */
#ifndef MU_STABLE_ABI_H
#define MU_STABLE_ABI_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "core/torch_storage.h"
#include "tensor/tensor.h"

/* The version that is asked for, in the form of TORCH_ABI_VERSION: 2.10.0. */
#define MU_TORCH_ABI_VERSION (UINT64_C(2) << 56 | UINT64_C(10) << 48)

/* torch::Library. Its handles, as those of tensors, own one reference. */
struct mu_torch_library;

/* A kernel gets its arguments on `stack`, a number or a handle each, and leaves its results there.
 * It owns the handles that it got; those that it leaves belong to the caller. */
typedef void (*mu_torch_kernel)(uint64_t *stack, uint64_t arguments, uint64_t results);

struct mu_torch {
    /* Raises RuntimeError(message) where `condition` is false, by a C++ exception. */
    void (*check)(bool condition, const char *function, const char *file, uint32_t line,
                  const char *message);

    int32_t (*delete_tensor)(struct mu_torch_tensor *tensor);
    int32_t (*empty_strided)(int64_t ndim, const int64_t *shape, const int64_t *strides,
                             int32_t dtype, int32_t device_type, int32_t device_index,
                             struct mu_torch_tensor **out);
    int32_t (*get_dim)(struct mu_torch_tensor *tensor, int64_t *out);
    int32_t (*get_sizes)(struct mu_torch_tensor *tensor, int64_t **out);   /* borrowed */
    int32_t (*get_strides)(struct mu_torch_tensor *tensor, int64_t **out); /* borrowed */
    int32_t (*get_dtype)(struct mu_torch_tensor *tensor, int32_t *out);
    int32_t (*get_device_type)(struct mu_torch_tensor *tensor, int32_t *out);
    int32_t (*get_device_index)(struct mu_torch_tensor *tensor, int32_t *out);
    int32_t (*get_const_data_ptr)(struct mu_torch_tensor *tensor, const void **out);
    int32_t (*get_mutable_data_ptr)(struct mu_torch_tensor *tensor, void **out);
    struct mu_torch_storage storage;

    int32_t (*library_init_impl)(const char *name_space, const char *dispatch_key, const char *file,
                                 uint32_t line, struct mu_torch_library **out);
    int32_t (*library_impl)(struct mu_torch_library *library, const char *name,
                            mu_torch_kernel kernel, uint64_t abi_version);

    /* From libtorch_cuda.so; NULL in a torch without CUDA. */
    int32_t (*get_current_cuda_stream)(int32_t device_index, void **out);

    /* torch's numbers for types and devices. They are not part of the ABI, so torch is asked for
     * them at run time. */
    int32_t device_cpu;
    int32_t device_cuda;
    int32_t dtypes[MU_DTYPE_COUNT]; /* torch's number of an enum mu_dtype */
};

/* Fills the table from the libraries of torch that this process has loaded. MU_ERR_STATE where
 * there are none, or where one of the functions is missing. */
int mu_torch_load(struct mu_torch *torch, struct mu_error *err);

#endif
