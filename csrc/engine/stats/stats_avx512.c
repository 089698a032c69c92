#define MU_VECTOR_BYTES 64
#include "stats/stats_vector.h"

const struct mu_stats_kernels mu_stats_kernels_avx512 = MU_STATS_KERNELS;
