#define MU_MD5_VECTOR_BYTES 64
#include "hash/md5_kernel.h"

void mu_md5_run32_avx512(uint32_t *states, const uint8_t *const *data, size_t blocks) {
    mu_md5_run_blocks(states, data, blocks, 2);
}
