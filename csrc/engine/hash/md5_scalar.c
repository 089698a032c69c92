#include <string.h>

#include "hash/md5_lanes.h"
#include "hash/md5_steps.h"

#define ROUND_F(b, c, d) (((c ^ d) & b) ^ d)
#define ROUND_G(b, c, d) ((~d & c) + (b & d))
#define ROUND_H(b, c, d) (b ^ (c ^ d))
#define ROUND_H_AGAIN(b, c, d) ROUND_H(b, c, d)
#define ROUND_I(b, c, d) (c ^ (b | ~d))

#define SCALAR_STEP(round, a, b, c, d, word, shift, addend)                                        \
    a += words[word] + (addend) + ROUND_##round(b, c, d);                                          \
    a = b + (a << (shift) | a >> (32 - (shift)));

void mu_md5_run_scalar(uint32_t *states, const uint8_t *const *data, size_t blocks) {
    for (size_t block = 0; block < blocks; block++) {
        uint32_t words[16];
        memcpy(words, data[0] + block * MU_MD5_BLOCK, sizeof words);
        uint32_t a = states[0], b = states[1], c = states[2], d = states[3];
        MU_MD5_STEPS(SCALAR_STEP)
        states[0] += a;
        states[1] += b;
        states[2] += c;
        states[3] += d;
    }
}

#define LESS_F 0
#define LESS_G 0
#define LESS_H 0
#define LESS_H_AGAIN 0
#define LESS_I 1
#define ADDEND(round, a, b, c, d, word, shift, addend) (addend) - LESS_##round,

const uint32_t mu_md5_addends[64] = {MU_MD5_STEPS(ADDEND)};
