#define MU_VECTOR_BYTES 32
#include "stats/stats_vector.h"

const struct mu_stats_kernels mu_stats_kernels_avx2 = MU_STATS_KERNELS;
