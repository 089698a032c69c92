/* One task for each of many tensors, on torch's threads. */
#ifndef MU_TENSOR_BATCH_H
#define MU_TENSOR_BATCH_H

#include "tensor/tensor.h"

/* Tensors of more bytes than this are processed one by one on the caller's thread, so that the task
 * can split its own work. Smaller ones are distributed over the threads when together they have
 * more bytes than this. Then the caller must not hold the GIL. */
enum { MU_BATCH_SHARE_BYTES = 1 << 20 };

/* Stores the result for the tensor number `index`, in its own place. It may be called from several
 * threads, and twice for a tensor. */
typedef void (*mu_tensor_task)(const struct mu_tensor *tensor, int64_t index, void *context);

void mu_tensors_each(const struct mu_tensor *const *tensors, int64_t count, mu_tensor_task task,
                     void *context);

#endif
