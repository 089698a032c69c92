#include <immintrin.h>
#include <stdint.h>

typedef __m256i lanes, factors;
#define LANES_QUADS 2

static inline lanes lanes_zero(void) {
    return _mm256_setzero_si256();
}

static inline lanes lanes_load(const void *address) {
    return _mm256_loadu_si256(address);
}

static inline void lanes_fold(lanes a, uint64_t *out) {
    __m128i pair = _mm_add_epi64(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storeu_si128((__m128i *)out, pair);
}

static inline lanes lanes_add_words(lanes a, lanes b) {
    return _mm256_add_epi32(a, b);
}

/* The words of a quad stay where they were: the upper half of each 64 bits is not read. */
static inline factors lanes_even(lanes a) {
    return a;
}

static inline factors lanes_odd(lanes a) {
    return _mm256_srli_epi64(a, 32);
}

static inline factors lanes_exchange(factors x) {
    return _mm256_shuffle_epi32(x, _MM_SHUFFLE(1, 0, 3, 2));
}

static inline lanes lanes_add_products(lanes sum, factors x, factors y) {
    return _mm256_add_epi64(sum, _mm256_mul_epu32(x, y));
}

#include "hash/tensor_hash_lanes.h"

const struct mu_hash_kernel mu_hash_kernel_avx2 = {
    .name = "avx2", .add_quads = add_quads, .add_block = add_block, .add_blocks = add_blocks};
