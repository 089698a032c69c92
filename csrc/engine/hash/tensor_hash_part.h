/* What a part of a tensor adds to the tensor hash: a box of any tiling, on a rank, in a file, on
 * paper. Parts add up in any order.
 *
 * A part has the sums of the quads that it has whole, and the bytes of those that it shares with
 * others: cut quads. Only these need memory, none where rows begin and end at multiples of
 * MU_HASH_QUAD_BYTES of the whole. The last quad of the whole counts as whole when its bytes are
 * all there.
 */
#ifndef MU_TENSOR_HASH_PART_H
#define MU_TENSOR_HASH_PART_H

#include <stdint.h>

#include "hash/tensor_hash_box.h"

struct mu_hash_cut {
    uint64_t quad;                     /* number in the whole */
    uint16_t has;                      /* bit i: byte i is there */
    uint8_t bytes[MU_HASH_QUAD_BYTES]; /* zero where they are not there */
};

struct mu_hash_part {
    struct mu_hash_sums sums;
    uint64_t bytes;           /* of whole and cut quads, counted as often as they were added */
    uint64_t total;           /* of the whole */
    struct mu_hash_cut *cuts; /* owned, or NULL; by ascending number */
    size_t cut_count;
};

/* An empty part of a whole of so many bytes. */
void mu_hash_part_start(struct mu_hash_part *part, uint64_t total);

/* Frees the cut quads. The others may be used after it. */
void mu_hash_part_free(struct mu_hash_part *part);

/* The functions below start `part`, which the caller frees where they succeed. They fail with
 * MU_ERR_ARGUMENT or MU_ERR_NO_MEMORY. */

/* The part of a tensor on the CPU that is at the index `at` in a row-major whole of `shape`, both
 * of its number of dimensions; NULL: zeros. Above MU_HASH_SPLIT_BYTES the work is split over
 * torch's threads, and the caller must not hold the GIL. */
MU_MUST_CHECK int mu_hash_part_of(struct mu_hash_part *part, const struct mu_tensor *tensor,
                                  const int64_t *shape, const int64_t *at, struct mu_error *err);

/* The same of a box whose sums were found elsewhere, as on a GPU. `ends`: for each row 16 bytes
 * from its first byte on, and the last quad in which it is, from where the row begins on; NULL
 * where no row has ends. */
MU_MUST_CHECK int mu_hash_part_of_box(struct mu_hash_part *part, const struct mu_hash_box *box,
                                      const struct mu_hash_sums *sums, const uint8_t *ends,
                                      struct mu_error *err);

/* A part from its figures; the cuts may be in any order, and those of one quad join. Sorts them. */
MU_MUST_CHECK int mu_hash_part_from(struct mu_hash_part *part, uint64_t total, uint64_t bytes,
                                    const struct mu_hash_sums *sums, struct mu_hash_cut *cuts,
                                    size_t count, struct mu_error *err);

/* Two parts of one whole together. */
MU_MUST_CHECK int mu_hash_part_add(struct mu_hash_part *part, const struct mu_hash_part *a,
                                   const struct mu_hash_part *b, struct mu_error *err);

/* MU_ERR_ARGUMENT when bytes are missing, or there twice. */
MU_MUST_CHECK int mu_hash_part_check(const struct mu_hash_part *part, struct mu_error *err);

/* The content digest of a whole; MU_ERR_ARGUMENT as above. */
MU_MUST_CHECK int mu_hash_part_close(const struct mu_hash_part *part, struct mu_digest *content,
                                     struct mu_error *err);

/* The number of the only block in which two wholes of one length differ; UINT64_MAX when they are
 * equal or differ in more than one. */
uint64_t mu_hash_place(const struct mu_hash_part *a, const struct mu_hash_part *b);

#endif
