#include "hash/tensor_hash_quads.h"

#include "base/parallel.h"
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

/* Adds the bytes [from, to) of the whole, quads of one row. */
static void add_run(struct mu_hash_stream *stream, const struct mu_hash_box *box,
                    const struct mu_hash_row *row, uint64_t from, uint64_t to) {
    if (box->dense_rows) {
        mu_hash_stream_add(stream, row->data + (from - row->begin), from, to - from);
        return;
    }
    uint8_t scratch[MU_HASH_BLOCK_BYTES];
    struct mu_tensor_walk walk;
    mu_hash_row_walk(box, row, from, to, &walk);
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
