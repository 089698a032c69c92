/* The inner loops of the tensor hash, one implementation for each kind of processor.
 *
 * All give the same sums. They read exactly the bytes that they are passed, at any alignment.
 * Thread-safe.
 */
#ifndef MU_TENSOR_HASH_KERNEL_H
#define MU_TENSOR_HASH_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "hash/tensor_hash_math.h"

struct mu_hash_kernel {
    const char *name;

    /* Adds `quads` whole quads of one block; `key` has the keys of the first and those after it. */
    void (*add_quads)(struct mu_hash_block *block, const uint8_t *bytes, size_t quads,
                      const uint32_t *key);

    /* Adds the accumulators of the block number `index`. */
    void (*add_block)(struct mu_hash_sums *sums, const struct mu_hash_block *block, uint64_t index);

    /* Adds `blocks` whole blocks, the first of which has the number `index`. */
    void (*add_blocks)(struct mu_hash_sums *sums, const uint8_t *bytes, size_t blocks,
                       uint64_t index, const struct mu_hash_keys *keys);
};

extern const struct mu_hash_kernel mu_hash_kernel_scalar;
#if defined(__x86_64__)
extern const struct mu_hash_kernel mu_hash_kernel_avx2;
extern const struct mu_hash_kernel mu_hash_kernel_avx512;
#elif defined(__aarch64__)
extern const struct mu_hash_kernel mu_hash_kernel_neon;
#endif

/* The fastest that this processor runs. */
const struct mu_hash_kernel *mu_hash_kernel_best(void);

/* The kernel of that name, or NULL when this processor cannot run it. */
const struct mu_hash_kernel *mu_hash_kernel_by_name(const char *name);

/* The table of keys. It is filled when the library is loaded. */
const struct mu_hash_keys *mu_hash_keys(void);

#endif
