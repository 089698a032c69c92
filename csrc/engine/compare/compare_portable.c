#define MU_VECTOR_BYTES 16
#include "compare/compare_lanes.h"

#include "base/cpu.h"

const struct mu_compare_kernels mu_compare_portable = COMPARE_KERNELS;

const struct mu_compare_kernels *mu_compare_best(void) {
#ifdef __x86_64__
    if (mu_cpu_has(MU_CPU_AVX512)) {
        return &mu_compare_avx512;
    }
    if (mu_cpu_has(MU_CPU_AVX2)) {
        return &mu_compare_avx2;
    }
#elif defined(__aarch64__)
    if (mu_cpu_has(MU_CPU_NEON)) {
        return &mu_compare_neon;
    }
#endif
    return &mu_compare_portable;
}
