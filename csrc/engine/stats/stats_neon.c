#define MU_NEON
#define MU_VECTOR_BYTES 16
#include "stats/stats_vector.h"

const struct mu_stats_kernels mu_stats_kernels_neon = MU_STATS_KERNELS;
