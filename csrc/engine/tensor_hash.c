#include "tensor_hash.h"

#include <string.h>

#include "parallel.h"

/* Parts of one tensor at most, and their size at least. */
enum { CHUNKS_MAX = 256, CHUNK_BLOCKS_MIN = (MU_HASH_SPLIT_BYTES / 4) / MU_HASH_BLOCK_BYTES };

/* Groups into which small tensors are shared out. */
enum { GROUPS = 64 };

/* --- plain bytes -------------------------------------------------------------------------- */

/* The last block, which is shorter than the others. */
static void add_short_block(const struct mu_hash_kernel *kernel, const uint8_t *bytes, size_t count,
                            uint64_t index, struct mu_digest *sum) {
    const struct mu_hash_keys *keys = mu_hash_keys();
    struct mu_hash_sums sums = {0};
    size_t quads = count / MU_HASH_QUAD_BYTES, rest = count % MU_HASH_QUAD_BYTES;
    kernel->add_quads(&sums, bytes, quads, keys->word);
    if (rest > 0) {
        uint32_t words[MU_HASH_QUAD_WORDS] = {0};
        memcpy(words, bytes + quads * MU_HASH_QUAD_BYTES, rest);
        mu_hash_add_quad(&sums, words, keys->word + quads * MU_HASH_QUAD_WORDS);
    }
    struct mu_digest mixed = mu_hash_mix(&sums, index, keys->factor);
    mu_hash_add_digest(sum, &mixed);
}

/* Bytes that begin with the block number `index`. Only the end of the input may be no whole block.
 */
static void add_bytes(const struct mu_hash_kernel *kernel, const uint8_t *bytes, size_t count,
                      uint64_t index, struct mu_digest *sum) {
    size_t blocks = count / MU_HASH_BLOCK_BYTES, rest = count % MU_HASH_BLOCK_BYTES;
    if (blocks > 0) {
        kernel->add_blocks(sum, bytes, blocks, index, mu_hash_keys());
    }
    if (rest > 0) {
        add_short_block(kernel, bytes + blocks * MU_HASH_BLOCK_BYTES, rest, index + blocks, sum);
    }
}

void mu_tensor_hash_bytes(const struct mu_hash_kernel *kernel, const uint8_t *bytes, size_t count,
                          struct mu_digest *content) {
    struct mu_digest sum = {0};
    add_bytes(kernel, bytes, count, 0, &sum);
    *content = mu_hash_close(&sum, count, mu_hash_keys()->factor);
}

/* --- one tensor --------------------------------------------------------------------------- */

/* The sum of the mixes of blocks [first, end). */
static struct mu_digest sum_of_blocks(const struct mu_tensor *tensor, int64_t first, int64_t end) {
    const struct mu_hash_kernel *kernel = mu_hash_kernel_best();
    struct mu_digest sum = {0};
    int64_t begin_byte = first * MU_HASH_BLOCK_BYTES, end_byte = end * MU_HASH_BLOCK_BYTES;
    int64_t total = mu_tensor_bytes(tensor);
    int64_t count = (end_byte < total ? end_byte : total) - begin_byte;
    if (count <= 0) {
        return sum;
    }
    if (mu_tensor_is_contiguous(tensor)) {
        add_bytes(kernel, (const uint8_t *)tensor->data + begin_byte, (size_t)count,
                  (uint64_t)first, &sum);
        return sum;
    }
    uint8_t scratch[MU_HASH_BLOCK_BYTES];
    struct mu_tensor_walk walk;
    int64_t item = mu_dtype_info(tensor->dtype)->size;
    mu_tensor_walk_start(&walk, tensor, begin_byte / item, count / item);
    for (uint64_t index = (uint64_t)first;; index++) {
        size_t bytes;
        const uint8_t *block = mu_tensor_walk_next(&walk, scratch, sizeof(scratch), &bytes);
        if (bytes == 0) {
            return sum;
        }
        add_bytes(kernel, block, bytes, index, &sum);
    }
}

static int64_t blocks_of(const struct mu_tensor *tensor) {
    int64_t bytes = mu_tensor_bytes(tensor);
    return bytes / MU_HASH_BLOCK_BYTES + (bytes % MU_HASH_BLOCK_BYTES != 0);
}

struct chunks {
    const struct mu_tensor *tensor; /* borrowed */
    int64_t blocks, chunk_blocks;
    struct mu_digest sums[CHUNKS_MAX];
};

static void sum_chunks(int64_t begin, int64_t end, void *context) {
    struct chunks *chunks = context;
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i * chunks->chunk_blocks, after = first + chunks->chunk_blocks;
        chunks->sums[i] =
            sum_of_blocks(chunks->tensor, first, after < chunks->blocks ? after : chunks->blocks);
    }
}

static struct mu_digest sum_in_parallel(const struct mu_tensor *tensor) {
    struct chunks chunks = {.tensor = tensor, .blocks = blocks_of(tensor)};
    int64_t at_least = (chunks.blocks + CHUNKS_MAX - 1) / CHUNKS_MAX;
    chunks.chunk_blocks = at_least > CHUNK_BLOCKS_MIN ? at_least : CHUNK_BLOCKS_MIN;
    int64_t count = (chunks.blocks + chunks.chunk_blocks - 1) / chunks.chunk_blocks;
    mu_parallel_for(count, 1, sum_chunks, &chunks);
    struct mu_digest sum = {0};
    for (int64_t i = 0; i < count; i++) {
        mu_hash_add_digest(&sum, &chunks.sums[i]);
    }
    return sum;
}

static void hash_alone(const struct mu_tensor *tensor, struct mu_digest *content) {
    struct mu_digest sum = sum_of_blocks(tensor, 0, blocks_of(tensor));
    *content = mu_hash_close(&sum, (uint64_t)mu_tensor_bytes(tensor), mu_hash_keys()->factor);
}

void mu_tensor_hash(const struct mu_tensor *tensor, struct mu_digest *content) {
    if (mu_tensor_bytes(tensor) <= MU_HASH_SPLIT_BYTES) {
        hash_alone(tensor, content);
        return;
    }
    struct mu_digest sum = sum_in_parallel(tensor);
    *content = mu_hash_close(&sum, (uint64_t)mu_tensor_bytes(tensor), mu_hash_keys()->factor);
}

/* --- many tensors ------------------------------------------------------------------------- */

struct batch {
    const struct mu_tensor *const *tensors; /* borrowed */
    struct mu_digest *contents;             /* borrowed */
    int64_t count;
    int64_t shared_bytes; /* of the tensors that are shared out */
};

static bool is_shared_out(const struct mu_tensor *tensor) {
    return mu_tensor_bytes(tensor) <= MU_HASH_SPLIT_BYTES;
}

/* A tensor belongs to the group in which its first byte falls when all of them stand in a row. */
static void hash_groups(int64_t begin, int64_t end, void *context) {
    const struct batch *batch = context;
    int64_t group_bytes = batch->shared_bytes / GROUPS + 1, bytes_before = 0;
    for (int64_t i = 0; i < batch->count; i++) {
        int64_t group = bytes_before / group_bytes;
        if (!is_shared_out(batch->tensors[i])) {
            continue;
        }
        if (group >= begin && group < end) {
            hash_alone(batch->tensors[i], &batch->contents[i]);
        }
        bytes_before += mu_tensor_bytes(batch->tensors[i]);
    }
}

static void hash_in_turn(const struct batch *batch) {
    for (int64_t i = 0; i < batch->count; i++) {
        if (is_shared_out(batch->tensors[i])) {
            hash_alone(batch->tensors[i], &batch->contents[i]);
        }
    }
}

void mu_tensor_hash_all(const struct mu_tensor *const *tensors, int64_t count,
                        struct mu_digest *contents) {
    struct batch batch = {.tensors = tensors, .contents = contents, .count = count};
    for (int64_t i = 0; i < count; i++) {
        if (is_shared_out(tensors[i])) {
            batch.shared_bytes += mu_tensor_bytes(tensors[i]);
        } else {
            mu_tensor_hash(tensors[i], &contents[i]);
        }
    }
    if (batch.shared_bytes > MU_HASH_SPLIT_BYTES) {
        mu_parallel_for(GROUPS, 1, hash_groups, &batch);
    } else {
        hash_in_turn(&batch);
    }
}

/* --- dtype and shape ---------------------------------------------------------------------- */

enum { NAME_BYTES = 16 };

struct header {
    char name[NAME_BYTES]; /* the rest is NUL */
    uint64_t ndim;
    int64_t shape[MU_TENSOR_DIMS_MAX];
};

void mu_tensor_hash_combine(const struct mu_digest *content, int dtype, int ndim,
                            const int64_t *shape, struct mu_digest *out) {
    struct header header = {.ndim = (uint64_t)ndim};
    struct mu_digest digest;
    const char *name = mu_dtype_info(dtype)->name;
    memcpy(header.name, name, strnlen(name, NAME_BYTES));
    for (int dim = 0; dim < ndim; dim++) {
        header.shape[dim] = shape[dim];
    }
    mu_tensor_hash_bytes(mu_hash_kernel_best(), (const uint8_t *)&header,
                         offsetof(struct header, shape) + (size_t)ndim * sizeof(*shape), &digest);
    *out = mu_hash_join(content, &digest, mu_hash_keys()->factor);
}

/* --- text --------------------------------------------------------------------------------- */

static void put_hex(uint64_t value, char *out) {
    for (int i = 15; i >= 0; i--, value >>= 4) {
        out[i] = "0123456789abcdef"[value & 15];
    }
}

void mu_digest_hex(const struct mu_digest *digest, char *out) {
    put_hex(digest->hi, out);
    put_hex(digest->lo, out + 16);
}
