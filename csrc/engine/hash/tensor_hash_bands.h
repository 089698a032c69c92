/* Boxes whose lines lie across memory, such as a transposed matrix.
 *
 * A line is a run of bytes of the whole whose elements have gaps in memory, while another dimension
 * has none. Lines are read side by side, so that each line of the cache is read once.
 */
#ifndef MU_TENSOR_HASH_BANDS_H
#define MU_TENSOR_HASH_BANDS_H

#include "hash/tensor_hash_box.h"

/* A dimension of a box: how many, and how far apart in memory and in the whole, in bytes. */
struct mu_hash_dim {
    int64_t size, step;
    uint64_t pitch;
};

struct mu_hash_bands {
    const uint8_t *data;              /* borrowed */
    uint64_t begin;                   /* in the whole */
    int64_t item;                     /* bytes an element */
    struct mu_hash_dim across, along; /* from line to line without a gap in memory; along a line */
    int ndim;                         /* the dimensions that are left; they count groups of lines */
    struct mu_hash_dim dims[MU_TENSOR_DIMS_MAX];
    uint64_t group_bands, count; /* bands of a group, and of all */
};

/* Whether the box is one of these, and all its lines begin and end at quads. */
bool mu_hash_bands_of(const struct mu_hash_box *box, struct mu_hash_bands *bands);

/* Adds the bands [first, after). */
void mu_hash_bands_add(const struct mu_hash_bands *bands, uint64_t first, uint64_t after,
                       struct mu_hash_sums *sums);

#endif
