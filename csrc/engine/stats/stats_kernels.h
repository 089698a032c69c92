/* The inner loops of the statistics, for one block of floats or doubles; numbers of other types are
 * converted first.
 *
 * All variants add in the same lanes and fold them in the same order. None contracts a product and
 * a sum. So their results are equal bit for bit. stats_vector.h has the code of all.
 */
#ifndef MU_STATS_KERNELS_H
#define MU_STATS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

#include "stats/stats_math.h"
#include "tensor/tensor.h"

/* Fills `part`, which must be clear, with the statistics of `numbers` numbers, which need no
 * alignment. Returns false and leaves `part` clear when a number is not finite, or when the squares
 * would leave the range of a double. */
typedef bool (*mu_stats_block)(const uint8_t *bytes, size_t numbers, struct mu_stats_part *part);

struct mu_stats_kernels {
    mu_stats_block float32, float64;
};

extern const struct mu_stats_kernels mu_stats_kernels_portable;
#ifdef __x86_64__
extern const struct mu_stats_kernels mu_stats_kernels_avx2;   /* needs AVX2 and FMA */
extern const struct mu_stats_kernels mu_stats_kernels_avx512; /* and AVX-512 F, BW, DQ, VL */
#elif defined(__aarch64__)
extern const struct mu_stats_kernels mu_stats_kernels_neon;
#endif

/* The fastest that this processor runs. */
const struct mu_stats_kernels *mu_stats_kernels_best(void);

/* mu_stats_part_of with kernels of choice, for the tests. Without a kernel for float32 (NULL) all
 * is converted to doubles. */
void mu_stats_part_with(const struct mu_stats_kernels *kernels, const struct mu_tensor *tensor,
                        struct mu_stats_part *out);

#endif
