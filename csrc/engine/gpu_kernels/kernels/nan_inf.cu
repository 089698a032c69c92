/* NaN, +Inf and -Inf of a tensor, counted.
 *
 * The rule of the type (special_values.h) is an argument, so that one program serves all of them.
 * The three counts begin as zeros; every block adds what it found, most of them nothing.
 */
#include "gpu_kernels/kernels/device.h"
#include "tensor/special_values.h"

enum { NAN_INF_AHEAD = 4 };

struct special_counts {
    uint64_t of[3]; /* NaN, +Inf, -Inf */
};

MU_DEVICE void count_value(uint64_t bits, const struct mu_special_rule *rule,
                           struct special_counts *counts) {
    uint64_t m = (bits + rule->add) & rule->mask;
    counts->of[0] += m > rule->limit;
    if (m == rule->infinity) {
        counts->of[1] += (bits & rule->negative) == 0;
        counts->of[2] += (bits & rule->negative) != 0;
    }
}

/* The values of a word, or the two of a word of 64 bits. */
MU_DEVICE void count_word(uint64_t word, int word_bits, const struct mu_special_rule *rule,
                          struct special_counts *counts) {
    uint64_t low = rule->negative | (rule->negative - 1);
    MU_NO_UNROLL
    for (int at = 0; at < word_bits; at += rule->bits) {
        count_value(word >> at & low, rule, counts);
    }
}

MU_DEVICE int is_suspect(uint32_t word, const struct mu_special_rule *rule) {
    return (((word & rule->quick_mask) + rule->quick_add) & rule->quick_top) != 0;
}

/* Bytes behind the end are zeros, which are not NaN in any type. */
MU_DEVICE void count_quad(const struct mu_quad *quad, const struct mu_special_rule *rule,
                          struct special_counts *counts) {
    if (rule->bits == 64) {
        MU_UNROLL
        for (int i = 0; i < 4; i += 2) {
            if (is_suspect(quad->words[i + 1], rule)) {
                count_word((uint64_t)quad->words[i + 1] << 32 | quad->words[i], 64, rule, counts);
            }
        }
        return;
    }
    MU_UNROLL
    for (int i = 0; i < 4; i++) {
        if (is_suspect(quad->words[i], rule)) {
            count_word(quad->words[i], 32, rule, counts);
        }
    }
}

/* Several quads are loaded before the first is checked. */
MU_DEVICE void count_dense(const struct mu_gpu_layout *layout, const struct mu_special_rule *rule,
                           struct special_counts *counts) {
    uint64_t full = (layout->elements << layout->item_shift) / 16;
    uint64_t stride = (uint64_t)gridDim.x * MU_GPU_THREADS;
    uint64_t quad = (uint64_t)blockIdx.x * MU_GPU_THREADS + threadIdx.x;
    for (; quad + (NAN_INF_AHEAD - 1) * stride < full; quad += NAN_INF_AHEAD * stride) {
        struct mu_quad quads[NAN_INF_AHEAD];
        MU_UNROLL
        for (int i = 0; i < NAN_INF_AHEAD; i++) {
            quads[i] = mu_load_quad(layout->data + (quad + (uint64_t)i * stride) * 16);
        }
        MU_UNROLL
        for (int i = 0; i < NAN_INF_AHEAD; i++) {
            count_quad(&quads[i], rule, counts);
        }
    }
    for (; quad < full; quad += stride) {
        struct mu_quad last = mu_load_quad(layout->data + quad * 16);
        count_quad(&last, rule, counts);
    }
}

/* The quads from `first` on, gathered. */
MU_DEVICE void count_gathered(const struct mu_gpu_layout *layout, uint64_t first,
                              const struct mu_special_rule *rule, struct special_counts *counts) {
    uint64_t quads = ((layout->elements << layout->item_shift) + 15) / 16;
    uint64_t stride = (uint64_t)gridDim.x * MU_GPU_THREADS;
    uint64_t quad = first + (uint64_t)blockIdx.x * MU_GPU_THREADS + threadIdx.x;
    for (; quad < quads; quad += stride) {
        struct mu_quad gathered = mu_gather_quad(layout, quad);
        count_quad(&gathered, rule, counts);
    }
}

/* Adds what the threads of this block found. */
MU_DEVICE void add_to_result(const struct special_counts *counts, uint64_t *result) {
    __shared__ uint64_t found[MU_WARPS][3];
    for (int kind = 0; kind < 3; kind++) {
        uint64_t sum = mu_sum_of_warp(counts->of[kind]);
        if (mu_thread_buffer() == 0) {
            found[mu_warp()][kind] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x < 3) {
        uint64_t sum = 0;
        for (int warp = 0; warp < MU_WARPS; warp++) {
            sum += found[warp][threadIdx.x];
        }
        if (sum != 0) {
            mu_atomic_add(&result[threadIdx.x], sum);
        }
    }
}

MU_KERNEL(MU_GPU_THREADS)
mu_nan_inf_dense(const struct mu_gpu_layout layout, const struct mu_special_rule rule,
                 uint64_t *result) {
    struct special_counts counts = {{0, 0, 0}};
    count_dense(&layout, &rule, &counts);
    count_gathered(&layout, (layout.elements << layout.item_shift) / 16, &rule, &counts);
    add_to_result(&counts, result);
}

MU_KERNEL(MU_GPU_THREADS)
mu_nan_inf_strided(const struct mu_gpu_layout layout, const struct mu_special_rule rule,
                   uint64_t *result) {
    struct special_counts counts = {{0, 0, 0}};
    count_gathered(&layout, 0, &rule, &counts);
    add_to_result(&counts, result);
}
