/* Statistics of the finite numbers of a tensor; stats_math.h says what they are and how they merge.
 *
 * The tensor is cut by its size alone, so that the result is the same on every GPU, and for every
 * stride: a thread takes every so-many-th quad, sums differences from a number near its mean, and
 * makes a part of them now and then; the threads' parts are merged in a fixed tree, those of the
 * blocks by mu_stats_end. With one block there is nothing left to merge.
 */
#include "gpu_kernels/kernels/values.h"
#include "stats/stats_math.h"

enum {
    STATS_AHEAD = 4,           /* quads that are loaded before the first is added */
    STATS_GROUP_NUMBERS = 512, /* about as many differences are summed plainly */
    STATS_WORDS = 16,          /* of the result */
};

/* Numbers that are still to become a part. */
struct stats_group {
    int64_t finite;
    double pivot; /* differences are from it */
    double apart, squares, abs_sum;
};

struct stats_thread {
    struct mu_stats_part part;
    struct stats_group group;
    float low, high; /* of numbers that fit a float */
};

MU_DEVICE void stats_clear_group(struct stats_thread *thread, double pivot) {
    thread->group.finite = 0;
    thread->group.pivot = pivot;
    thread->group.apart = thread->group.squares = thread->group.abs_sum = 0;
}

MU_DEVICE void stats_clear(struct stats_thread *thread) {
    mu_stats_part_clear(&thread->part);
    stats_clear_group(thread, 0);
    thread->low = MU_FLOAT_INFINITY;
    thread->high = -MU_FLOAT_INFINITY;
}

/* The group's numbers are of class 0, or all of them zeros. */
MU_DEVICE void stats_close_group(struct stats_thread *thread) {
    struct mu_stats_part closed;
    if (thread->group.finite == 0) {
        return;
    }
    mu_stats_part_clear(&closed);
    closed.finite = thread->group.finite;
    closed.abs_sum = thread->group.abs_sum;
    closed.scale = closed.abs_sum == 0 ? closed.scale : 0;
    mu_stats_set_moments(&closed, thread->group.pivot, thread->group.apart, thread->group.squares);
    mu_stats_merge_moments(&thread->part, closed);
    stats_clear_group(thread, thread->part.scale == 0 ? thread->part.mean : 0);
}

/* A number whose square might leave the range of a double. */
MU_DEVICE void stats_add_extreme(struct stats_thread *thread, double value) {
    struct mu_stats_part one;
    mu_stats_part_clear(&one);
    one.finite = 1;
    one.scale = mu_stats_scale_of(fabs(value));
    one.mean = mu_stats_scaled(value, -one.scale);
    one.abs_sum = fabs(one.mean);
    mu_stats_merge_moments(&thread->part, one);
}

MU_DEVICE void stats_add_moments(struct stats_thread *thread, double value) {
    struct stats_group *group = &thread->group;
    if (group->finite == 0 && thread->part.finite == 0) {
        group->pivot = value;
    }
    double apart = value - group->pivot;
    group->finite++;
    group->apart += apart;
    group->squares += apart * apart;
    group->abs_sum += fabs(value);
}

MU_DEVICE void stats_add_special(struct mu_stats_part *part, int is_nan, int is_negative,
                                 int64_t element) {
    part->nans += is_nan;
    part->pos_infs += !is_nan && !is_negative;
    part->neg_infs += !is_nan && is_negative;
    if (is_nan) {
        part->first_nan = mu_stats_first(part->first_nan, element);
    } else {
        part->first_inf = mu_stats_first(part->first_inf, element);
    }
}

MU_DEVICE void stats_add_float(struct stats_thread *thread, float value, int64_t element) {
    if (value - value != 0) {
        stats_add_special(&thread->part, value != value, value < 0, element);
        return;
    }
    thread->low = value < thread->low ? value : thread->low;
    thread->high = value > thread->high ? value : thread->high;
    thread->part.zeros += value == 0;
    stats_add_moments(thread, (double)value);
}

MU_DEVICE void stats_add_double(struct stats_thread *thread, double value, int64_t element) {
    struct mu_stats_part *part = &thread->part;
    if (value - value != 0) {
        stats_add_special(part, value != value, value < 0, element);
        return;
    }
    part->min = value < part->min ? value : part->min;
    part->max = value > part->max ? value : part->max;
    part->zeros += value == 0;
    if (value == 0 || mu_stats_scale_of(fabs(value)) == 0) {
        stats_add_moments(thread, value);
    } else {
        stats_add_extreme(thread, value);
    }
}

MU_DEVICE void stats_add_long(struct mu_stats_part *part, int type, uint64_t bits) {
    int64_t value = (int64_t)(type == MU_DTYPE_UINT64 ? bits ^ (uint64_t)1 << 63 : bits);
    part->int_min = value < part->int_min ? value : part->int_min;
    part->int_max = value > part->int_max ? value : part->int_max;
}

MU_DEVICE void stats_add_bits(struct stats_thread *thread, int type, uint64_t bits,
                              int64_t element) {
    if (type == MU_DTYPE_INT64 || type == MU_DTYPE_UINT64) {
        stats_add_long(&thread->part, type, bits);
    }
    if (mu_is_double(type)) {
        stats_add_double(thread, mu_double_value(type, bits), element);
    } else {
        stats_add_float(thread, mu_float_value(type, bits), element);
    }
}

/* The number `i` of a quad. */
MU_DEVICE uint64_t stats_bits_of(const struct mu_quad *quad, int bits, int i) {
    if (bits == 64) {
        return (uint64_t)quad->words[i * 2 + 1] << 32 | quad->words[i * 2];
    }
    uint32_t word = quad->words[i * bits / 32] >> i * bits % 32;
    return bits == 32 ? word : word & ((1u << bits % 32) - 1);
}

/* `present`: numbers of the quad that are of the tensor. */
MU_DEVICE void stats_add_quad(struct stats_thread *thread, int dtype, const struct mu_quad *quad,
                              uint64_t index, int present) {
    int type = mu_number_type(dtype);
    int bits = mu_number_bits(type);
    int numbers = 128 / bits;
    int parts = mu_numbers_of(dtype);
    MU_UNROLL
    for (int i = 0; i < numbers; i++) {
        if (i < present) {
            int64_t element = (int64_t)(index * (uint64_t)(numbers / parts)) + i / parts;
            stats_add_bits(thread, type, stats_bits_of(quad, bits, i), element);
        }
    }
    if (thread->group.finite >= STATS_GROUP_NUMBERS) {
        stats_close_group(thread);
    }
}

/* All quads of this thread, by loads of 16 bytes where `dense`. */
MU_DEVICE void stats_run(struct stats_thread *thread, const struct mu_gpu_layout *layout,
                         int dense) {
    int dtype = MU_DTYPE_A(layout);
    int numbers = 128 / mu_number_bits(mu_number_type(dtype));
    uint64_t bytes = layout->elements << layout->item_shift;
    uint64_t full = bytes / 16;
    uint64_t stride = (uint64_t)gridDim.x * MU_GPU_THREADS;
    uint64_t quad = (uint64_t)blockIdx.x * MU_GPU_THREADS + threadIdx.x;
    for (; dense && quad + (STATS_AHEAD - 1) * stride < full; quad += STATS_AHEAD * stride) {
        struct mu_quad quads[STATS_AHEAD];
        MU_UNROLL
        for (int i = 0; i < STATS_AHEAD; i++) {
            quads[i] = mu_load_quad(layout->data + (quad + (uint64_t)i * stride) * 16);
        }
        MU_NO_UNROLL
        for (int i = 0; i < STATS_AHEAD; i++) {
            stats_add_quad(thread, dtype, &quads[i], quad + (uint64_t)i * stride, numbers);
        }
    }
    MU_NO_UNROLL
    for (; quad * 16 < bytes; quad += stride) {
        struct mu_quad next = mu_gather_quad(layout, quad);
        int present = quad < full ? numbers : (int)(bytes % 16) * numbers / 16;
        stats_add_quad(thread, dtype, &next, quad, present);
    }
}

/* --- parts of many threads ---------------------------------------------------------------- */

union stats_words {
    struct mu_stats_part part;
    uint64_t words[sizeof(struct mu_stats_part) / 8];
};

/* The part of the lane whose number differs in `lanes`. */
MU_DEVICE struct mu_stats_part stats_shuffle(const struct mu_stats_part *part, int lanes) {
    union stats_words moved;
    moved.part = *part;
    MU_UNROLL
    for (int i = 0; i < (int)(sizeof(moved) / 8); i++) {
        moved.words[i] = mu_shuffle(moved.words[i], lanes);
    }
    return moved.part;
}

/* The parts of all threads of the block, in thread 0. */
MU_DEVICE void stats_merge_block(struct mu_stats_part *part) {
    __shared__ struct mu_stats_part warps[MU_WARPS];
    MU_NO_UNROLL
    for (int lanes = 1; lanes < MU_LANES; lanes *= 2) {
        struct mu_stats_part next = stats_shuffle(part, lanes);
        mu_stats_merge(part, &next);
    }
    if (mu_thread_buffer() == 0) {
        warps[mu_warp()] = *part;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        MU_NO_UNROLL
        for (int warp = 1; warp < MU_WARPS; warp++) {
            mu_stats_merge(part, &warps[warp]);
        }
    }
}

MU_DEVICE void stats_write(const struct mu_stats_part *part, double *words,
                           struct mu_stats_part *out) {
    struct mu_stats stats;
    if (out != 0) {
        *out = *part;
    }
    if (words == 0) {
        return;
    }
    mu_stats_finish(part, &stats);
    const double result[STATS_WORDS] = {
        (double)stats.count,
        (double)stats.finite,
        stats.min,
        stats.max,
        stats.mean,
        stats.std,
        stats.l1,
        stats.l2,
        stats.abs_max,
        (double)stats.zeros,
        (double)stats.nans,
        (double)stats.pos_infs,
        (double)stats.neg_infs,
        (double)stats.first_nan,
        (double)stats.first_inf,
        0,
    };
    MU_UNROLL
    for (int i = 0; i < STATS_WORDS; i++) {
        words[i] = result[i];
    }
}

MU_DEVICE void stats_tensor(const struct mu_gpu_layout *layout, int dense,
                            struct mu_stats_part *parts, double *words, struct mu_stats_part *out) {
    struct stats_thread thread;
    stats_clear(&thread);
    stats_run(&thread, layout, dense);
    stats_close_group(&thread);
    if (!mu_is_double(mu_number_type(MU_DTYPE_A(layout)))) {
        thread.part.min = (double)thread.low;
        thread.part.max = (double)thread.high;
    }
    stats_merge_block(&thread.part);
    if (threadIdx.x == 0 && gridDim.x > 1) {
        parts[blockIdx.x] = thread.part;
    } else if (threadIdx.x == 0) {
        stats_write(&thread.part, words, out);
    }
}

/* `parts`: one a block, not read where there is one block only. Of `words` and `out` either may be
 * NULL. */
MU_KERNEL(MU_GPU_THREADS)
mu_stats_dense(const struct mu_gpu_layout layout, struct mu_stats_part *parts, double *words,
               struct mu_stats_part *out) {
    stats_tensor(&layout, 1, parts, words, out);
}

MU_KERNEL(MU_GPU_THREADS)
mu_stats_strided(const struct mu_gpu_layout layout, struct mu_stats_part *parts, double *words,
                 struct mu_stats_part *out) {
    stats_tensor(&layout, 0, parts, words, out);
}

/* One block, for the parts of all others. */
MU_KERNEL(MU_GPU_THREADS)
mu_stats_end(const struct mu_stats_part *parts, int count, double *words,
             struct mu_stats_part *out) {
    struct mu_stats_part part;
    mu_stats_part_clear(&part);
    MU_NO_UNROLL
    for (int i = (int)threadIdx.x; i < count; i += MU_GPU_THREADS) {
        mu_stats_merge(&part, &parts[i]);
    }
    stats_merge_block(&part);
    if (threadIdx.x == 0) {
        stats_write(&part, words, out);
    }
}
