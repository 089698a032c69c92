#define MU_NEON
#define MU_VECTOR_BYTES 16
#include "compare/compare_lanes.h"

const struct mu_compare_kernels mu_compare_neon = COMPARE_KERNELS;
