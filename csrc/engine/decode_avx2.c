#include "decode.h"

#include <immintrin.h>
#include <string.h>

#include "number.h"

enum { STEP = 8 };

static inline void store_doubles(__m256 values, double *out) {
    _mm256_storeu_pd(out, _mm256_cvtps_pd(_mm256_castps256_ps128(values)));
    _mm256_storeu_pd(out + STEP / 2, _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1)));
}

static inline void decode_step(int part, const uint8_t *bytes, double *out) {
    __m128i bits = _mm_loadu_si128((const __m128i *)bytes);
    __m256 values = part == MU_DTYPE_FLOAT16
                        ? _mm256_cvtph_ps(bits)
                        : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    store_doubles(values, out);
}

void mu_decode_halves_avx2(int part, const uint8_t *bytes, size_t numbers, double *out) {
    size_t whole = numbers - numbers % STEP;
    for (size_t i = 0; i < whole; i += STEP) {
        decode_step(part, bytes + 2 * i, out + i);
    }
    if (whole < numbers) {
        uint8_t padded[2 * STEP] = {0};
        double values[STEP];
        memcpy(padded, bytes + 2 * whole, 2 * (numbers - whole));
        decode_step(part, padded, values);
        memcpy(out + whole, values, (numbers - whole) * sizeof(values[0]));
    }
}
