/* The layout of a tensor in the memory of a GPU. It is an argument of kernels: the host fills it,
 * and the kernels read it.
 *
 * Dimensions are merged where one continues the other, as in mu_tensor_walk. A tensor without gaps
 * has one dimension then. Sizes and steps are the same on both sides: no field needs padding, and
 * none is a pointer to the host.
 */
#ifndef MU_GPU_LAYOUT_H
#define MU_GPU_LAYOUT_H

#include "tensor/shared_math.h"

enum {
    MU_GPU_THREADS = 256, /* of a block, in every kernel but one of a single thread */
    MU_GPU_DIMS_MAX = 64,
};

struct mu_gpu_layout {
    const uint8_t *data; /* on the device */
    uint64_t elements;
    int32_t dtype;                       /* enum mu_dtype */
    int32_t item_shift;                  /* log2 of the bytes an element */
    int32_t ndim;                        /* 1 at least */
    int32_t dense;                       /* 1: one run of bytes, aligned to quads */
    uint64_t shape[MU_GPU_DIMS_MAX];     /* outermost first */
    int64_t step_bytes[MU_GPU_DIMS_MAX]; /* from one index to the next */
};

/* The rows of a box in its whole; see hash/tensor_hash_box.h. */
struct mu_gpu_rows {
    uint64_t rows, row_bytes, begin;
    uint64_t skip; /* bytes at the beginning of each row that are hashed elsewhere */
    int32_t tail;  /* 1: the last quad counts, with zeros after the end of the whole */
    int32_t ndim;  /* dimensions that count rows */
    uint64_t shape[MU_GPU_DIMS_MAX];
    uint64_t pitch[MU_GPU_DIMS_MAX]; /* bytes of the whole from one index to the next */
};

/* Blocks of the hash that a row touches at most. */
MU_SHARED uint64_t mu_gpu_row_units(const struct mu_gpu_rows *rows) {
    return (rows->row_bytes - rows->skip + 4095) / 4096 + 1;
}

/* 16 bytes of a tensor, as 32-bit words. */
struct mu_quad {
    uint32_t words[4];
};

#endif
