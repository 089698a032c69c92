#define MU_MD5_VECTOR_BYTES 32
#include "hash/md5_kernel.h"

void mu_md5_run16_avx2(uint32_t *states, const uint8_t *const *data, size_t blocks) {
    mu_md5_run_blocks(states, data, blocks, 2);
}

void mu_md5_run8_avx2(uint32_t *states, const uint8_t *const *data, size_t blocks) {
    mu_md5_run_blocks(states, data, blocks, 1);
}
