/* The fast part of a comparison: a block of elements of one floating type, all pairs finite.
 *
 * A kernel computes with 8 lanes of doubles, whatever the width of the processor's vectors. Element
 * i adds to lane i mod 8, so all instruction sets give the same bits. When there are NaNs or
 * infinities, a sum of squares is not finite, and the caller discards the whole result. Pure
 * functions of their arguments.
 */
#ifndef MU_COMPARE_KERNELS_H
#define MU_COMPARE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MU_COMPARE_LANES = 8,
    MU_COMPARE_BLOCK = 4096, /* elements at most that a kernel takes as stored */
    MU_COMPARE_PIECE = 1024, /* that are decoded at a time: both sides fit the first cache */
};

struct mu_compare_lanes {
    double aa[MU_COMPARE_LANES], bb[MU_COMPARE_LANES], ab[MU_COMPARE_LANES], dd[MU_COMPARE_LANES];
};

struct mu_compare_block {
    /* in */
    double atol, rtol;
    double max_rel_before; /* max_rel is needed only when it is above */
    bool over_atol;        /* a guess that max_abs is above atol; it only affects speed */
    /* in and out */
    struct mu_compare_lanes lanes;
    /* out */
    double max_abs;
    double max_rel;           /* 0 where none is above max_rel_before */
    int64_t mismatches;       /* |a - b| > atol + rtol * |b| */
    int64_t sign_differences; /* one below zero, the other above */
};

/* `count` is a multiple of MU_COMPARE_LANES; `a` and `b` need no alignment. */
typedef void (*mu_compare_kernel)(const void *a, const void *b, size_t count,
                                  struct mu_compare_block *block);

/* For elements that are equal on both sides: adds the same to the lanes as the kernel. */
typedef void (*mu_compare_squares)(const void *a, size_t count, struct mu_compare_lanes *lanes);

enum mu_compare_type {
    MU_COMPARE_F16,
    MU_COMPARE_BF16,
    MU_COMPARE_F32,
    MU_COMPARE_F64,
    MU_COMPARE_TYPES,
};

struct mu_compare_kernels {
    mu_compare_kernel compare[MU_COMPARE_TYPES];
    mu_compare_squares squares[MU_COMPARE_TYPES];
};

extern const struct mu_compare_kernels mu_compare_portable;
extern const struct mu_compare_kernels mu_compare_avx2;   /* x86-64 only */
extern const struct mu_compare_kernels mu_compare_avx512; /* x86-64 only */
extern const struct mu_compare_kernels mu_compare_neon;   /* aarch64 only */

/* The fastest that this processor runs. */
const struct mu_compare_kernels *mu_compare_best(void);

#endif
