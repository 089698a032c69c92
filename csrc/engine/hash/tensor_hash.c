#include "hash/tensor_hash.h"

#include <string.h>

#include "hash/tensor_hash_part.h"
#include "hash/tensor_hash_quads.h"
#include "hash/tensor_hash_stream.h"

void mu_tensor_hash_bytes(const struct mu_hash_kernel *kernel, const uint8_t *bytes, size_t count,
                          struct mu_digest *content) {
    struct mu_hash_sums sums = {0};
    struct mu_hash_stream stream;
    size_t rest = count % MU_HASH_QUAD_BYTES, quads = count - rest;
    mu_hash_stream_start(&stream, kernel, &sums);
    if (quads > 0) {
        mu_hash_stream_add(&stream, bytes, 0, quads);
    }
    if (rest > 0) {
        uint8_t padded[MU_HASH_QUAD_BYTES] = {0};
        memcpy(padded, bytes + quads, rest);
        mu_hash_stream_add(&stream, padded, quads, sizeof(padded));
    }
    mu_hash_stream_end(&stream);
    *content = mu_hash_close(&sums, count, mu_hash_keys()->factor);
}

void mu_tensor_hash(const struct mu_tensor *tensor, struct mu_digest *content) {
    int64_t bytes = mu_tensor_bytes(tensor);
    if (bytes <= MU_HASH_SPLIT_BYTES && mu_tensor_is_contiguous(tensor)) {
        mu_tensor_hash_bytes(mu_hash_kernel_best(), tensor->data, (size_t)bytes, content);
        return;
    }
    struct mu_hash_part part;
    /* A whole has no cut quads, which alone need memory. */
    mu_error_kept(mu_hash_part_of(&part, tensor, tensor->shape, NULL, NULL));
    mu_error_kept(mu_hash_part_close(&part, content, NULL));
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
