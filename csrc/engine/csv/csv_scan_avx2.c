#include <immintrin.h>
#include <stdint.h>

typedef struct {
    __m256i low, high;
} block_bytes;

static inline block_bytes load_block(const char *bytes) {
    return (block_bytes){_mm256_loadu_si256((const __m256i *)bytes),
                         _mm256_loadu_si256((const __m256i *)(bytes + 32))};
}

static inline uint64_t equal_mask(block_bytes block, char byte) {
    __m256i wanted = _mm256_set1_epi8(byte);
    uint32_t first = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(block.low, wanted));
    uint32_t second = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(block.high, wanted));
    return first | (uint64_t)second << 32;
}

/* A multiplication without carries by all ones. */
static inline uint64_t running_parity(uint64_t bits) {
    __m128i product = _mm_clmulepi64_si128(_mm_set_epi64x(0, (int64_t)bits), _mm_set1_epi8(-1), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

#include "csv/csv_scan_vector.h"

enum mu_csv_scan_result mu_csv_scan_avx2(const char *row, const char *limit,
                                         struct mu_csv_cut *cut) {
    return scan_row(row, limit, cut);
}
