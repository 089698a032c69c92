/* Element types, and the value of one element of each floating type.
 *
 * Shared by the processor and the GPU. The values of 8-bit and 4-bit floats are those of the OCP
 * specifications OFP8 (rev. 1.0) and MX (v1.0), and, for the fnuz forms, of Graphcore's and AMD's
 * proposal (arXiv 2206.02915): one zero, NaN in its negative's place, no infinities.
 */
#ifndef MU_NUMBER_H
#define MU_NUMBER_H

#include "tensor/shared_math.h"

/* All types, as X(NAME, name, KIND, bytes, numbers, NUMBER, code, bits):
 *
 *   name        torch's, without the "torch."
 *   KIND        of enum mu_number_kind
 *   bytes       of an element
 *   numbers     in an element: 2 of complex types and float4_e2m1fn_x2, else 1
 *   NUMBER      type of one number of a complex type; else the type itself
 *   code, bits  DLPack's, DLDataType; its lanes are what fills the bytes
 *
 * A new float of 8 bits is a row before FLOAT4_E2M1FN_X2, its value in mu_float_value below and its
 * NaNs in special_values.h. Its code in safetensors files is in my_utils/tensors/dtypes.py. */
#define MU_DTYPES(X)                                                                               \
    X(BOOL, "bool", BOOL, 1, 1, BOOL, 6, 8)                                                        \
    X(UINT8, "uint8", UINT, 1, 1, UINT8, 1, 8)                                                     \
    X(UINT16, "uint16", UINT, 2, 1, UINT16, 1, 16)                                                 \
    X(UINT32, "uint32", UINT, 4, 1, UINT32, 1, 32)                                                 \
    X(UINT64, "uint64", UINT, 8, 1, UINT64, 1, 64)                                                 \
    X(INT8, "int8", INT, 1, 1, INT8, 0, 8)                                                         \
    X(INT16, "int16", INT, 2, 1, INT16, 0, 16)                                                     \
    X(INT32, "int32", INT, 4, 1, INT32, 0, 32)                                                     \
    X(INT64, "int64", INT, 8, 1, INT64, 0, 64)                                                     \
    X(FLOAT16, "float16", FLOAT, 2, 1, FLOAT16, 2, 16)                                             \
    X(BFLOAT16, "bfloat16", FLOAT, 2, 1, BFLOAT16, 4, 16)                                          \
    X(FLOAT32, "float32", FLOAT, 4, 1, FLOAT32, 2, 32)                                             \
    X(FLOAT64, "float64", FLOAT, 8, 1, FLOAT64, 2, 64)                                             \
    X(COMPLEX32, "complex32", COMPLEX, 4, 2, FLOAT16, 5, 32)                                       \
    X(COMPLEX64, "complex64", COMPLEX, 8, 2, FLOAT32, 5, 64)                                       \
    X(COMPLEX128, "complex128", COMPLEX, 16, 2, FLOAT64, 5, 128)                                   \
    X(FLOAT8_E4M3FN, "float8_e4m3fn", FLOAT, 1, 1, FLOAT8_E4M3FN, 10, 8)                           \
    X(FLOAT8_E4M3FNUZ, "float8_e4m3fnuz", FLOAT, 1, 1, FLOAT8_E4M3FNUZ, 11, 8)                     \
    X(FLOAT8_E5M2, "float8_e5m2", FLOAT, 1, 1, FLOAT8_E5M2, 12, 8)                                 \
    X(FLOAT8_E5M2FNUZ, "float8_e5m2fnuz", FLOAT, 1, 1, FLOAT8_E5M2FNUZ, 13, 8)                     \
    X(FLOAT8_E8M0FNU, "float8_e8m0fnu", FLOAT, 1, 1, FLOAT8_E8M0FNU, 14, 8)                        \
    /* The low four bits of its byte are the first number. */                                      \
    X(FLOAT4_E2M1FN_X2, "float4_e2m1fn_x2", FLOAT, 1, 2, FLOAT4_E2M1FN_X2, 17, 4)

#define MU_DTYPE_NUMBER(NAME, ...) MU_DTYPE_##NAME,
enum mu_dtype { MU_DTYPES(MU_DTYPE_NUMBER) MU_DTYPE_COUNT };
#undef MU_DTYPE_NUMBER

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

/* A number of a type that fits a float, from its bits in the low end. */
MU_SHARED float mu_float_value(int type, uint64_t bits) {
    switch (type) {
    case MU_DTYPE_BOOL:
        return (uint8_t)bits != 0 ? 1.0f : 0.0f;
    case MU_DTYPE_UINT8:
        return (float)(uint8_t)bits;
    case MU_DTYPE_UINT16:
        return (float)(uint16_t)bits;
    case MU_DTYPE_INT8:
        return (float)(int8_t)(uint8_t)bits;
    case MU_DTYPE_INT16:
        return (float)(int16_t)(uint16_t)bits;
    case MU_DTYPE_FLOAT16:
        return mu_float16_value((uint16_t)bits);
    case MU_DTYPE_BFLOAT16:
        return mu_bfloat16_value((uint16_t)bits);
    case MU_DTYPE_FLOAT8_E4M3FN:
        return mu_float8_e4m3fn_value((uint8_t)bits);
    case MU_DTYPE_FLOAT8_E4M3FNUZ:
        return mu_float8_e4m3fnuz_value((uint8_t)bits);
    case MU_DTYPE_FLOAT8_E5M2:
        return mu_float8_e5m2_value((uint8_t)bits);
    case MU_DTYPE_FLOAT8_E5M2FNUZ:
        return mu_float8_e5m2fnuz_value((uint8_t)bits);
    case MU_DTYPE_FLOAT8_E8M0FNU:
        return mu_float8_e8m0fnu_value((uint8_t)bits);
    case MU_DTYPE_FLOAT4_E2M1FN_X2:
        return mu_float4_e2m1_value((uint8_t)bits);
    default:
        return mu_float_of_bits((uint32_t)bits);
    }
}

#endif
