#include "csv/csv_scan.h"

#include <immintrin.h>

enum { BLOCK = 64 };

static inline uint64_t equal_mask(__m256i low, __m256i high, char byte) {
    __m256i wanted = _mm256_set1_epi8(byte);
    uint32_t first = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, wanted));
    uint32_t second = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, wanted));
    return first | (uint64_t)second << 32;
}

/* Bit i of the result is the parity of the bits 0 to i: 1 from an opening quote to the closing. A
 * multiplication without carries by all ones does it. */
static inline uint64_t running_parity(uint64_t bits) {
    __m128i product = _mm_clmulepi64_si128(_mm_set_epi64x(0, (int64_t)bits), _mm_set1_epi8(-1), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

enum mu_csv_scan_result mu_csv_scan_avx2(const char *row, const char *limit,
                                         struct mu_csv_cut *cut) {
    uint64_t open = 0; /* all ones when the block starts inside quotes */
    uint64_t hidden_line_ends = 0, adjacent = 0, last_was_quote = 0;
    int count = 0;
    for (const char *block = row; block < limit; block += BLOCK) {
        __m256i low = _mm256_loadu_si256((const __m256i *)block);
        __m256i high = _mm256_loadu_si256((const __m256i *)(block + BLOCK / 2));
        uint64_t quotes = equal_mask(low, high, '"');
        uint64_t line_ends = equal_mask(low, high, '\n');
        uint64_t inside = open;
        if (quotes != 0) {
            adjacent |= quotes & (quotes << 1 | last_was_quote);
            inside ^= running_parity(quotes);
            open = (uint64_t)((int64_t)inside >> (BLOCK - 1));
        }
        last_was_quote = quotes >> (BLOCK - 1);
        uint64_t ends = line_ends & ~inside;
        uint64_t before_end = ends ^ (ends - 1); /* up to and with the line end; all when none */
        uint64_t commas = equal_mask(low, high, ',') & ~inside & before_end;
        hidden_line_ends |= line_ends & inside & before_end;
        for (; commas != 0 && count < MU_CSV_COLUMNS_MAX; commas &= commas - 1) {
            cut->end[count++] = block + __builtin_ctzll(commas);
        }
        if (ends != 0) {
            const char *end = block + __builtin_ctzll(ends);
            if (end >= limit) {
                break;
            }
            if (count < MU_CSV_COLUMNS_MAX) {
                cut->end[count++] = end;
            }
            cut->row_end = end;
            cut->count = count;
            cut->adjacent_quotes = adjacent != 0;
            cut->line_end_in_quotes = hidden_line_ends != 0;
            return MU_CSV_SCAN_ROW;
        }
    }
    return MU_CSV_SCAN_MORE;
}
