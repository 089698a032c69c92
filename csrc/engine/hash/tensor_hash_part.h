/* The tensor hash of an input whose parts are in different places: on threads, on ranks, in files.
 *
 * There are two ways. A part that is a run of bytes gives a small state (struct mu_hash_part). It
 * may be cut anywhere, and the states merge in any order. A part that is a box of a tensor, such as
 * some columns of a matrix, adds to the accumulators of every block (struct mu_hash_sums, 32 bytes
 * for 4096 bytes of input). These are then summed over all parts.
 *
 * The structs hold plain numbers, little-endian, without padding: they may be sent as they are.
 */
#ifndef MU_TENSOR_HASH_PART_H
#define MU_TENSOR_HASH_PART_H

#include <stdint.h>

#include "hash/tensor_hash_kernel.h"
#include "tensor/tensor.h"

/* --- runs of bytes ------------------------------------------------------------------------ */

/* The state of the bytes [begin, end) of an input. [0] belongs to the place where the run begins,
 * [1] to the place where it ends. When both are in the same block or quad, [0] has everything. */
struct mu_hash_part {
    uint64_t begin, end;
    struct mu_digest blocks;            /* the sum of the mixes of blocks that it has whole */
    struct mu_hash_sums edge[2];        /* of the whole quads in blocks that it has not whole */
    uint8_t cut[2][MU_HASH_QUAD_BYTES]; /* quads that it has not whole, zero where it ends */
};

/* An empty part that begins at the byte `begin`. */
void mu_hash_part_start(struct mu_hash_part *part, uint64_t begin);

/* Appends bytes. All calls but the last must end at a multiple of MU_HASH_QUAD_BYTES of the whole
 * input. The first need not begin at one. */
void mu_hash_part_add(struct mu_hash_part *part, const uint8_t *bytes, size_t count);

/* The part for a tensor on the CPU whose row-major bytes begin at the byte `begin` of a larger
 * input. Big tensors are split over torch's threads: above MU_HASH_SPLIT_BYTES the caller must not
 * hold the GIL. */
void mu_hash_part_of(const struct mu_tensor *tensor, uint64_t begin, struct mu_hash_part *part);

/* The content digest of `bytes` bytes from all parts of them, in any order; empty ones may be among
 * them. Sorts the array. MU_ERR_ARGUMENT when bytes are missing or there twice. */
MU_MUST_CHECK int mu_hash_merge(struct mu_hash_part *parts, size_t count, uint64_t bytes,
                                struct mu_digest *content, struct mu_error *err);

/* --- boxes -------------------------------------------------------------------------------- */

/* The accumulators that an input of so many bytes has. */
uint64_t mu_hash_blocks_of(uint64_t bytes);

/* Stores in `sums`, mu_hash_blocks_of(the whole) of them, what a box contributes: a row-major
 * tensor on the CPU that is at `offset` in a whole of `shape`, both of the box's number of
 * dimensions. The accumulators of all boxes of the whole, added up, are the whole's.
 * MU_ERR_ARGUMENT when the box is not within the whole, or one of its rows begins or ends within a
 * quad. The GIL as for mu_hash_part_of. */
MU_MUST_CHECK int mu_hash_box_sums(const struct mu_tensor *box, const int64_t *shape,
                                   const int64_t *offset, struct mu_hash_sums *sums,
                                   struct mu_error *err);

/* The content digest of `bytes` bytes from the accumulators of all blocks. */
void mu_hash_close_sums(const struct mu_hash_sums *sums, uint64_t bytes, struct mu_digest *content);

#endif
