/* A box of a tensor: elements, of any strides, that stand side by side in a larger, row-major
 * whole.
 *
 * In the whole it is rows: runs of bytes, as long as they can be. A row's quads are those that it
 * has from the first to the last byte; the bytes before and after them are its ends.
 */
#ifndef MU_TENSOR_HASH_BOX_H
#define MU_TENSOR_HASH_BOX_H

#include "hash/tensor_hash_math.h"
#include "tensor/tensor.h"

struct mu_hash_box {
    struct mu_tensor tensor; /* borrows what the caller's borrows */
    int rows_ndim;           /* the dimensions that count rows; the others make a row */
    bool dense_rows;         /* the bytes of a row lie one after the other */
    uint64_t rows, row_bytes;
    uint64_t begin;                     /* of the first row in the whole, in bytes */
    uint64_t total;                     /* bytes of the whole */
    uint64_t pitch[MU_TENSOR_DIMS_MAX]; /* bytes of the whole from one index to the next */
    int64_t step[MU_TENSOR_DIMS_MAX];   /* the same in memory */
};

/* One row of a box. */
struct mu_hash_row {
    const uint8_t *data; /* its first element */
    uint64_t begin;      /* where that is in the whole, in bytes */
    int64_t index[MU_TENSOR_DIMS_MAX];
};

/* `shape` of the whole and `at`, the index in it where the box begins, have the tensor's number of
 * dimensions; `at` NULL: zeros. MU_ERR_ARGUMENT when the box is not within the whole, or the whole
 * has more than 2^63 - 1 bytes. */
MU_MUST_CHECK int mu_hash_box_of(struct mu_hash_box *box, const struct mu_tensor *tensor,
                                 const int64_t *shape, const int64_t *at, struct mu_error *err);

/* Rows count in row-major order, which is their order in the whole too. */
void mu_hash_row_start(const struct mu_hash_box *box, uint64_t number, struct mu_hash_row *row);
void mu_hash_row_next(const struct mu_hash_box *box, struct mu_hash_row *row);

/* Whether any row has ends. */
bool mu_hash_box_has_ends(const struct mu_hash_box *box);

/* Starts a walk over the bytes [from, to) of the whole, elements of one row. */
void mu_hash_row_walk(const struct mu_hash_box *box, const struct mu_hash_row *row, uint64_t from,
                      uint64_t to, struct mu_tensor_walk *walk);

/* Copies the bytes [from, to) of the whole, in one quad and one row of a tensor on the CPU. */
void mu_hash_row_copy(const struct mu_hash_box *box, const struct mu_hash_row *row, uint64_t from,
                      uint64_t to, uint8_t *out);

#endif
