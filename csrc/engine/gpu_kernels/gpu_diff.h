/* The result of a comparison in the GPU's memory. compare.h makes a struct mu_diff of it. */
#ifndef MU_GPU_DIFF_H
#define MU_GPU_DIFF_H

#include "compare/compare_math.h"

enum { MU_GPU_ELEMENT_BYTES = 16 };

/* As struct mu_mismatch. */
struct mu_gpu_mismatch {
    int64_t index;
    uint8_t a[MU_GPU_ELEMENT_BYTES], b[MU_GPU_ELEMENT_BYTES];
};

/* In front of a list of the first mismatches, index ascending. */
struct mu_gpu_diff {
    struct mu_compare_part part;
    int64_t listed; /* as many of the list are filled */
};

MU_SHARED struct mu_gpu_mismatch *mu_gpu_diff_list(struct mu_gpu_diff *diff) {
    return (struct mu_gpu_mismatch *)(diff + 1);
}

#endif
