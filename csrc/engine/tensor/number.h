/* Element types, and the value of one element of each floating type.
 *
 * Shared by the processor and the GPU. The values of 8-bit and 4-bit floats are those of the OCP
 * specifications OFP8 (rev. 1.0) and MX (v1.0), and, for the fnuz forms, of Graphcore's and AMD's
 * proposal (arXiv 2206.02915): one zero, NaN in its negative's place, no infinities.
 */
#ifndef MU_NUMBER_H
#define MU_NUMBER_H

#include "tensor/shared_math.h"

/* torch's names, in the order of mu_dtype_info's table. */
enum mu_dtype {
    MU_DTYPE_BOOL,
    MU_DTYPE_UINT8,
    MU_DTYPE_UINT16,
    MU_DTYPE_UINT32,
    MU_DTYPE_UINT64,
    MU_DTYPE_INT8,
    MU_DTYPE_INT16,
    MU_DTYPE_INT32,
    MU_DTYPE_INT64,
    MU_DTYPE_FLOAT16,
    MU_DTYPE_BFLOAT16,
    MU_DTYPE_FLOAT32,
    MU_DTYPE_FLOAT64,
    MU_DTYPE_COMPLEX32,
    MU_DTYPE_COMPLEX64,
    MU_DTYPE_COMPLEX128,
    MU_DTYPE_FLOAT8_E4M3FN,
    MU_DTYPE_FLOAT8_E4M3FNUZ,
    MU_DTYPE_FLOAT8_E5M2,
    MU_DTYPE_FLOAT8_E5M2FNUZ,
    MU_DTYPE_FLOAT8_E8M0FNU,
    MU_DTYPE_FLOAT4_E2M1FN_X2, /* one byte holds two values, the low four bits the first */
    MU_DTYPE_COUNT,
};

MU_SHARED float mu_float_of_bits(uint32_t bits) {
    union {
        uint32_t bits;
        float value;
    } pun = {bits};
    return pun.value;
}

/* 2 to the power of `exponent`, from -126 to 127. */
MU_SHARED float mu_power_of_two(int exponent) {
    return mu_float_of_bits((uint32_t)(exponent + 127) << 23);
}

/* A finite value of a format with `mantissa` bits and an exponent's bias, from its bits without the
 * sign. */
MU_SHARED float mu_small_float(uint32_t magnitude, int mantissa, int bias) {
    uint32_t exponent = magnitude >> mantissa;
    uint32_t fraction = magnitude & ((1u << mantissa) - 1);
    if (exponent == 0) {
        return (float)fraction * mu_power_of_two(1 - bias - mantissa);
    }
    return (float)(fraction | 1u << mantissa) * mu_power_of_two((int)exponent - bias - mantissa);
}

MU_SHARED float mu_with_sign(float magnitude, uint32_t negative) {
    return negative ? -magnitude : magnitude;
}

#define MU_FLOAT_NAN mu_float_of_bits(0x7FC00000u)
#define MU_FLOAT_INFINITY mu_float_of_bits(0x7F800000u)

MU_SHARED float mu_float16_value(uint16_t bits) {
    uint32_t magnitude = bits & 0x7FFFu;
    float value = magnitude < 0x7C00u    ? mu_small_float(magnitude, 10, 15)
                  : magnitude == 0x7C00u ? MU_FLOAT_INFINITY
                                         : MU_FLOAT_NAN;
    return mu_with_sign(value, bits >> 15);
}

MU_SHARED float mu_bfloat16_value(uint16_t bits) {
    return mu_float_of_bits((uint32_t)bits << 16);
}

MU_SHARED float mu_float8_e4m3fn_value(uint8_t bits) {
    uint32_t magnitude = bits & 0x7Fu;
    float value = magnitude == 0x7Fu ? MU_FLOAT_NAN : mu_small_float(magnitude, 3, 7);
    return mu_with_sign(value, bits >> 7);
}

MU_SHARED float mu_float8_e5m2_value(uint8_t bits) {
    return mu_float16_value((uint16_t)(bits << 8));
}

MU_SHARED float mu_float8_fnuz_value(uint8_t bits, int mantissa, int bias) {
    if (bits == 0x80u) {
        return MU_FLOAT_NAN;
    }
    return mu_with_sign(mu_small_float(bits & 0x7Fu, mantissa, bias), bits >> 7);
}

MU_SHARED float mu_float8_e4m3fnuz_value(uint8_t bits) {
    return mu_float8_fnuz_value(bits, 3, 8);
}

MU_SHARED float mu_float8_e5m2fnuz_value(uint8_t bits) {
    return mu_float8_fnuz_value(bits, 2, 16);
}

/* A power of two: a scale, never zero or negative. */
MU_SHARED float mu_float8_e8m0fnu_value(uint8_t bits) {
    if (bits == 0xFFu) {
        return MU_FLOAT_NAN;
    }
    return bits == 0 ? mu_float_of_bits(0x00400000u) : mu_float_of_bits((uint32_t)bits << 23);
}

/* `bits`: the four of one value. */
MU_SHARED float mu_float4_e2m1_value(uint8_t bits) {
    return mu_with_sign(mu_small_float(bits & 7u, 1, 1), bits >> 3 & 1u);
}

#endif
