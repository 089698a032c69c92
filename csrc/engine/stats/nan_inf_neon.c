#define MU_NEON
#define MU_VECTOR_BYTES 16
#include "stats/nan_inf_vector.h"

void mu_nan_inf_block_neon(const struct mu_special_rule *rule, const uint8_t *bytes, size_t numbers,
                           int64_t counts[MU_NAN_INF_COUNTS]) {
    count_block(rule, bytes, numbers, counts);
}
