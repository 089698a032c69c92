#include "hash/tensor_hash_box.h"

#include <string.h>

/* The whole's size is checked as that of a tensor, which needs no memory for it. */
MU_MUST_CHECK static int check_within(const struct mu_tensor *tensor, const int64_t *shape,
                                      const int64_t *at, uint64_t *total, struct mu_error *err) {
    struct mu_tensor whole = {
        .data = tensor, .shape = shape, .ndim = tensor->ndim, .dtype = tensor->dtype};
    int code = mu_tensor_check(&whole, err);
    for (int dim = 0; code == MU_OK && dim < tensor->ndim; dim++) {
        int64_t first = at == NULL ? 0 : at[dim], size = tensor->shape[dim];
        if (first < 0 || size > shape[dim] || first > shape[dim] - size) {
            code =
                mu_error_set(err, MU_ERR_ARGUMENT,
                             "indices %lld to %lld of %lld in dimension "
                             "%d",
                             (long long)first, (long long)first + size, (long long)shape[dim], dim);
        }
    }
    *total = code == MU_OK ? (uint64_t)mu_tensor_bytes(&whole) : 0;
    return code;
}

/* Rows are as long as they can be: behind the last dimension that is not whole all are. */
static int dims_of_rows(const struct mu_tensor *tensor, const int64_t *shape) {
    int dim = tensor->ndim - 1;
    while (dim > 0 && tensor->shape[dim] == shape[dim]) {
        dim--;
    }
    return dim > 0 ? dim : 0;
}

/* The elements of a row, as a tensor. */
static struct mu_tensor row_tensor(const struct mu_hash_box *box, const void *data) {
    struct mu_tensor tensor = box->tensor;
    tensor.data = data;
    tensor.elements = (int64_t)box->row_bytes / mu_dtype_info(tensor.dtype)->size;
    tensor.shape += box->rows_ndim;
    tensor.strides += tensor.strides == NULL ? 0 : box->rows_ndim;
    tensor.ndim -= box->rows_ndim;
    return tensor;
}

int mu_hash_box_of(struct mu_hash_box *box, const struct mu_tensor *tensor, const int64_t *shape,
                   const int64_t *at, struct mu_error *err) {
    *box = (struct mu_hash_box){.tensor = *tensor};
    int code = check_within(tensor, shape, at, &box->total, err);
    if (code != MU_OK || tensor->elements == 0) {
        return code;
    }
    int64_t item = mu_dtype_info(tensor->dtype)->size, step = item;
    uint64_t pitch = (uint64_t)item;
    box->rows_ndim = dims_of_rows(tensor, shape);
    box->rows = 1;
    box->row_bytes = pitch;
    for (int dim = tensor->ndim - 1; dim >= 0; dim--) {
        uint64_t *counted = dim < box->rows_ndim ? &box->rows : &box->row_bytes;
        *counted *= (uint64_t)tensor->shape[dim];
        box->begin += at == NULL ? 0 : (uint64_t)at[dim] * pitch;
        box->pitch[dim] = pitch;
        box->step[dim] = tensor->strides == NULL ? step : tensor->strides[dim] * item;
        pitch *= (uint64_t)shape[dim];
        step *= tensor->shape[dim];
    }
    struct mu_tensor row = row_tensor(box, tensor->data);
    box->dense_rows = mu_tensor_is_contiguous(&row);
    return MU_OK;
}

void mu_hash_row_start(const struct mu_hash_box *box, uint64_t number, struct mu_hash_row *row) {
    *row = (struct mu_hash_row){.data = box->tensor.data, .begin = box->begin};
    for (int dim = box->rows_ndim - 1; dim >= 0; dim--) {
        uint64_t size = (uint64_t)box->tensor.shape[dim];
        row->index[dim] = (int64_t)(number % size);
        row->begin += (uint64_t)row->index[dim] * box->pitch[dim];
        row->data += row->index[dim] * box->step[dim];
        number /= size;
    }
}

void mu_hash_row_next(const struct mu_hash_box *box, struct mu_hash_row *row) {
    for (int dim = box->rows_ndim - 1; dim >= 0; dim--) {
        row->begin += box->pitch[dim];
        row->data += box->step[dim];
        if (++row->index[dim] < box->tensor.shape[dim]) {
            return;
        }
        row->begin -= (uint64_t)row->index[dim] * box->pitch[dim];
        row->data -= row->index[dim] * box->step[dim];
        row->index[dim] = 0;
    }
}

bool mu_hash_box_has_ends(const struct mu_hash_box *box) {
    uint64_t places = box->begin | box->row_bytes;
    for (int dim = 0; dim < box->rows_ndim; dim++) {
        places |= box->tensor.shape[dim] > 1 ? box->pitch[dim] : 0;
    }
    return box->rows > 0 && places % MU_HASH_QUAD_BYTES != 0;
}

void mu_hash_row_walk(const struct mu_hash_box *box, const struct mu_hash_row *row, uint64_t from,
                      uint64_t to, struct mu_tensor_walk *walk) {
    struct mu_tensor tensor = row_tensor(box, row->data);
    int64_t item = mu_dtype_info(tensor.dtype)->size;
    mu_tensor_walk_start(walk, &tensor, (int64_t)(from - row->begin) / item,
                         (int64_t)(to - from) / item);
}

void mu_hash_row_copy(const struct mu_hash_box *box, const struct mu_hash_row *row, uint64_t from,
                      uint64_t to, uint8_t *out) {
    struct mu_tensor_walk walk;
    uint8_t scratch[MU_HASH_QUAD_BYTES];
    size_t count;
    mu_hash_row_walk(box, row, from, to, &walk);
    memcpy(out, mu_tensor_walk_next(&walk, scratch, sizeof(scratch), &count), to - from);
}
