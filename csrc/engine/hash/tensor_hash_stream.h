/* Quads of an input on their way into its sums. Those of one block are collected before they are
 * multiplied by its factors, so quads that come in order cost least. Any order is right. */
#ifndef MU_TENSOR_HASH_STREAM_H
#define MU_TENSOR_HASH_STREAM_H

#include "hash/tensor_hash_kernel.h"

struct mu_hash_stream {
    const struct mu_hash_kernel *kernel; /* borrowed */
    struct mu_hash_sums *sums;           /* borrowed; complete after mu_hash_stream_end */
    struct mu_hash_block open;           /* what came of the block number `block` */
    uint64_t block;
};

/* Adds to what `sums` holds. */
void mu_hash_stream_start(struct mu_hash_stream *stream, const struct mu_hash_kernel *kernel,
                          struct mu_hash_sums *sums);

/* Adds `count` bytes that begin at the byte `at` of the input, both multiples of
 * MU_HASH_QUAD_BYTES. */
void mu_hash_stream_add(struct mu_hash_stream *stream, const uint8_t *bytes, uint64_t at,
                        uint64_t count);

void mu_hash_stream_end(struct mu_hash_stream *stream);

#endif
