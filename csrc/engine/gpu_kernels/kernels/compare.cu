/* Two tensors against each other; compare_math.h says what is close and how results merge.
 *
 * The elements are cut into chunks by their number alone, one for each block, so that the result is
 * the same on every GPU. mu_compare_end merges the chunks' parts, and then looks again for the
 * first mismatches, in the chunks that have some.
 */
#include "compare/compare_math.h"
#include "gpu_kernels/gpu_diff.h"
#include "gpu_kernels/kernels/values.h"

enum {
    COMPARE_AHEAD = 4, /* pairs that are loaded before the first is compared */
};

/* What is the same for all pairs. */
struct compare_tensors {
    const struct mu_gpu_layout *a, *b;
    struct mu_compare_tolerance tolerance;
};

/* The bits of an element of up to 16 bytes. */
struct element {
    uint64_t low, high;
};

struct pair {
    struct element a, b;
};

MU_DEVICE struct element load_element(const struct mu_gpu_layout *layout, uint64_t index) {
    const uint8_t *at = mu_element(layout, index);
    struct element element = {0, 0};
    if (layout->item_shift == 4) {
        element.low = mu_element_bits(at, 8);
        element.high = mu_element_bits(at + 8, 8);
    } else {
        element.low = mu_element_bits(at, 1 << layout->item_shift);
    }
    return element;
}

MU_DEVICE struct pair load_pair(const struct compare_tensors *tensors, uint64_t index) {
    struct pair pair = {load_element(tensors->a, index), load_element(tensors->b, index)};
    return pair;
}

MU_DEVICE struct mu_compare_integer integer_of(int dtype, uint64_t bits) {
    switch (dtype) {
    case MU_DTYPE_INT8:
        return mu_compare_signed((int8_t)(uint8_t)bits);
    case MU_DTYPE_INT16:
        return mu_compare_signed((int16_t)(uint16_t)bits);
    case MU_DTYPE_INT32:
        return mu_compare_signed((int32_t)(uint32_t)bits);
    case MU_DTYPE_INT64:
        return mu_compare_signed((int64_t)bits);
    case MU_DTYPE_BOOL:
        return mu_compare_unsigned(bits != 0);
    default:
        return mu_compare_unsigned(bits);
    }
}

/* The bits of the number `part` of an element. */
MU_DEVICE uint64_t bits_of_part(int dtype, struct element element, int part) {
    int bits = mu_number_bits(mu_number_type(dtype));
    if (bits == 64) {
        return part == 0 ? element.low : element.high;
    }
    return element.low >> part * bits & (((uint64_t)1 << bits % 64) - 1);
}

/* The imaginary part of a number that has none is 0. */
MU_DEVICE struct mu_compare_wide number_of(int dtype, struct element element, int part) {
    if (part >= mu_numbers_of(dtype)) {
        return mu_compare_narrow(0);
    }
    if (dtype == MU_DTYPE_INT64 || dtype == MU_DTYPE_UINT64) {
        return mu_compare_widen(integer_of(dtype, element.low));
    }
    return mu_compare_narrow(
        mu_double_value(mu_number_type(dtype), bits_of_part(dtype, element, part)));
}

MU_DEVICE struct mu_compare_verdict judge(const struct compare_tensors *tensors, struct pair pair) {
    int type_a = MU_DTYPE_A(tensors->a);
    int type_b = MU_DTYPE_B(tensors->b);
    if (mu_is_integer(type_a) && mu_is_integer(type_b)) {
        return mu_compare_integers(&tensors->tolerance, integer_of(type_a, pair.a.low),
                                   integer_of(type_b, pair.b.low));
    }
    struct mu_compare_wide a[2] = {number_of(type_a, pair.a, 0), number_of(type_a, pair.a, 1)};
    struct mu_compare_wide b[2] = {number_of(type_b, pair.b, 0), number_of(type_b, pair.b, 1)};
    if (mu_numbers_of(type_a) == 1 && mu_numbers_of(type_b) == 1) {
        return mu_compare_numbers(&tensors->tolerance, a[0], b[0]);
    }
    if (type_a == MU_DTYPE_FLOAT4_E2M1FN_X2) {
        return mu_compare_both(mu_compare_numbers(&tensors->tolerance, a[0], b[0]),
                               mu_compare_numbers(&tensors->tolerance, a[1], b[1]));
    }
    return mu_compare_complex(&tensors->tolerance, a, b);
}

MU_DEVICE void compare_pair(const struct compare_tensors *tensors, struct pair pair, uint64_t index,
                            struct mu_compare_part *part) {
    struct mu_compare_verdict verdict = judge(tensors, pair);
    mu_compare_part_add(part, &verdict, (int64_t)index);
    part->sum_aa += verdict.sum_aa;
    part->sum_bb += verdict.sum_bb;
    part->sum_ab += verdict.sum_ab;
    part->sum_dd += verdict.sum_dd;
    if (MU_DTYPE_A(tensors->a) == MU_DTYPE_B(tensors->b)) {
        part->bits_differ |= pair.a.low != pair.b.low || pair.a.high != pair.b.high;
    }
}

/* This thread's pairs of [index, end). */
MU_DEVICE void compare_range(const struct compare_tensors *tensors, uint64_t index, uint64_t end,
                             struct mu_compare_part *part) {
    index += threadIdx.x;
    for (; index + (COMPARE_AHEAD - 1) * MU_GPU_THREADS < end;
         index += COMPARE_AHEAD * MU_GPU_THREADS) {
        struct pair pairs[COMPARE_AHEAD];
        MU_UNROLL
        for (int i = 0; i < COMPARE_AHEAD; i++) {
            pairs[i] = load_pair(tensors, index + (uint64_t)(i * MU_GPU_THREADS));
        }
        MU_UNROLL
        for (int i = 0; i < COMPARE_AHEAD; i++) {
            compare_pair(tensors, pairs[i], index + (uint64_t)(i * MU_GPU_THREADS), part);
        }
    }
    MU_NO_UNROLL
    for (; index < end; index += MU_GPU_THREADS) {
        compare_pair(tensors, load_pair(tensors, index), index, part);
    }
}

/* --- parts of many threads ---------------------------------------------------------------- */

MU_DEVICE int64_t lesser_index(int64_t x, int64_t y) {
    return x < 0 || (y >= 0 && y < x) ? y : x;
}

MU_DEVICE int abs_above(const struct mu_compare_part *x, const struct mu_compare_part *y) {
    return mu_compare_exact_above(x->max_exact, y->max_exact) ||
           (x->max_abs > y->max_abs && !mu_compare_exact_above(y->max_exact, x->max_exact));
}

/* As mu_compare_part_merge, for parts whose elements are mingled: of equal errors the one with the
 * lesser index is kept. */
MU_DEVICE void merge_mingled(struct mu_compare_part *part, const struct mu_compare_part *next) {
    if (!abs_above(part, next) && !abs_above(next, part)) {
        part->max_abs_index = lesser_index(part->max_abs_index, next->max_abs_index);
    }
    if (part->max_rel == next->max_rel) {
        part->max_rel_index = lesser_index(part->max_rel_index, next->max_rel_index);
    }
    int64_t first = lesser_index(part->first_mismatch, next->first_mismatch);
    mu_compare_part_merge(part, next);
    part->first_mismatch = first;
}

union compare_words {
    struct mu_compare_part part;
    uint64_t words[sizeof(struct mu_compare_part) / 8];
};

/* The parts of all threads of the block, in thread 0. */
MU_DEVICE void merge_block(struct mu_compare_part *part) {
    __shared__ struct mu_compare_part warps[MU_WARPS];
    MU_NO_UNROLL
    for (int lanes = 1; lanes < MU_LANES; lanes *= 2) {
        union compare_words moved;
        moved.part = *part;
        MU_UNROLL
        for (int i = 0; i < (int)(sizeof(moved) / 8); i++) {
            moved.words[i] = mu_shuffle(moved.words[i], lanes);
        }
        merge_mingled(part, &moved.part);
    }
    if (mu_thread_buffer() == 0) {
        warps[mu_warp()] = *part;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        MU_NO_UNROLL
        for (int warp = 1; warp < MU_WARPS; warp++) {
            merge_mingled(part, &warps[warp]);
        }
    }
}

/* `parts`: one a block, whose chunk has `chunk` pairs. */
MU_KERNEL(MU_GPU_THREADS)
mu_compare_pairs(const struct mu_gpu_layout a, const struct mu_gpu_layout b,
                 const struct mu_compare_tolerance tolerance, uint64_t chunk,
                 struct mu_compare_part *parts) {
    struct compare_tensors tensors = {&a, &b, tolerance};
    struct mu_compare_part part;
    uint64_t first = blockIdx.x * chunk;
    uint64_t end = first + chunk < a.elements ? first + chunk : a.elements;
    mu_compare_part_init(&part);
    compare_range(&tensors, first, end, &part);
    merge_block(&part);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = part;
    }
}

/* --- the first mismatches ----------------------------------------------------------------- */

/* What thread 0 shares with the others. */
struct listing {
    uint64_t found[MU_WARPS];
    uint8_t mismatch[MU_GPU_THREADS];
    int64_t listed;
};

/* The least value that a thread of the block has, in all of them. */
MU_DEVICE uint64_t least_of_block(uint64_t value, struct listing *listing) {
    MU_UNROLL
    for (int lanes = 1; lanes < MU_LANES; lanes *= 2) {
        uint64_t other = mu_shuffle(value, lanes);
        value = other < value ? other : value;
    }
    __syncthreads();
    if (mu_thread_buffer() == 0) {
        listing->found[mu_warp()] = value;
    }
    __syncthreads();
    for (int warp = 0; warp < MU_WARPS; warp++) {
        value = listing->found[warp] < value ? listing->found[warp] : value;
    }
    return value;
}

/* The first chunk from `from` on that has mismatches, or `count`. */
MU_DEVICE uint64_t next_chunk(const struct mu_compare_part *parts, uint64_t from, uint64_t count,
                              struct listing *listing) {
    uint64_t chunk = from + threadIdx.x;
    while (chunk < count && parts[chunk].mismatches == 0) {
        chunk += MU_GPU_THREADS;
    }
    return least_of_block(chunk < count ? chunk : count, listing);
}

MU_DEVICE void store_element(struct element element, uint8_t *out) {
    for (int byte = 0; byte < 8; byte++) {
        out[byte] = (uint8_t)(element.low >> byte * 8);
        out[byte + 8] = (uint8_t)(element.high >> byte * 8);
    }
}

/* The mismatches among the pairs from `index` on, one a thread, are put on the list. */
MU_DEVICE void list_round(const struct compare_tensors *tensors, uint64_t index, uint64_t end,
                          int64_t list_max, struct listing *listing, struct mu_gpu_diff *out) {
    uint64_t mine = index + threadIdx.x;
    struct pair pair = {{0, 0}, {0, 0}};
    int mismatch = 0;
    if (mine < end) {
        pair = load_pair(tensors, mine);
        mismatch = !judge(tensors, pair).close;
    }
    listing->mismatch[threadIdx.x] = (uint8_t)mismatch;
    __syncthreads();
    int64_t place = listing->listed;
    for (unsigned before = 0; mismatch && before < threadIdx.x; before++) {
        place += listing->mismatch[before];
    }
    if (mismatch && place < list_max) {
        struct mu_gpu_mismatch *entry = &mu_gpu_diff_list(out)[place];
        entry->index = (int64_t)mine;
        store_element(pair.a, entry->a);
        store_element(pair.b, entry->b);
    }
    uint64_t found = mu_sum_of_warp((uint64_t)mismatch);
    if (mu_thread_buffer() == 0) {
        listing->found[mu_warp()] = found;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 0; warp < MU_WARPS; warp++) {
            listing->listed += (int64_t)listing->found[warp];
        }
    }
    __syncthreads();
}

/* Puts the mismatches of one chunk on the list. */
MU_DEVICE void list_chunk(const struct compare_tensors *tensors, const struct mu_compare_part *part,
                          uint64_t end, int64_t list_max, struct listing *listing,
                          struct mu_gpu_diff *out) {
    int64_t wanted = listing->listed + part->mismatches;
    wanted = wanted < list_max ? wanted : list_max;
    __syncthreads();
    MU_NO_UNROLL
    for (uint64_t index = (uint64_t)part->first_mismatch; index < end && listing->listed < wanted;
         index += MU_GPU_THREADS) {
        list_round(tensors, index, end, list_max, listing, out);
    }
}

MU_DEVICE void list_mismatches(const struct compare_tensors *tensors, uint64_t chunk,
                               const struct mu_compare_part *parts, uint64_t count,
                               int64_t list_max, struct listing *listing, struct mu_gpu_diff *out) {
    uint64_t at = next_chunk(parts, 0, count, listing);
    MU_NO_UNROLL
    while (at < count && listing->listed < list_max) {
        uint64_t end = (at + 1) * chunk;
        end = end < tensors->a->elements ? end : tensors->a->elements;
        list_chunk(tensors, &parts[at], end, list_max, listing, out);
        at = next_chunk(parts, at + 1, count, listing);
    }
}

/* One block, for the `count` parts of all others. */
MU_KERNEL(MU_GPU_THREADS)
mu_compare_end(const struct mu_gpu_layout a, const struct mu_gpu_layout b,
               const struct mu_compare_tolerance tolerance, uint64_t chunk,
               const struct mu_compare_part *parts, uint64_t count, int64_t list_max,
               struct mu_gpu_diff *out) {
    __shared__ struct listing listing;
    struct compare_tensors tensors = {&a, &b, tolerance};
    struct mu_compare_part part;
    mu_compare_part_init(&part);
    MU_NO_UNROLL
    for (uint64_t i = threadIdx.x; i < count; i += MU_GPU_THREADS) {
        merge_mingled(&part, &parts[i]);
    }
    merge_block(&part);
    if (threadIdx.x == 0) {
        out->part = part;
        listing.listed = 0;
    }
    __syncthreads();
    list_mismatches(&tensors, chunk, parts, count, list_max, &listing, out);
    __syncthreads();
    if (threadIdx.x == 0) {
        out->listed = listing.listed < list_max ? listing.listed : list_max;
    }
}
