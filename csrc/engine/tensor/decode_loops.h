/* The loops of decode.h, for the file that includes it: compilers make vectors of them, as wide as
 * the flags of that file allow. The file for NEON defines MU_NEON. */
#ifndef MU_DECODE_LOOPS_H
#define MU_DECODE_LOOPS_H

#include <string.h>

#include "tensor/byte_floats.h"
#include "tensor/number.h"
#include "tensor/tensor.h"

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(MU_NEON)
#include <arm_neon.h>
#endif

/* The loop over elements of one C type; `value` is an expression of the element `x`. */
#define DECODE(type, value)                                                                        \
    for (size_t i = 0; i < numbers; i++) {                                                         \
        type x;                                                                                    \
        memcpy(&x, bytes + i * sizeof(x), sizeof(x));                                              \
        out[i] = (value);                                                                          \
    }

static inline void floats_of_float16(const uint8_t *bytes, size_t numbers, float *out) {
#if defined(__F16C__)
    for (; numbers >= 8; numbers -= 8, bytes += 16, out += 8) {
        _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)bytes)));
    }
#elif defined(MU_NEON)
    for (; numbers >= 8; numbers -= 8, bytes += 16, out += 8) {
        float16x8_t x = vreinterpretq_f16_u8(vld1q_u8(bytes));
        vst1q_f32(out, vcvt_f32_f16(vget_low_f16(x)));
        vst1q_f32(out + 4, vcvt_high_f32_f16(x));
    }
#endif
    DECODE(uint16_t, mu_float16_value(x))
}

static inline void floats_of_float4(const uint8_t *bytes, size_t elements, float *out) {
    for (size_t i = 0; i < elements; i++) {
        out[2 * i] = mu_float4_e2m1_value(bytes[i] & 0xFu);
        out[2 * i + 1] = mu_float4_e2m1_value(bytes[i] >> 4);
    }
}

static inline void floats_of_numbers(int part, const uint8_t *bytes, size_t numbers, float *out) {
    switch (part) {
    case MU_DTYPE_BOOL:
        DECODE(uint8_t, x != 0)
        break;
    case MU_DTYPE_UINT8:
        DECODE(uint8_t, x)
        break;
    case MU_DTYPE_UINT16:
        DECODE(uint16_t, x)
        break;
    case MU_DTYPE_INT8:
        DECODE(int8_t, x)
        break;
    case MU_DTYPE_INT16:
        DECODE(int16_t, x)
        break;
    case MU_DTYPE_FLOAT16:
        floats_of_float16(bytes, numbers, out);
        break;
    case MU_DTYPE_BFLOAT16:
        DECODE(uint16_t, mu_bfloat16_value(x))
        break;
    case MU_DTYPE_FLOAT32:
        memcpy(out, bytes, numbers * sizeof(float));
        break;
    case MU_DTYPE_FLOAT4_E2M1FN_X2:
        floats_of_float4(bytes, numbers / 2, out);
        break;
    default: {
        const float *values = mu_byte_float_values(part);
        DECODE(uint8_t, values[x])
        break;
    }
    }
}

/* By way of floats, some at a time. */
static inline void doubles_by_floats(int part, const uint8_t *bytes, size_t numbers, double *out) {
    enum { SOME = 256 };
    float floats[SOME];
    size_t bits = part == MU_DTYPE_FLOAT4_E2M1FN_X2 ? 4 : 8 * mu_dtype_info(part)->size;
    for (size_t at = 0; at < numbers; at += SOME) {
        size_t count = numbers - at < SOME ? numbers - at : SOME;
        floats_of_numbers(part, bytes + at * bits / 8, count, floats);
        for (size_t i = 0; i < count; i++) {
            out[at + i] = (double)floats[i];
        }
    }
}

static inline void doubles_of_numbers(int part, const uint8_t *bytes, size_t numbers, double *out) {
    switch (part) {
    case MU_DTYPE_UINT32:
        DECODE(uint32_t, (double)x)
        break;
    case MU_DTYPE_UINT64:
        DECODE(uint64_t, (double)x)
        break;
    case MU_DTYPE_INT32:
        DECODE(int32_t, (double)x)
        break;
    case MU_DTYPE_INT64:
        DECODE(int64_t, (double)x)
        break;
    case MU_DTYPE_FLOAT32:
        DECODE(float, (double)x)
        break;
    case MU_DTYPE_FLOAT64:
        memcpy(out, bytes, numbers * sizeof(double));
        break;
    default:
        doubles_by_floats(part, bytes, numbers, out);
        break;
    }
}

#endif
