/* The content digest of the tensor hash, version 1; docs/correctness/tensor-hash.md defines it.
 *
 * A warp takes a block of 4096 bytes at a time, a lane eight of its quads, always those of the same
 * places, so that their keys stay in registers. The mixes of all blocks add up, in whatever order,
 * in the two words of the result itself, which begin as zeros; mu_hash_finish closes them.
 */
#include "gpu_kernels/kernels/device.h"
#include "hash/tensor_hash_math.h"

enum {
    HASH_LANE_QUADS = MU_HASH_BLOCK_QUADS / MU_LANES,
};

struct hash_keys {
    uint32_t word[HASH_LANE_QUADS][MU_HASH_QUAD_WORDS];
    uint64_t factor[MU_HASH_FACTORS];
};

/* The output number `index` of the generator of the keys, which goes on by a constant. */
MU_DEVICE uint64_t hash_random(uint64_t index) {
    uint64_t state = 0x243F6A8885A308D3u + index * 0x9E3779B97F4A7C15u;
    return mu_hash_next_random(&state);
}

MU_DEVICE void hash_fill_factors(uint64_t *factor) {
    MU_UNROLL
    for (int i = 0; i < MU_HASH_FACTORS; i++) {
        factor[i] = hash_random(MU_HASH_BLOCK_WORDS / 2 + (uint64_t)i) | 1u;
    }
}

MU_DEVICE void hash_fill_quad_keys(uint32_t *word, int quad) {
    uint64_t low = hash_random((uint64_t)quad * 2);
    uint64_t high = hash_random((uint64_t)quad * 2 + 1);
    word[0] = (uint32_t)low;
    word[1] = (uint32_t)(low >> 32);
    word[2] = (uint32_t)high;
    word[3] = (uint32_t)(high >> 32);
}

/* The keys of the quads lane, lane + 32, ... of a block. */
MU_DEVICE void hash_fill_keys(struct hash_keys *keys, int lane) {
    MU_UNROLL
    for (int i = 0; i < HASH_LANE_QUADS; i++) {
        hash_fill_quad_keys(keys->word[i], lane + i * MU_LANES);
    }
    hash_fill_factors(keys->factor);
}

/* What the lanes of a warp add to a block, summed over the warp. */
MU_DEVICE void hash_sum_lanes(struct mu_hash_sums *sums) {
    sums->a = mu_sum_of_warp(sums->a);
    sums->b = mu_sum_of_warp(sums->b);
    sums->c = mu_sum_of_warp(sums->c);
    sums->d = mu_sum_of_warp(sums->d);
}

/* A block without a gap: all loads are under way before the first sum. */
MU_DEVICE void hash_full_block(const uint8_t *block, int lane, const struct hash_keys *keys,
                               struct mu_hash_sums *sums) {
    struct mu_quad quads[HASH_LANE_QUADS];
    MU_UNROLL
    for (int i = 0; i < HASH_LANE_QUADS; i++) {
        quads[i] = mu_load_quad(block + (lane + i * MU_LANES) * MU_HASH_QUAD_BYTES);
    }
    MU_UNROLL
    for (int i = 0; i < HASH_LANE_QUADS; i++) {
        mu_hash_add_quad(sums, quads[i].words, keys->word[i]);
    }
}

/* Any other: quads are gathered, and those after the end add nothing. The keys are made anew, which
 * is little beside the gathering. */
MU_DEVICE void hash_any_block(const struct mu_gpu_layout *layout, uint64_t block, uint64_t quads,
                              int lane, struct mu_hash_sums *sums) {
    MU_NO_UNROLL
    for (int place = lane; place < MU_HASH_BLOCK_QUADS; place += MU_LANES) {
        uint64_t quad = block * MU_HASH_BLOCK_QUADS + (uint64_t)place;
        if (quad < quads) {
            uint32_t key[MU_HASH_QUAD_WORDS];
            struct mu_quad gathered = mu_gather_quad(layout, quad);
            hash_fill_quad_keys(key, place);
            mu_hash_add_quad(sums, gathered.words, key);
        }
    }
}

/* The mixes of this warp's blocks. `dense`: one run of bytes, aligned to quads. */
MU_DEVICE struct mu_digest hash_blocks(const struct mu_gpu_layout *layout, int dense,
                                       const struct hash_keys *keys) {
    uint64_t bytes = layout->elements << layout->item_shift;
    uint64_t quads = (bytes + MU_HASH_QUAD_BYTES - 1) / MU_HASH_QUAD_BYTES;
    uint64_t blocks = (bytes + MU_HASH_BLOCK_BYTES - 1) / MU_HASH_BLOCK_BYTES;
    uint64_t full = dense ? bytes / MU_HASH_BLOCK_BYTES : 0;
    uint64_t stride = (uint64_t)gridDim.x * MU_WARPS;
    int lane = mu_thread_buffer();
    struct mu_digest digest = {0, 0};
    for (uint64_t block = (uint64_t)blockIdx.x * MU_WARPS + (uint64_t)mu_warp(); block < blocks;
         block += stride) {
        struct mu_hash_sums sums = {0, 0, 0, 0};
        if (block < full) {
            hash_full_block(layout->data + block * MU_HASH_BLOCK_BYTES, lane, keys, &sums);
        } else {
            hash_any_block(layout, block, quads, lane, &sums);
        }
        hash_sum_lanes(&sums);
        struct mu_digest mixed = mu_hash_mix(&sums, block, keys->factor);
        mu_hash_add_digest(&digest, &mixed);
    }
    return digest;
}

/* Adds what the warps of this block found, one atomic a word. */
MU_DEVICE void hash_add_to_result(struct mu_digest digest, uint64_t *result) {
    __shared__ struct mu_digest found[MU_WARPS];
    if (mu_thread_buffer() == 0) {
        found[mu_warp()] = digest;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < MU_WARPS; warp++) {
            mu_hash_add_digest(&digest, &found[warp]);
        }
        mu_atomic_add(&result[0], digest.lo);
        mu_atomic_add(&result[1], digest.hi);
    }
}

MU_KERNEL(MU_GPU_THREADS) mu_hash_dense(const struct mu_gpu_layout layout, uint64_t *result) {
    struct hash_keys keys;
    hash_fill_keys(&keys, mu_thread_buffer());
    hash_add_to_result(hash_blocks(&layout, 1, &keys), result);
}

MU_KERNEL(MU_GPU_THREADS) mu_hash_strided(const struct mu_gpu_layout layout, uint64_t *result) {
    struct hash_keys keys;
    hash_fill_keys(&keys, mu_thread_buffer());
    hash_add_to_result(hash_blocks(&layout, 0, &keys), result);
}

/* From the sum of all mixes to the digest; one thread. */
MU_KERNEL(1) mu_hash_finish(uint64_t *result, uint64_t bytes) {
    uint64_t factor[MU_HASH_FACTORS];
    hash_fill_factors(factor);
    struct mu_digest sum = {result[0], result[1]};
    struct mu_digest digest = mu_hash_close(&sum, bytes, factor);
    result[0] = digest.lo;
    result[1] = digest.hi;
}
