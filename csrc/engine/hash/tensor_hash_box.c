#include "hash/tensor_hash_box.h"

#include <string.h>

#include "base/parallel.h"
#include "hash/tensor_hash.h"
#include "hash/tensor_hash_bands.h"
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

/* Starts a walk at the byte `from` of the whole. */
static void walk_row(const struct mu_hash_box *box, const struct mu_hash_row *row, uint64_t from,
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
    walk_row(box, row, from, to, &walk);
    memcpy(out, mu_tensor_walk_next(&walk, scratch, sizeof(scratch), &count), to - from);
}

/* --- its quads ---------------------------------------------------------------------------- */

/* Adds the bytes [from, to) of the whole, quads of one row. */
static void add_run(struct mu_hash_stream *stream, const struct mu_hash_box *box,
                    const struct mu_hash_row *row, uint64_t from, uint64_t to) {
    if (box->dense_rows) {
        mu_hash_stream_add(stream, row->data + (from - row->begin), from, to - from);
        return;
    }
    uint8_t scratch[MU_HASH_BLOCK_BYTES];
    struct mu_tensor_walk walk;
    walk_row(box, row, from, to, &walk);
    while (from < to) {
        size_t count, left = MU_HASH_BLOCK_BYTES - from % MU_HASH_BLOCK_BYTES;
        const uint8_t *bytes = mu_tensor_walk_next(&walk, scratch, left, &count);
        mu_hash_stream_add(stream, bytes, from, count);
        from += count;
    }
}

/* The quads in the pieces [first, after) of a row. */
static void add_pieces(struct mu_hash_stream *stream, const struct mu_hash_box *box,
                       const struct mu_hash_row *row, uint64_t first, uint64_t after) {
    uint64_t end = row->begin + box->row_bytes;
    uint64_t origin = round_down(row->begin, PIECE_BYTES);
    uint64_t from = at_least(origin + first * PIECE_BYTES,
                             round_down(row->begin + MU_HASH_QUAD_BYTES - 1, MU_HASH_QUAD_BYTES));
    uint64_t to = at_most(origin + after * PIECE_BYTES, round_down(end, MU_HASH_QUAD_BYTES));
    if (from < to) {
        add_run(stream, box, row, from, to);
    }
}

/* The pieces [piece, end) of all rows; each row has `row_pieces`, of which some may be empty. */
static void add_rows(const struct mu_hash_box *box, uint64_t row_pieces, uint64_t piece,
                     uint64_t end, struct mu_hash_sums *sums) {
    struct mu_hash_stream stream;
    struct mu_hash_row row;
    mu_hash_stream_start(&stream, mu_hash_kernel_best(), sums);
    mu_hash_row_start(box, piece / row_pieces, &row);
    for (uint64_t first = piece % row_pieces; piece < end; first = 0) {
        uint64_t after = at_most(first + end - piece, row_pieces);
        add_pieces(&stream, box, &row, first, after);
        mu_hash_row_next(box, &row);
        piece += after - first;
    }
    mu_hash_stream_end(&stream);
}

/* Pieces of rows or bands, in chunks, each of which is summed for itself. */
struct chunks {
    const struct mu_hash_box *box; /* borrowed */
    struct mu_hash_bands bands;
    bool in_bands;
    uint64_t row_pieces;
    uint64_t pieces, chunk_pieces;
    struct mu_hash_sums sums[CHUNKS_MAX];
};

static void add_chunks(int64_t first, int64_t after, void *context) {
    struct chunks *chunks = context;
    for (int64_t i = first; i < after; i++) {
        uint64_t piece = (uint64_t)i * chunks->chunk_pieces;
        uint64_t end = at_most(piece + chunks->chunk_pieces, chunks->pieces);
        chunks->sums[i] = (struct mu_hash_sums){0};
        if (chunks->in_bands) {
            mu_hash_bands_add(&chunks->bands, piece, end, &chunks->sums[i]);
        } else {
            add_rows(chunks->box, chunks->row_pieces, piece, end, &chunks->sums[i]);
        }
    }
}

void mu_hash_box_add_quads(const struct mu_hash_box *box, struct mu_hash_sums *sums) {
    struct chunks chunks = {.box = box};
    uint64_t bytes = box->rows * box->row_bytes;
    chunks.in_bands = !box->dense_rows && mu_hash_bands_of(box, &chunks.bands);
    chunks.row_pieces = (box->row_bytes + PIECE_BYTES - 1) / PIECE_BYTES + 1;
    chunks.pieces = chunks.in_bands ? chunks.bands.count : box->rows * chunks.row_pieces;
    uint64_t most = at_most(bytes / PIECE_BYTES + 1, CHUNKS_MAX);
    chunks.chunk_pieces = (chunks.pieces + most - 1) / most;
    uint64_t count =
        bytes == 0 ? 0 : (chunks.pieces + chunks.chunk_pieces - 1) / chunks.chunk_pieces;
    int64_t grain = bytes > MU_HASH_SPLIT_BYTES ? 1 : CHUNKS_MAX;
    mu_parallel_for((int64_t)count, grain, add_chunks, &chunks);
    for (uint64_t i = 0; i < count; i++) {
        mu_hash_add_sums(sums, &chunks.sums[i]);
    }
}
