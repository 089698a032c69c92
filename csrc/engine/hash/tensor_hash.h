/* The tensor hash, version 2: 128 bits of a tensor's row-major bytes, as
 * docs/correctness/tensor-hash.md defines them.
 *
 * It depends on the bits alone: not on strides, threads, instruction set or device. It finds
 * faults; it does not protect against an attacker. All functions are pure, and thread-safe. Tensors
 * are on the CPU.
 */
#ifndef MU_TENSOR_HASH_H
#define MU_TENSOR_HASH_H

#include "hash/tensor_hash_kernel.h"
#include "tensor/tensor.h"

enum { MU_HASH_HEX = 32 /* digits of a digest */ };

/* The content digest. The caller must not hold the GIL where the tensor has more than
 * MU_HASH_SPLIT_BYTES (tensor_hash_quads.h). */
void mu_tensor_hash(const struct mu_tensor *tensor, struct mu_digest *content);

/* One digest of content, dtype (enum mu_dtype) and shape. */
void mu_tensor_hash_combine(const struct mu_digest *content, int dtype, int ndim,
                            const int64_t *shape, struct mu_digest *out);

/* The content digest of plain bytes, by the calling thread and the given kernel. */
void mu_tensor_hash_bytes(const struct mu_hash_kernel *kernel, const uint8_t *bytes, size_t count,
                          struct mu_digest *content);

/* Writes MU_HASH_HEX digits, the high half first, and no NUL. */
void mu_digest_hex(const struct mu_digest *digest, char *out);

#endif
