#define MU_VECTOR_BYTES 64
#include "stats/nan_inf_vector.h"

void mu_nan_inf_block_avx512(const struct mu_special_rule *rule, const uint8_t *bytes,
                             size_t numbers, int64_t counts[MU_NAN_INF_COUNTS]) {
    count_block(rule, bytes, numbers, counts);
}
