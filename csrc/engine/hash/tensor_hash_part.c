#include "hash/tensor_hash_part.h"

#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "hash/tensor_hash.h"

_Static_assert(sizeof(struct mu_hash_part) == 128, "no padding");

/* Parts of one tensor at most, and their size at least. */
enum { CHUNKS_MAX = 64, CHUNK_BLOCKS_MIN = MU_HASH_SPLIT_BYTES / 4 / MU_HASH_BLOCK_BYTES };

static uint64_t at_most(uint64_t value, uint64_t limit) {
    return value < limit ? value : limit;
}

/* The next multiple of a power of two. */
static uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) & ~(unit - 1);
}

uint64_t mu_hash_blocks_of(uint64_t bytes) {
    return bytes / MU_HASH_BLOCK_BYTES + (bytes % MU_HASH_BLOCK_BYTES != 0);
}

static const uint32_t *key_at(uint64_t byte) {
    return mu_hash_keys()->word + byte % MU_HASH_BLOCK_BYTES / 4;
}

/* --- one run ------------------------------------------------------------------------------ */

void mu_hash_part_start(struct mu_hash_part *part, uint64_t begin) {
    *part = (struct mu_hash_part){.begin = begin, .end = begin};
}

/* 0 when the unit of that size that holds the run's end is the one in which it began. */
static int side_of(const struct mu_hash_part *part, uint64_t unit) {
    return part->begin % unit == 0 || part->begin / unit != part->end / unit;
}

/* Each of these functions processes what it can of the bytes, and returns how many it took. */

static size_t add_cut(struct mu_hash_part *part, const uint8_t *bytes, size_t count) {
    uint64_t place = part->end % MU_HASH_QUAD_BYTES;
    size_t taken = at_most(count, MU_HASH_QUAD_BYTES - place);
    memcpy(part->cut[side_of(part, MU_HASH_QUAD_BYTES)] + place, bytes, taken);
    part->end += taken;
    return taken;
}

/* Takes bytes up to the next block. A block that is complete now is mixed, if it was taken from its
 * beginning. */
static size_t add_edge(struct mu_hash_part *part, const uint8_t *bytes, size_t count) {
    uint64_t block = part->end / MU_HASH_BLOCK_BYTES;
    size_t left = MU_HASH_BLOCK_BYTES - part->end % MU_HASH_BLOCK_BYTES;
    size_t quads = at_most(count, left) / MU_HASH_QUAD_BYTES;
    int side = side_of(part, MU_HASH_BLOCK_BYTES);
    mu_hash_kernel_best()->add_quads(&part->edge[side], bytes, quads, key_at(part->end));
    part->end += quads * MU_HASH_QUAD_BYTES;
    if (side == 1 && part->end / MU_HASH_BLOCK_BYTES != block) {
        struct mu_digest mixed = mu_hash_mix(&part->edge[1], block, mu_hash_keys()->factor);
        mu_hash_add_digest(&part->blocks, &mixed);
        part->edge[1] = (struct mu_hash_sums){0};
    }
    return quads * MU_HASH_QUAD_BYTES;
}

static size_t add_blocks(struct mu_hash_part *part, const uint8_t *bytes, size_t count) {
    size_t blocks = count / MU_HASH_BLOCK_BYTES;
    mu_hash_kernel_best()->add_blocks(&part->blocks, bytes, blocks, part->end / MU_HASH_BLOCK_BYTES,
                                      mu_hash_keys());
    part->end += blocks * MU_HASH_BLOCK_BYTES;
    return blocks * MU_HASH_BLOCK_BYTES;
}

void mu_hash_part_add(struct mu_hash_part *part, const uint8_t *bytes, size_t count) {
    size_t done = 0;
    if (part->end % MU_HASH_QUAD_BYTES != 0) {
        done += add_cut(part, bytes, count);
    }
    if (part->end % MU_HASH_BLOCK_BYTES != 0) {
        done += add_edge(part, bytes + done, count - done);
    }
    if (count - done >= MU_HASH_BLOCK_BYTES) {
        done += add_blocks(part, bytes + done, count - done);
    }
    if (count - done >= MU_HASH_QUAD_BYTES) {
        done += add_edge(part, bytes + done, count - done);
    }
    if (count > done) {
        add_cut(part, bytes + done, count - done);
    }
}

/* --- a tensor ----------------------------------------------------------------------------- */

/* The bytes [from, to) of the tensor, which begins at the byte `begin` of the whole. */
static void add_tensor(struct mu_hash_part *part, const struct mu_tensor *tensor, uint64_t begin,
                       uint64_t from, uint64_t to) {
    mu_hash_part_start(part, begin + from);
    if (from >= to) {
        return;
    }
    if (mu_tensor_is_contiguous(tensor)) {
        mu_hash_part_add(part, (const uint8_t *)tensor->data + from, to - from);
        return;
    }
    uint8_t scratch[MU_HASH_BLOCK_BYTES];
    struct mu_tensor_walk walk;
    int64_t item = mu_dtype_info(tensor->dtype)->size;
    mu_tensor_walk_start(&walk, tensor, (int64_t)from / item, (int64_t)(to - from) / item);
    while (part->end < begin + to) {
        size_t count, left = MU_HASH_BLOCK_BYTES - part->end % MU_HASH_BLOCK_BYTES;
        const uint8_t *bytes = mu_tensor_walk_next(&walk, scratch, left, &count);
        mu_hash_part_add(part, bytes, count);
    }
}

struct chunks {
    const struct mu_tensor *tensor; /* borrowed */
    uint64_t begin, end;            /* of the tensor within the whole */
    uint64_t chunk_bytes;           /* whole blocks */
    struct mu_hash_part parts[CHUNKS_MAX];
};

/* Chunks are cut at the borders of blocks of the whole. */
static void add_chunks(int64_t first, int64_t after, void *context) {
    struct chunks *chunks = context;
    uint64_t origin = chunks->begin - chunks->begin % MU_HASH_BLOCK_BYTES;
    for (int64_t i = first; i < after; i++) {
        uint64_t from = origin + (uint64_t)i * chunks->chunk_bytes;
        uint64_t to = at_most(from + chunks->chunk_bytes, chunks->end);
        from = from < chunks->begin ? chunks->begin : from;
        add_tensor(&chunks->parts[i], chunks->tensor, chunks->begin, from - chunks->begin,
                   to - chunks->begin);
    }
}

/* By words: of bytes gcc makes 40 KB of code here. */
static void join_cut(uint8_t *cut, const uint8_t *other) {
    uint64_t words[MU_HASH_QUAD_BYTES / 8], others[MU_HASH_QUAD_BYTES / 8];
    memcpy(words, cut, sizeof(words));
    memcpy(others, other, sizeof(others));
    for (size_t i = 0; i < MU_HASH_QUAD_BYTES / 8; i++) {
        words[i] |= others[i];
    }
    memcpy(cut, words, sizeof(words));
}

/* Chunks begin and end with a block, but for the beginning of the first and the end of the last. */
static void join_chunks(const struct chunks *chunks, size_t count, struct mu_hash_part *part) {
    mu_hash_part_start(part, chunks->begin);
    for (size_t i = 0; i < count; i++) {
        const struct mu_hash_part *chunk = &chunks->parts[i];
        mu_hash_add_digest(&part->blocks, &chunk->blocks);
        for (int side = 0; side < 2; side++) {
            mu_hash_add_sums(&part->edge[side], &chunk->edge[side]);
            join_cut(part->cut[side], chunk->cut[side]);
        }
    }
    part->end = chunks->end;
}

void mu_hash_part_of(const struct mu_tensor *tensor, uint64_t begin, struct mu_hash_part *part) {
    uint64_t bytes = (uint64_t)mu_tensor_bytes(tensor);
    if (bytes <= MU_HASH_SPLIT_BYTES) {
        add_tensor(part, tensor, begin, 0, bytes);
        return;
    }
    struct chunks chunks = {.tensor = tensor, .begin = begin, .end = begin + bytes};
    uint64_t blocks = mu_hash_blocks_of(begin % MU_HASH_BLOCK_BYTES + bytes);
    uint64_t chunk_blocks = (blocks + CHUNKS_MAX - 1) / CHUNKS_MAX;
    chunk_blocks = chunk_blocks > CHUNK_BLOCKS_MIN ? chunk_blocks : CHUNK_BLOCKS_MIN;
    chunks.chunk_bytes = chunk_blocks * MU_HASH_BLOCK_BYTES;
    uint64_t count = (blocks + chunk_blocks - 1) / chunk_blocks;
    mu_parallel_for((int64_t)count, 1, add_chunks, &chunks);
    join_chunks(&chunks, count, part);
}

/* --- merging ------------------------------------------------------------------------------ */

/* The block and the quad that are not complete yet, while parts are taken in order. */
struct merger {
    struct mu_digest sum;
    uint64_t block; /* number */
    struct mu_hash_sums sums;
    uint64_t quad; /* number in the whole input */
    uint32_t words[MU_HASH_QUAD_WORDS];
    bool has_block, has_quad;
};

static void finish_block(struct merger *merger) {
    if (merger->has_block) {
        struct mu_digest mixed = mu_hash_mix(&merger->sums, merger->block, mu_hash_keys()->factor);
        mu_hash_add_digest(&merger->sum, &mixed);
    }
    merger->has_block = false;
}

static void take_sums(struct merger *merger, uint64_t block, const struct mu_hash_sums *sums) {
    if (!merger->has_block || merger->block != block) {
        finish_block(merger);
        merger->block = block;
        merger->sums = (struct mu_hash_sums){0};
        merger->has_block = true;
    }
    mu_hash_add_sums(&merger->sums, sums);
}

static void finish_quad(struct merger *merger) {
    if (merger->has_quad) {
        struct mu_hash_sums sums = {0};
        mu_hash_add_quad(&sums, merger->words, key_at(merger->quad * MU_HASH_QUAD_BYTES));
        take_sums(merger, merger->quad / MU_HASH_BLOCK_QUADS, &sums);
    }
    merger->has_quad = false;
}

static void take_cut(struct merger *merger, uint64_t quad, const uint8_t *cut) {
    uint32_t words[MU_HASH_QUAD_WORDS];
    if (!merger->has_quad || merger->quad != quad) {
        finish_quad(merger);
        merger->quad = quad;
        memset(merger->words, 0, sizeof(merger->words));
        merger->has_quad = true;
    }
    memcpy(words, cut, sizeof(words));
    for (int i = 0; i < MU_HASH_QUAD_WORDS; i++) {
        merger->words[i] |= words[i];
    }
}

/* The contents of a part, from left to right: the cut quad, quads up to a block's end, blocks,
 * quads, the other cut quad. */
static void take_part(struct merger *merger, const struct mu_hash_part *part) {
    uint64_t first = round_up(part->begin, MU_HASH_QUAD_BYTES);
    uint64_t after = part->end - part->end % MU_HASH_QUAD_BYTES;
    uint64_t first_block = round_up(part->begin, MU_HASH_BLOCK_BYTES);
    uint64_t last_block = part->end - part->end % MU_HASH_BLOCK_BYTES;
    if (part->begin < first) {
        take_cut(merger, part->begin / MU_HASH_QUAD_BYTES, part->cut[0]);
    }
    if (first < at_most(after, first_block)) {
        finish_quad(merger);
        take_sums(merger, part->begin / MU_HASH_BLOCK_BYTES, &part->edge[0]);
    }
    mu_hash_add_digest(&merger->sum, &part->blocks);
    if (first_block <= last_block && last_block < after) {
        finish_quad(merger);
        take_sums(merger, part->end / MU_HASH_BLOCK_BYTES, &part->edge[1]);
    }
    if (first <= after && after < part->end) {
        take_cut(merger, part->end / MU_HASH_QUAD_BYTES, part->cut[1]);
    }
}

static int by_begin(const void *a, const void *b) {
    const struct mu_hash_part *left = a, *right = b;
    return left->begin != right->begin ? (left->begin > right->begin) - (left->begin < right->begin)
                                       : (left->end > right->end) - (left->end < right->end);
}

int mu_hash_merge(struct mu_hash_part *parts, size_t count, uint64_t bytes,
                  struct mu_digest *content, struct mu_error *err) {
    struct merger merger = {0};
    uint64_t known = 0;
    if (count > 0) {
        qsort(parts, count, sizeof(*parts), by_begin);
    }
    for (size_t i = 0; i < count; i++) {
        if (parts[i].begin == parts[i].end) {
            continue;
        }
        if (parts[i].begin != known || parts[i].end < parts[i].begin) {
            return mu_error_set(err, MU_ERR_ARGUMENT,
                                "a part of bytes %llu to %llu, after parts up to byte %llu",
                                (unsigned long long)parts[i].begin,
                                (unsigned long long)parts[i].end, (unsigned long long)known);
        }
        take_part(&merger, &parts[i]);
        known = parts[i].end;
    }
    if (known != bytes) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "parts of %llu bytes, not %llu",
                            (unsigned long long)known, (unsigned long long)bytes);
    }
    finish_quad(&merger);
    finish_block(&merger);
    *content = mu_hash_close(&merger.sum, bytes, mu_hash_keys()->factor);
    return MU_OK;
}

/* --- boxes -------------------------------------------------------------------------------- */

struct box {
    const struct mu_tensor *tensor; /* borrowed */
    const int64_t *shape, *offset;  /* borrowed; of and in the whole */
    int rows_ndim;                  /* dimensions that count rows: runs of contiguous bytes */
    uint64_t rows;
    uint64_t row_bytes;
    struct mu_hash_sums *sums; /* borrowed */
};

/* Where a row begins in the whole, in bytes. */
static uint64_t row_begin(const struct box *box, uint64_t row) {
    const struct mu_tensor *tensor = box->tensor;
    uint64_t pitch = mu_dtype_info(tensor->dtype)->size, begin = 0;
    for (int dim = tensor->ndim - 1; dim >= 0; dim--) {
        uint64_t index = (uint64_t)box->offset[dim];
        if (dim < box->rows_ndim) {
            index += row % (uint64_t)tensor->shape[dim];
            row /= (uint64_t)tensor->shape[dim];
        }
        begin += index * pitch;
        pitch *= (uint64_t)box->shape[dim];
    }
    return begin;
}

/* The first row that ends behind the byte `at`. */
static uint64_t row_at(const struct box *box, uint64_t at) {
    uint64_t low = 0, high = box->rows;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (row_begin(box, middle) + box->row_bytes > at) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Adds the bytes [at, end) of the whole, which are in `bytes`. */
static void add_run(const struct box *box, const uint8_t *bytes, uint64_t at, uint64_t end) {
    const struct mu_hash_kernel *kernel = mu_hash_kernel_best();
    while (at < end) {
        uint64_t to = at_most(end, at - at % MU_HASH_BLOCK_BYTES + MU_HASH_BLOCK_BYTES);
        kernel->add_quads(&box->sums[at / MU_HASH_BLOCK_BYTES], bytes,
                          (to - at) / MU_HASH_QUAD_BYTES, key_at(at));
        bytes += to - at;
        at = to;
    }
}

/* The accumulators [first, after), which no other call touches. */
static void add_rows(int64_t first, int64_t after, void *context) {
    const struct box *box = context;
    uint64_t begin = (uint64_t)first * MU_HASH_BLOCK_BYTES;
    uint64_t end = (uint64_t)after * MU_HASH_BLOCK_BYTES;
    for (int64_t i = first; i < after; i++) {
        box->sums[i] = (struct mu_hash_sums){0};
    }
    for (uint64_t row = row_at(box, begin); row < box->rows; row++) {
        uint64_t row_from = row_begin(box, row);
        uint64_t from = row_from > begin ? row_from : begin;
        uint64_t to = at_most(row_from + box->row_bytes, end);
        if (row_from >= end) {
            break;
        }
        add_run(box, (const uint8_t *)box->tensor->data + row * box->row_bytes + (from - row_from),
                from, to);
    }
}

/* Rows are as long as they can be: behind the last dimension that is not whole all are. */
static void find_rows(struct box *box) {
    const struct mu_tensor *tensor = box->tensor;
    box->row_bytes = mu_dtype_info(tensor->dtype)->size;
    box->rows = 1;
    int dim = tensor->ndim - 1;
    for (; dim >= 0 && tensor->shape[dim] == box->shape[dim]; dim--) {
        box->row_bytes *= (uint64_t)tensor->shape[dim];
    }
    if (dim >= 0) {
        box->row_bytes *= (uint64_t)tensor->shape[dim];
    }
    box->rows_ndim = dim > 0 ? dim : 0;
    for (dim = 0; dim < box->rows_ndim; dim++) {
        box->rows *= (uint64_t)tensor->shape[dim];
    }
}

MU_MUST_CHECK static int check_box(const struct box *box, struct mu_error *err) {
    for (int dim = 0; dim < box->tensor->ndim; dim++) {
        int64_t size = box->tensor->shape[dim];
        if (box->offset[dim] < 0 || size > box->shape[dim] ||
            box->offset[dim] > box->shape[dim] - size) {
            return mu_error_set(err, MU_ERR_ARGUMENT,
                                "indices %lld to %lld of %lld in dimension %d",
                                (long long)box->offset[dim], (long long)box->offset[dim] + size,
                                (long long)box->shape[dim], dim);
        }
    }
    return mu_tensor_is_contiguous(box->tensor)
               ? MU_OK
               : mu_error_set(err, MU_ERR_ARGUMENT, "the box must be contiguous");
}

/* The same in every row, since the distance of rows in each dimension is a multiple of a quad. */
MU_MUST_CHECK static int check_quads(const struct box *box, struct mu_error *err) {
    uint64_t pitch = mu_dtype_info(box->tensor->dtype)->size;
    bool whole =
        box->row_bytes % MU_HASH_QUAD_BYTES == 0 && row_begin(box, 0) % MU_HASH_QUAD_BYTES == 0;
    for (int dim = box->tensor->ndim - 1; dim > 0; dim--) {
        pitch *= (uint64_t)box->shape[dim];
        whole = whole && (dim > box->rows_ndim || pitch % MU_HASH_QUAD_BYTES == 0);
    }
    return whole ? MU_OK
                 : mu_error_set(err, MU_ERR_ARGUMENT,
                                "rows of %llu bytes that do not begin and end at a multiple of %d",
                                (unsigned long long)box->row_bytes, (int)MU_HASH_QUAD_BYTES);
}

int mu_hash_box_sums(const struct mu_tensor *box, const int64_t *shape, const int64_t *offset,
                     struct mu_hash_sums *sums, struct mu_error *err) {
    struct box state = {.tensor = box, .shape = shape, .offset = offset, .sums = sums};
    uint64_t bytes = mu_dtype_info(box->dtype)->size;
    for (int dim = 0; dim < box->ndim; dim++) {
        bytes *= (uint64_t)shape[dim];
    }
    int code = check_box(&state, err);
    if (code != MU_OK) {
        return code;
    }
    find_rows(&state);
    if (box->elements > 0 && (code = check_quads(&state, err)) != MU_OK) {
        return code;
    }
    state.rows = box->elements > 0 ? state.rows : 0;
    mu_parallel_for((int64_t)mu_hash_blocks_of(bytes), CHUNK_BLOCKS_MIN, add_rows, &state);
    return MU_OK;
}

void mu_hash_close_sums(const struct mu_hash_sums *sums, uint64_t bytes,
                        struct mu_digest *content) {
    const uint64_t *factor = mu_hash_keys()->factor;
    struct mu_digest sum = {0};
    for (uint64_t i = 0; i < mu_hash_blocks_of(bytes); i++) {
        struct mu_digest mixed = mu_hash_mix(&sums[i], i, factor);
        mu_hash_add_digest(&sum, &mixed);
    }
    *content = mu_hash_close(&sum, bytes, factor);
}
