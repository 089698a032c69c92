/* The inner loops that count NaN and Inf. nan_inf_vector.h has the code of all variants. */
#ifndef MU_NAN_INF_KERNELS_H
#define MU_NAN_INF_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "tensor/special_values.h"
#include "tensor/tensor.h"

/* Adds the counts of `numbers` numbers, of which the rule says what is special; they need no
 * alignment. */
typedef void (*mu_nan_inf_block)(const struct mu_special_rule *rule, const uint8_t *bytes,
                                 size_t numbers, int64_t counts[MU_NAN_INF_COUNTS]);

void mu_nan_inf_block_portable(const struct mu_special_rule *rule, const uint8_t *bytes,
                               size_t numbers, int64_t counts[MU_NAN_INF_COUNTS]);
#ifdef __x86_64__
void mu_nan_inf_block_avx2(const struct mu_special_rule *rule, const uint8_t *bytes, size_t numbers,
                           int64_t counts[MU_NAN_INF_COUNTS]);
void mu_nan_inf_block_avx512(const struct mu_special_rule *rule, const uint8_t *bytes,
                             size_t numbers, int64_t counts[MU_NAN_INF_COUNTS]);
#elif defined(__aarch64__)
void mu_nan_inf_block_neon(const struct mu_special_rule *rule, const uint8_t *bytes, size_t numbers,
                           int64_t counts[MU_NAN_INF_COUNTS]);
#endif

/* The fastest that this processor runs. */
mu_nan_inf_block mu_nan_inf_block_best(void);

/* mu_nan_inf_count with a loop of choice, for the tests. */
void mu_nan_inf_count_with(mu_nan_inf_block block, const struct mu_tensor *tensor,
                           int64_t counts[MU_NAN_INF_COUNTS]);

#endif
