/* The quads of a box, summed up: big boxes on several threads, lines across memory side by side. */
#ifndef MU_TENSOR_HASH_QUADS_H
#define MU_TENSOR_HASH_QUADS_H

#include "hash/tensor_hash_box.h"

/* More bytes than this are split over torch's threads; then the caller must not hold the GIL. */
enum { MU_HASH_SPLIT_BYTES = 1 << 20 };

/* Adds the quads of all rows. The tensor is on the CPU. Big ones are split over torch's threads:
 * above MU_HASH_SPLIT_BYTES the caller must not hold the GIL. */
void mu_hash_box_add_quads(const struct mu_hash_box *box, struct mu_hash_sums *sums);

#endif
