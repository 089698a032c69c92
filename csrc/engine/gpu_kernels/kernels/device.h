/* Shared by all kernels: their declaration, the exchange between lanes, and the reading of a
 * tensor.
 *
 * The kernels are written in what C11 and CUDA C++ have in common: NVRTC compiles them for a GPU,
 * and gpu_emulation.h lets a test run them on the processor. A warp has 32 lanes. All threads of a
 * block reach every shuffle and every barrier.
 */
#ifndef MU_KERNELS_DEVICE_H
#define MU_KERNELS_DEVICE_H

#include "gpu_kernels/gpu_layout.h"
#include "tensor/shared_math.h"

enum { MU_LANES = 32, MU_WARPS = MU_GPU_THREADS / MU_LANES };

#ifdef __CUDACC__

#define MU_DEVICE static __device__ __forceinline__
#define MU_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define MU_UNROLL _Pragma("unroll")

/* Keeps the compiler from unrolling a loop whose body is long and rarely runs. */
#define MU_NO_UNROLL _Pragma("unroll 1")

/* The value of the lane whose number differs in the bits of `lanes`. */
MU_DEVICE uint64_t mu_shuffle(uint64_t value, int lanes) {
    return __shfl_xor_sync(0xFFFFFFFFu, value, lanes);
}

MU_DEVICE void mu_atomic_add(uint64_t *sum, uint64_t value) {
    atomicAdd(sum, value);
}

MU_DEVICE struct mu_quad mu_load_quad(const uint8_t *at) {
    uint4 words = __ldg((const uint4 *)at);
    struct mu_quad quad = {{words.x, words.y, words.z, words.w}};
    return quad;
}

#else

#include "tests/gpu_kernels/gpu_emulation.h"

#endif

MU_DEVICE int mu_thread_buffer(void) {
    return (int)(threadIdx.x % MU_LANES);
}

MU_DEVICE int mu_warp(void) {
    return (int)(threadIdx.x / MU_LANES);
}

/* The sum over all lanes of the warp, in each of them. */
MU_DEVICE uint64_t mu_sum_of_warp(uint64_t value) {
    MU_UNROLL
    for (int lanes = MU_LANES / 2; lanes > 0; lanes /= 2) {
        value += mu_shuffle(value, lanes);
    }
    return value;
}

/* Where the element number `index` of the tensor is, in row-major order. */
MU_DEVICE const uint8_t *mu_element(const struct mu_gpu_layout *layout, uint64_t index) {
    const uint8_t *at = layout->data;
    for (int dim = layout->ndim - 1; dim > 0; dim--) {
        uint64_t outer = index / layout->shape[dim];
        at += (int64_t)(index - outer * layout->shape[dim]) * layout->step_bytes[dim];
        index = outer;
    }
    return at + (int64_t)index * layout->step_bytes[0];
}

/* The bits of an element of up to 8 bytes, in the low end. */
MU_DEVICE uint64_t mu_element_bits(const uint8_t *at, int bytes) {
    switch (bytes) {
    case 1:
        return *at;
    case 2:
        return *(const uint16_t *)at;
    case 4:
        return *(const uint32_t *)at;
    default:
        return *(const uint64_t *)at;
    }
}

/* The place of 16 bytes from the element number `first` on where they lie one after the other and
 * aligned, else NULL. */
MU_DEVICE const uint8_t *mu_run_of_quad(const struct mu_gpu_layout *layout, uint64_t first) {
    uint64_t run = layout->shape[layout->ndim - 1];
    uint64_t count = (uint64_t)16 >> layout->item_shift;
    if (layout->step_bytes[layout->ndim - 1] != (int64_t)1 << layout->item_shift ||
        first >= layout->elements || first % run + count > run) {
        return 0;
    }
    const uint8_t *at = mu_element(layout, first);
    return (uint64_t)at % 16 == 0 ? at : 0;
}

/* 16 bytes of the tensor's row-major bytes from the element number `first` on, element by element;
 * zeros after the end. */
MU_DEVICE struct mu_quad mu_gather(const struct mu_gpu_layout *layout, uint64_t first) {
    const uint8_t *run = mu_run_of_quad(layout, first);
    if (run != 0) {
        return mu_load_quad(run);
    }
    uint64_t low = 0;
    uint64_t high = 0;
    int item = 1 << layout->item_shift;
    int piece = item < 8 ? item : 8; /* complex128 is read as two */
    for (int byte = 0; byte < 16; byte += piece) {
        uint64_t index = first + ((uint64_t)byte >> layout->item_shift);
        if (index >= layout->elements) {
            break;
        }
        uint64_t bits = mu_element_bits(mu_element(layout, index) + (byte & (item - 1)), piece)
                        << byte % 8 * 8;
        low |= byte < 8 ? bits : 0;
        high |= byte < 8 ? 0 : bits;
    }
    struct mu_quad gathered = {
        {(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)}};
    return gathered;
}

/* The quad number `quad` of the tensor's row-major bytes. */
MU_DEVICE struct mu_quad mu_gather_quad(const struct mu_gpu_layout *layout, uint64_t quad) {
    return mu_gather(layout, quad * 16 >> layout->item_shift);
}

/* Where a row of a box begins in the whole, in bytes. */
MU_DEVICE uint64_t mu_gpu_row_begin(const struct mu_gpu_rows *rows, uint64_t row) {
    uint64_t begin = rows->begin;
    for (int dim = rows->ndim - 1; dim >= 0; dim--) {
        uint64_t outer = row / rows->shape[dim];
        begin += (row - outer * rows->shape[dim]) * rows->pitch[dim];
        row = outer;
    }
    return begin;
}

#endif
