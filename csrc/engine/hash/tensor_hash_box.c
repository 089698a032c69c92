#include "hash/tensor_hash_box.h"

#include <string.h>

#include "base/parallel.h"
#include "hash/tensor_hash.h"
#include "hash/tensor_hash_stream.h"

/* Rows are hashed in pieces, which are cut at multiples of this in the whole. */
enum { PIECE_BYTES = MU_HASH_SPLIT_BYTES / 4, CHUNKS_MAX = 64 };

static uint64_t at_most(uint64_t value, uint64_t limit) {
    return value < limit ? value : limit;
}

static uint64_t at_least(uint64_t value, uint64_t limit) {
    return value > limit ? value : limit;
}

static uint64_t round_down(uint64_t value, uint64_t unit) {
    return value - value % unit;
}

/* --- where it is -------------------------------------------------------------------------- */

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

int mu_hash_box_of(struct mu_hash_box *box, const struct mu_tensor *tensor, const int64_t *shape,
                   const int64_t *at, struct mu_error *err) {
    *box = (struct mu_hash_box){.tensor = *tensor, .rows = 1};
    int code = check_within(tensor, shape, at, &box->total, err);
    if (code != MU_OK || tensor->elements == 0) {
        box->rows = 0;
        return code;
    }
    uint64_t pitch = mu_dtype_info(tensor->dtype)->size;
    int dim = tensor->ndim - 1;
    box->row_bytes = pitch;
    for (; dim >= 0; dim--) {
        box->pitch[dim] = pitch;
        box->begin += at == NULL ? 0 : (uint64_t)at[dim] * pitch;
        pitch *= (uint64_t)shape[dim];
        bool is_row = box->rows_ndim == 0;
        box->row_bytes *= is_row ? (uint64_t)tensor->shape[dim] : 1;
        box->rows *= is_row ? 1 : (uint64_t)tensor->shape[dim];
        if (is_row && tensor->shape[dim] != shape[dim]) {
            box->rows_ndim = dim; /* the dimensions before this one count rows */
        }
    }
    return MU_OK;
}

uint64_t mu_hash_box_row(const struct mu_hash_box *box, uint64_t row) {
    uint64_t begin = box->begin;
    for (int dim = box->rows_ndim - 1; dim >= 0; dim--) {
        uint64_t size = (uint64_t)box->tensor.shape[dim];
        begin += row % size * box->pitch[dim];
        row /= size;
    }
    return begin;
}

bool mu_hash_box_has_ends(const struct mu_hash_box *box) {
    uint64_t places = box->begin | box->row_bytes;
    for (int dim = 0; dim < box->rows_ndim; dim++) {
        places |= box->tensor.shape[dim] > 1 ? box->pitch[dim] : 0;
    }
    return box->rows > 0 && places % MU_HASH_QUAD_BYTES != 0;
}

/* The elements of a row, as a tensor. */
static struct mu_tensor row_tensor(const struct mu_hash_box *box, uint64_t row) {
    struct mu_tensor tensor = box->tensor;
    int64_t item = mu_dtype_info(tensor.dtype)->size, offset = 0;
    tensor.elements = (int64_t)box->row_bytes / item;
    tensor.shape += box->rows_ndim;
    tensor.ndim -= box->rows_ndim;
    if (tensor.strides == NULL) {
        offset = (int64_t)row * tensor.elements;
    } else {
        tensor.strides += box->rows_ndim;
        for (int dim = box->rows_ndim - 1; dim >= 0; dim--) {
            uint64_t size = (uint64_t)box->tensor.shape[dim];
            offset += (int64_t)(row % size) * box->tensor.strides[dim];
            row /= size;
        }
    }
    tensor.data = (const uint8_t *)tensor.data + offset * item;
    return tensor;
}

void mu_hash_box_copy(const struct mu_hash_box *box, uint64_t row, uint64_t from, uint64_t to,
                      uint8_t *out) {
    struct mu_tensor_walk walk;
    struct mu_tensor tensor = row_tensor(box, row);
    int64_t item = mu_dtype_info(tensor.dtype)->size;
    uint8_t scratch[MU_HASH_QUAD_BYTES];
    size_t bytes;
    mu_tensor_walk_start(&walk, &tensor, (int64_t)from / item, (int64_t)(to - from) / item);
    memcpy(out, mu_tensor_walk_next(&walk, scratch, sizeof(scratch), &bytes), to - from);
}

/* --- its quads ---------------------------------------------------------------------------- */

/* The bytes [from, to) of a row, counted in it, whole quads of the whole. */
static void add_run(struct mu_hash_stream *stream, const struct mu_hash_box *box, uint64_t row,
                    uint64_t from, uint64_t to) {
    struct mu_tensor tensor = row_tensor(box, row);
    uint64_t begin = mu_hash_box_row(box, row);
    if (mu_tensor_is_contiguous(&tensor)) {
        mu_hash_stream_add(stream, (const uint8_t *)tensor.data + from, begin + from, to - from);
        return;
    }
    uint8_t scratch[MU_HASH_BLOCK_BYTES];
    struct mu_tensor_walk walk;
    int64_t item = mu_dtype_info(tensor.dtype)->size;
    mu_tensor_walk_start(&walk, &tensor, (int64_t)from / item, (int64_t)(to - from) / item);
    while (from < to) {
        size_t count, left = MU_HASH_BLOCK_BYTES - (begin + from) % MU_HASH_BLOCK_BYTES;
        const uint8_t *bytes = mu_tensor_walk_next(&walk, scratch, left, &count);
        mu_hash_stream_add(stream, bytes, begin + from, count);
        from += count;
    }
}

/* Pieces of all rows, in chunks, each of which is summed for itself. */
struct chunks {
    const struct mu_hash_box *box; /* borrowed */
    uint64_t row_pieces;           /* some may be empty */
    uint64_t pieces, chunk_pieces;
    struct mu_hash_sums sums[CHUNKS_MAX];
};

/* The quads in the pieces [first, after) of a row. */
static void add_pieces(struct mu_hash_stream *stream, const struct mu_hash_box *box, uint64_t row,
                       uint64_t first, uint64_t after) {
    uint64_t begin = mu_hash_box_row(box, row), end = begin + box->row_bytes;
    uint64_t origin = round_down(begin, PIECE_BYTES);
    uint64_t from = at_least(origin + first * PIECE_BYTES,
                             round_down(begin + MU_HASH_QUAD_BYTES - 1, MU_HASH_QUAD_BYTES));
    uint64_t to = at_most(origin + after * PIECE_BYTES, round_down(end, MU_HASH_QUAD_BYTES));
    if (from < to) {
        add_run(stream, box, row, from - begin, to - begin);
    }
}

static void add_chunks(int64_t first, int64_t after, void *context) {
    struct chunks *chunks = context;
    for (int64_t i = first; i < after; i++) {
        struct mu_hash_stream stream;
        uint64_t piece = (uint64_t)i * chunks->chunk_pieces;
        uint64_t end = at_most(piece + chunks->chunk_pieces, chunks->pieces);
        chunks->sums[i] = (struct mu_hash_sums){0};
        mu_hash_stream_start(&stream, mu_hash_kernel_best(), &chunks->sums[i]);
        while (piece < end) {
            uint64_t row = piece / chunks->row_pieces, in_row = piece % chunks->row_pieces;
            uint64_t stop = at_most(in_row + end - piece, chunks->row_pieces);
            add_pieces(&stream, chunks->box, row, in_row, stop);
            piece += stop - in_row;
        }
        mu_hash_stream_end(&stream);
    }
}

void mu_hash_box_add_quads(const struct mu_hash_box *box, struct mu_hash_sums *sums) {
    struct chunks chunks = {.box = box};
    if (box->rows == 0) {
        return;
    }
    chunks.row_pieces = (PIECE_BYTES - 1 + box->row_bytes) / PIECE_BYTES + 1;
    chunks.pieces = box->rows * chunks.row_pieces;
    uint64_t most = box->rows * box->row_bytes / PIECE_BYTES + 1;
    most = at_most(most, CHUNKS_MAX);
    chunks.chunk_pieces = (chunks.pieces + most - 1) / most;
    uint64_t count = (chunks.pieces + chunks.chunk_pieces - 1) / chunks.chunk_pieces;
    mu_parallel_for((int64_t)count,
                    box->rows * box->row_bytes > MU_HASH_SPLIT_BYTES ? 1 : CHUNKS_MAX, add_chunks,
                    &chunks);
    for (uint64_t i = 0; i < count; i++) {
        mu_hash_add_sums(sums, &chunks.sums[i]);
    }
}
