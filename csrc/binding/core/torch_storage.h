/* What torch knows of the memory of a tensor, by the part of libtorch's stable C ABI (see
 * torch/stable_abi.h) that says it.
 *
 * The address of a tensor is that of its storage plus an offset, also where the storage has no
 * memory. So an address that is not NULL says nothing.
 */
#ifndef MU_TORCH_STORAGE_H
#define MU_TORCH_STORAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/tensor.h"

struct mu_torch_tensor; /* at::Tensor: one pointer, to its TensorImpl */

struct mu_torch_storage {
    int32_t (*get_size)(struct mu_torch_tensor *tensor, int64_t *out);   /* in bytes */
    int32_t (*get_offset)(struct mu_torch_tensor *tensor, int64_t *out); /* in elements */
};

/* Finds a symbol of a library that dlopen gave. */
bool mu_torch_symbol(void *library, const char *symbol, void *out);

/* Fills the table from the libtorch that this process has loaded; false where there is none. */
bool mu_torch_storage_find(struct mu_torch_storage *storage);

/* Whether all elements of a view of `tensor` are in memory. Needs no GIL. */
bool mu_torch_storage_holds(const struct mu_torch_storage *storage, struct mu_torch_tensor *tensor,
                            const struct mu_tensor *view);

#endif
