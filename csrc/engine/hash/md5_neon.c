/* Four groups, because a step takes ten cycles and has eight instructions: with fewer, a core of
 * four vector units waits. */
#define MU_NEON
#define MU_MD5_VECTOR_BYTES 16
#include "hash/md5_kernel.h"

void mu_md5_run16_neon(uint32_t *states, const uint8_t *const *data, size_t blocks) {
    mu_md5_run_blocks(states, data, blocks, 4);
}

void mu_md5_run8_neon(uint32_t *states, const uint8_t *const *data, size_t blocks) {
    mu_md5_run_blocks(states, data, blocks, 2);
}
