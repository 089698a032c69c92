#define MU_VECTOR_BYTES 64
#include "compare/compare_lanes.h"

const struct mu_compare_kernels mu_compare_avx512 = COMPARE_KERNELS;
