#include "hash/tensor_hash_stream.h"

void mu_hash_stream_start(struct mu_hash_stream *stream, const struct mu_hash_kernel *kernel,
                          struct mu_hash_sums *sums) {
    *stream = (struct mu_hash_stream){.kernel = kernel, .sums = sums};
}

void mu_hash_stream_end(struct mu_hash_stream *stream) {
    const struct mu_hash_block *open = &stream->open;
    if ((open->a | open->b | open->c | open->d) != 0) {
        stream->kernel->add_block(stream->sums, open, stream->block);
    }
    stream->open = (struct mu_hash_block){0};
}

/* Quads of one block. */
static void add_quads(struct mu_hash_stream *stream, const uint8_t *bytes, uint64_t at,
                      uint64_t count) {
    uint64_t block = at / MU_HASH_BLOCK_BYTES;
    if (block != stream->block) {
        mu_hash_stream_end(stream);
        stream->block = block;
    }
    stream->kernel->add_quads(&stream->open, bytes, count / MU_HASH_QUAD_BYTES,
                              mu_hash_keys()->word + at % MU_HASH_BLOCK_BYTES / 4);
}

void mu_hash_stream_add(struct mu_hash_stream *stream, const uint8_t *bytes, uint64_t at,
                        uint64_t count) {
    uint64_t head = (MU_HASH_BLOCK_BYTES - at % MU_HASH_BLOCK_BYTES) % MU_HASH_BLOCK_BYTES;
    head = head < count ? head : count;
    if (head > 0) {
        add_quads(stream, bytes, at, head);
    }
    uint64_t whole = (count - head) / MU_HASH_BLOCK_BYTES * MU_HASH_BLOCK_BYTES;
    if (whole > 0) {
        stream->kernel->add_blocks(stream->sums, bytes + head, whole / MU_HASH_BLOCK_BYTES,
                                   (at + head) / MU_HASH_BLOCK_BYTES, mu_hash_keys());
    }
    if (count > head + whole) {
        add_quads(stream, bytes + head + whole, at + head + whole, count - head - whole);
    }
}
