#define MU_MD5_VECTOR_BYTES 64
#define MU_MD5_GROUPS 2
#define MU_MD5_ANY_FUNCTION 1
#include "hash/md5_kernel.h"

void mu_md5_run32_avx512(uint32_t *states, const uint8_t *const *data, size_t blocks) {
    mu_md5_run_blocks(states, data, blocks, 2);
}

void mu_md5_run16_avx512(uint32_t *states, const uint8_t *const *data, size_t blocks) {
    mu_md5_run_blocks(states, data, blocks, 1);
}
