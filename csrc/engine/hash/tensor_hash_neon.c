#include <arm_neon.h>
#include <stdint.h>

/* Two quads, so that the products of all their words are made by instructions for whole vectors. */
typedef struct {
    uint64x2_t first, second;
} lanes;
typedef uint32x4_t factors;
#define LANES_QUADS 2

static inline lanes lanes_zero(void) {
    return (lanes){vdupq_n_u64(0), vdupq_n_u64(0)};
}

static inline lanes lanes_load(const void *address) {
    const uint8_t *bytes = address;
    return (lanes){vreinterpretq_u64_u8(vld1q_u8(bytes)),
                   vreinterpretq_u64_u8(vld1q_u8(bytes + 16))};
}

static inline void lanes_fold(lanes a, uint64_t *out) {
    vst1q_u64(out, vaddq_u64(a.first, a.second));
}

static inline uint32x4_t words(uint64x2_t a) {
    return vreinterpretq_u32_u64(a);
}

static inline lanes lanes_add_words(lanes a, lanes b) {
    return (lanes){vreinterpretq_u64_u32(vaddq_u32(words(a.first), words(b.first))),
                   vreinterpretq_u64_u32(vaddq_u32(words(a.second), words(b.second)))};
}

static inline factors lanes_even(lanes a) {
    return vuzp1q_u32(words(a.first), words(a.second));
}

static inline factors lanes_odd(lanes a) {
    return vuzp2q_u32(words(a.first), words(a.second));
}

static inline factors lanes_exchange(factors x) {
    return vrev64q_u32(x);
}

static inline lanes lanes_add_products(lanes sum, factors x, factors y) {
    return (lanes){vmlal_u32(sum.first, vget_low_u32(x), vget_low_u32(y)),
                   vmlal_high_u32(sum.second, x, y)};
}

#include "hash/tensor_hash_lanes.h"

const struct mu_hash_kernel mu_hash_kernel_neon = {
    .name = "neon", .add_quads = add_quads, .add_block = add_block, .add_blocks = add_blocks};
