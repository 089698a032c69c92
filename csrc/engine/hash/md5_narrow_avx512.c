/* Sixteen messages are faster as two groups of eight than as one group of sixteen. */
#define MU_MD5_VECTOR_BYTES 32
#include "hash/md5_kernel.h"

void mu_md5_run16_avx512(uint32_t *states, const uint8_t *const *data, size_t blocks) {
    mu_md5_run_blocks(states, data, blocks, 2);
}

void mu_md5_run8_avx512(uint32_t *states, const uint8_t *const *data, size_t blocks) {
    mu_md5_run_blocks(states, data, blocks, 1);
}
