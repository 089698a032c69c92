/* The sums of the tensor hash, version 2; docs/correctness/tensor-hash.md defines it.
 *
 * A warp takes a block of 4096 bytes at a time, or what a row of a box has of one. In a block
 * without a gap a lane takes eight quads, always those of the same places, so that their keys stay
 * in registers. Half of the lanes then have a factor of the block each. The products add up, in
 * whatever order, in the eight words of `sums`, which begin as zeros.
 */
#include "gpu_kernels/kernels/device.h"
#include "hash/tensor_hash_math.h"

enum {
    HASH_LANE_QUADS = MU_HASH_BLOCK_QUADS / MU_LANES,
    HASH_SUMS = 2 * MU_HASH_LANES,
};

/* The keys of the quads lane, lane + 32, ... of a block. */
struct hash_keys {
    uint32_t word[HASH_LANE_QUADS][MU_HASH_QUAD_WORDS];
};

/* What one lane found: of the accumulator number lane / 4, for the sums number lane % 4. */
struct hash_lane {
    uint64_t s, t;
};

MU_DEVICE void hash_fill_quad_keys(uint32_t *word, int quad) {
    uint64_t state = MU_HASH_START + (uint64_t)quad * 2 * MU_HASH_STEP;
    uint64_t low = mu_hash_next_random(&state);
    uint64_t high = mu_hash_next_random(&state);
    word[0] = (uint32_t)low;
    word[1] = (uint32_t)(low >> 32);
    word[2] = (uint32_t)high;
    word[3] = (uint32_t)(high >> 32);
}

MU_DEVICE void hash_fill_keys(struct hash_keys *keys, int lane) {
    MU_UNROLL
    for (int i = 0; i < HASH_LANE_QUADS; i++) {
        hash_fill_quad_keys(keys->word[i], lane + i * MU_LANES);
    }
}

/* Adds the accumulators of a block, to which each lane of the warp contributes. */
MU_DEVICE void hash_add_block(struct hash_lane *found, const struct mu_hash_block *block,
                              uint64_t index, int lane) {
    uint64_t a = mu_sum_of_warp(block->a);
    uint64_t b = mu_sum_of_warp(block->b);
    uint64_t c = mu_sum_of_warp(block->c);
    uint64_t d = mu_sum_of_warp(block->d);
    if (lane < MU_HASH_BLOCK_FACTORS) {
        uint64_t low = (lane & 4) == 0 ? a : b;
        uint64_t high = (lane & 4) == 0 ? c : d;
        uint64_t term = (lane < 8 ? low : high) * mu_hash_block_factor(index, lane);
        found->s += term;
        found->t += term * index;
    }
}

/* A block without a gap: all loads are under way before the first sum. */
MU_DEVICE void hash_full_block(const uint8_t *bytes, int lane, const struct hash_keys *keys,
                               struct mu_hash_block *block) {
    struct mu_quad quads[HASH_LANE_QUADS];
    MU_UNROLL
    for (int i = 0; i < HASH_LANE_QUADS; i++) {
        quads[i] = mu_load_quad(bytes + (lane + i * MU_LANES) * MU_HASH_QUAD_BYTES);
    }
    MU_UNROLL
    for (int i = 0; i < HASH_LANE_QUADS; i++) {
        mu_hash_add_quad(block, quads[i].words, keys->word[i]);
    }
}

/* The places [from, to) of a row, which begins at `begin`, both counted in the whole, within one
 * block. The keys are made anew, which is little beside the gathering. */
MU_DEVICE void hash_any_quads(const struct mu_gpu_layout *layout, const struct mu_gpu_rows *rows,
                              uint64_t row, uint64_t begin, uint64_t from, uint64_t to, int lane,
                              struct mu_hash_block *block) {
    MU_NO_UNROLL
    for (uint64_t at = from + (uint64_t)lane * MU_HASH_QUAD_BYTES; at < to;
         at += MU_LANES * MU_HASH_QUAD_BYTES) {
        uint32_t key[MU_HASH_QUAD_WORDS];
        uint64_t byte = row * rows->row_bytes + (at - begin);
        struct mu_quad gathered = mu_gather(layout, byte >> layout->item_shift);
        hash_fill_quad_keys(key, (int)(at % MU_HASH_BLOCK_BYTES / MU_HASH_QUAD_BYTES));
        mu_hash_add_quad(block, gathered.words, key);
    }
}

/* Adds what the warps of this block found, one atomic a word. */
MU_DEVICE void hash_add_to_result(struct hash_lane found, uint64_t *sums) {
    __shared__ uint64_t of_warp[MU_WARPS][HASH_SUMS];
    int lane = mu_thread_buffer();
    MU_UNROLL
    for (int lanes = MU_LANES / 2; lanes >= MU_HASH_LANES; lanes /= 2) {
        found.s += mu_shuffle(found.s, lanes);
        found.t += mu_shuffle(found.t, lanes);
    }
    if (lane < MU_HASH_LANES) {
        of_warp[mu_warp()][lane] = found.s;
        of_warp[mu_warp()][lane + MU_HASH_LANES] = found.t;
    }
    __syncthreads();
    if (threadIdx.x < HASH_SUMS) {
        uint64_t sum = 0;
        for (int warp = 0; warp < MU_WARPS; warp++) {
            sum += of_warp[warp][threadIdx.x];
        }
        mu_atomic_add(&sums[threadIdx.x], sum);
    }
}

/* One run of bytes, aligned to quads, that begins at the block number `first` of the whole. Only
 * whole blocks of it. */
MU_KERNEL(MU_GPU_THREADS)
mu_hash_blocks(const struct mu_gpu_layout layout, uint64_t first, uint64_t blocks, uint64_t *sums) {
    struct hash_keys keys;
    struct hash_lane found = {0, 0};
    int lane = mu_thread_buffer();
    hash_fill_keys(&keys, lane);
    for (uint64_t i = (uint64_t)blockIdx.x * MU_WARPS + (uint64_t)mu_warp(); i < blocks;
         i += (uint64_t)gridDim.x * MU_WARPS) {
        struct mu_hash_block block = {0, 0, 0, 0};
        hash_full_block(layout.data + i * MU_HASH_BLOCK_BYTES, lane, &keys, &block);
        hash_add_block(&found, &block, first + i, lane);
    }
    hash_add_to_result(found, sums);
}

/* The quads of all rows, from the byte `skip` of each on. */
MU_KERNEL(MU_GPU_THREADS)
mu_hash_rows(const struct mu_gpu_layout layout, const struct mu_gpu_rows rows, uint64_t *sums) {
    struct hash_lane found = {0, 0};
    uint64_t row_units = mu_gpu_row_units(&rows);
    int lane = mu_thread_buffer();
    for (uint64_t unit = (uint64_t)blockIdx.x * MU_WARPS + (uint64_t)mu_warp();
         unit < rows.rows * row_units; unit += (uint64_t)gridDim.x * MU_WARPS) {
        uint64_t row = unit / row_units;
        uint64_t begin = mu_gpu_row_begin(&rows, row);
        uint64_t end = begin + rows.row_bytes;
        uint64_t index = (begin + rows.skip) / MU_HASH_BLOCK_BYTES + unit % row_units;
        uint64_t from = index * MU_HASH_BLOCK_BYTES;
        uint64_t to = from + MU_HASH_BLOCK_BYTES;
        uint64_t first = begin + rows.skip + MU_HASH_QUAD_BYTES - 1;
        first -= first % MU_HASH_QUAD_BYTES;
        end -= rows.tail ? 0 : end % MU_HASH_QUAD_BYTES;
        from = from > first ? from : first;
        to = to < end ? to : end;
        struct mu_hash_block block = {0, 0, 0, 0};
        hash_any_quads(&layout, &rows, row, begin, from, to, lane, &block);
        hash_add_block(&found, &block, index, lane);
    }
    hash_add_to_result(found, sums);
}

/* For each row its first and its last quad, which it may share; a thread a quad. What is not in
 * the row is not looked at by the host. */
MU_KERNEL(MU_GPU_THREADS)
mu_hash_ends(const struct mu_gpu_layout layout, const struct mu_gpu_rows rows,
             struct mu_quad *ends) {
    uint64_t item = (uint64_t)1 << layout.item_shift;
    for (uint64_t i = (uint64_t)blockIdx.x * MU_GPU_THREADS + threadIdx.x; i < 2 * rows.rows;
         i += (uint64_t)gridDim.x * MU_GPU_THREADS) {
        uint64_t row = i / 2;
        uint64_t begin = mu_gpu_row_begin(&rows, row);
        uint64_t last = (begin + rows.row_bytes - 1) / MU_HASH_QUAD_BYTES * MU_HASH_QUAD_BYTES;
        uint64_t from = i % 2 == 0 || last < begin ? begin : last;
        ends[i] = mu_gather(&layout, (row * rows.row_bytes + (from - begin)) / item);
    }
}

/* From the sums of a whole to the content digest; one thread. */
MU_KERNEL(1) mu_hash_finish(const struct mu_hash_sums *sums, uint64_t bytes, uint64_t *result) {
    uint64_t factor[MU_HASH_FACTORS];
    uint64_t state = MU_HASH_SEED;
    for (int i = 0; i < MU_HASH_FACTORS; i++) {
        factor[i] = mu_hash_next_random(&state) | 1u;
    }
    struct mu_digest digest = mu_hash_close(sums, bytes, factor);
    result[0] = digest.lo;
    result[1] = digest.hi;
}
