#define MU_VECTOR_BYTES 32
#include "compare/compare_lanes.h"

const struct mu_compare_kernels mu_compare_avx2 = COMPARE_KERNELS;
