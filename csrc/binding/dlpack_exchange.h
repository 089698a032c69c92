/* The table of functions through which torch shows its tensors and streams to C code.
 *
 * The ABI of DLPack 1.3, struct DLPackExchangeAPI in include/dlpack/dlpack.h of dmlc/dlpack; torch
 * has it as torch/include/ATen/dlpack.h and hands it out as a capsule, the attribute below of
 * torch.Tensor. Within a major version the table only grows. The functions need the GIL, return 0,
 * or -1 with a Python exception set.
 */
#ifndef MU_DLPACK_EXCHANGE_H
#define MU_DLPACK_EXCHANGE_H

#include <stdint.h>

#define MU_DLPACK_ATTRIBUTE "__dlpack_c_exchange_api__"
#define MU_DLPACK_CAPSULE "dlpack_exchange_api"

enum { MU_DLPACK_MAJOR = 1, MU_DLPACK_CUDA = 2 /* kDLCUDA of DLDeviceType */ };

struct mu_dlpack_header {
    uint32_t major;
    uint32_t minor;
    struct mu_dlpack_header *older; /* a table of an older version, or NULL */
};

struct mu_dlpack_exchange {
    struct mu_dlpack_header header;
    int (*managed_tensor_allocator)(void *prototype, void **out, void *error_owner,
                                    void (*set_error)(void *error_owner, const char *kind,
                                                      const char *message));
    int (*managed_tensor_from_py_object_no_sync)(void *object, void **out);
    int (*managed_tensor_to_py_object_no_sync)(void *tensor, void **out);
    int (*dltensor_from_py_object_no_sync)(void *object, void *out); /* may be NULL */
    int (*current_work_stream)(int device_type, int32_t device, void **out);
};

#endif
