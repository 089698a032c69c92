#include "replace/aho_corasick_starts.h"

#include <immintrin.h>

enum { BLOCK = 32 };

static inline __m256i table_of(const uint8_t table[16]) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
}

/* The buckets of each byte, where it stands `place` bytes into a pattern. */
static inline __m256i buckets_of(const struct mu_ac_starts *starts, __m256i bytes, int place) {
    const __m256i half = _mm256_set1_epi8(15);
    __m256i low = _mm256_and_si256(bytes, half);
    __m256i high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), half);
    return _mm256_and_si256(_mm256_shuffle_epi8(table_of(starts->low[place]), low),
                            _mm256_shuffle_epi8(table_of(starts->high[place]), high));
}

static inline __m256i load(const unsigned char *bytes) {
    return _mm256_loadu_si256((const __m256i *)bytes);
}

/* Bit i is set where a pattern may begin with byte i of the block. */
static inline uint32_t starts_in(const struct mu_ac_starts *starts, const unsigned char *block) {
    __m256i common = buckets_of(starts, load(block), 0);
    for (int i = 1; i < MU_AC_STARTS_BYTES; i++) {
        common = _mm256_and_si256(common, buckets_of(starts, load(block + i), i));
    }
    __m256i none = _mm256_cmpeq_epi8(common, _mm256_setzero_si256());
    return ~(uint32_t)_mm256_movemask_epi8(none);
}

static inline __m256i between(__m256i bytes, char first, char last) {
    return _mm256_and_si256(_mm256_cmpgt_epi8(bytes, _mm256_set1_epi8((char)(first - 1))),
                            _mm256_cmpgt_epi8(_mm256_set1_epi8((char)(last + 1)), bytes));
}

/* Bit i is set where byte i of the block is one of a name. */
static inline uint32_t names_in(const unsigned char *block) {
    __m256i bytes = load(block);
    __m256i letters = between(_mm256_or_si256(bytes, _mm256_set1_epi8(' ')), 'a', 'z');
    __m256i others =
        _mm256_or_si256(between(bytes, '0', '9'), _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('_')));
    return (uint32_t)_mm256_movemask_epi8(_mm256_or_si256(letters, others));
}

size_t mu_ac_next_start_avx2(const struct mu_ac_starts *starts, const unsigned char *text,
                             size_t at, size_t limit) {
    uint32_t inside = at > 0 && starts->is_name[text[at - 1]];
    for (; limit - at >= BLOCK + MU_AC_STARTS_BYTES - 1; at += BLOCK) {
        uint32_t found = starts_in(starts, text + at);
        if (starts->whole) {
            uint32_t names = names_in(text + at);
            found &= ~(names & (names << 1 | inside));
            inside = names >> (BLOCK - 1);
        }
        if (found != 0) {
            return at + (size_t)__builtin_ctz(found);
        }
    }
    return mu_ac_next_start_portable(starts, text, at, limit);
}

size_t mu_ac_name_end_avx2(const unsigned char *text, size_t at, size_t limit) {
    for (; limit - at >= BLOCK; at += BLOCK) {
        uint32_t others = ~names_in(text + at);
        if (others != 0) {
            return at + (size_t)__builtin_ctz(others);
        }
    }
    return mu_ac_name_end_portable(text, at, limit);
}
