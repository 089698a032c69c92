#define MU_VECTOR_BYTES 16
#include "compare_lanes.h"

const struct mu_compare_kernels mu_compare_portable = COMPARE_KERNELS;

const struct mu_compare_kernels *mu_compare_best(void) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return &mu_compare_avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return &mu_compare_avx2;
    }
#endif
    return &mu_compare_portable;
}
