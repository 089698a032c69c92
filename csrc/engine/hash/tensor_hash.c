#include "hash/tensor_hash.h"

#include <string.h>

#include "hash/tensor_hash_part.h"

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

void mu_tensor_hash_bytes(const struct mu_hash_kernel *kernel, const uint8_t *bytes, size_t count,
                          struct mu_digest *content) {
    const struct mu_hash_keys *keys = mu_hash_keys();
    struct mu_digest sum = {0};
    size_t blocks = count / MU_HASH_BLOCK_BYTES, rest = count % MU_HASH_BLOCK_BYTES;
    if (blocks > 0) {
        kernel->add_blocks(&sum, bytes, blocks, 0, keys);
    }
    if (rest > 0) {
        add_short_block(kernel, bytes + blocks * MU_HASH_BLOCK_BYTES, rest, blocks, &sum);
    }
    *content = mu_hash_close(&sum, count, keys->factor);
}

/* --- one tensor --------------------------------------------------------------------------- */

void mu_tensor_hash(const struct mu_tensor *tensor, struct mu_digest *content) {
    int64_t bytes = mu_tensor_bytes(tensor);
    if (bytes <= MU_HASH_SPLIT_BYTES && mu_tensor_is_contiguous(tensor)) {
        mu_tensor_hash_bytes(mu_hash_kernel_best(), tensor->data, (size_t)bytes, content);
        return;
    }
    struct mu_hash_part part;
    mu_hash_part_of(tensor, 0, &part);
    mu_error_kept(mu_hash_merge(&part, 1, (uint64_t)bytes, content, NULL)); /* without a gap */
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
