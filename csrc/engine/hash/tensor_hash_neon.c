#include <arm_neon.h>

/* Two quads, so that the products of all their words are made by instructions for whole vectors. */
typedef struct {
    uint32x4_t first, second;
} lanes;
typedef uint32x4_t factors;
#define LANES_QUADS 2

static inline lanes lanes_zero(void) {
    return (lanes){vdupq_n_u32(0), vdupq_n_u32(0)};
}

static inline lanes lanes_load(const void *address) {
    return (lanes){vreinterpretq_u32_u8(vld1q_u8(address)),
                   vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)address + 16))};
}

static inline void lanes_store(void *address, lanes a) {
    vst1q_u8(address, vreinterpretq_u8_u32(a.first));
    vst1q_u8((uint8_t *)address + 16, vreinterpretq_u8_u32(a.second));
}

static inline lanes lanes_add_words(lanes a, lanes b) {
    return (lanes){vaddq_u32(a.first, b.first), vaddq_u32(a.second, b.second)};
}

static inline factors lanes_even(lanes a) {
    return vuzp1q_u32(a.first, a.second);
}

static inline factors lanes_odd(lanes a) {
    return vuzp2q_u32(a.first, a.second);
}

static inline factors lanes_exchange(factors x) {
    return vrev64q_u32(x);
}

static inline lanes lanes_add_products(lanes sum, factors x, factors y) {
    uint64x2_t first = vreinterpretq_u64_u32(sum.first);
    uint64x2_t second = vreinterpretq_u64_u32(sum.second);
    first = vmlal_u32(first, vget_low_u32(x), vget_low_u32(y));
    second = vmlal_high_u32(second, x, y);
    return (lanes){vreinterpretq_u32_u64(first), vreinterpretq_u32_u64(second)};
}

#include "hash/tensor_hash_lanes.h"

const struct mu_hash_kernel mu_hash_kernel_neon = {
    .name = "neon", .add_quads = add_quads, .add_blocks = add_blocks};
