/* Elements as numbers, for kernels that are compiled for one type.
 *
 * MU_GPU_DTYPE_A and _B are set when a program is compiled, so that the choices below are made at
 * compile time. Without them, in the emulation, the type comes from the layout.
 */
#ifndef MU_KERNELS_VALUES_H
#define MU_KERNELS_VALUES_H

#include "gpu_kernels/kernels/device.h"
#include "tensor/number.h"

#ifdef MU_GPU_DTYPE_A
#define MU_DTYPE_A(layout) MU_GPU_DTYPE_A
#else
#define MU_DTYPE_A(layout) ((layout)->dtype)
#endif

#ifdef MU_GPU_DTYPE_B
#define MU_DTYPE_B(layout) MU_GPU_DTYPE_B
#else
#define MU_DTYPE_B(layout) ((layout)->dtype)
#endif

/* The type of one number of an element, and how many there are. */
MU_DEVICE int mu_number_type(int dtype) {
    return dtype == MU_DTYPE_COMPLEX32    ? MU_DTYPE_FLOAT16
           : dtype == MU_DTYPE_COMPLEX64  ? MU_DTYPE_FLOAT32
           : dtype == MU_DTYPE_COMPLEX128 ? MU_DTYPE_FLOAT64
                                          : dtype;
}

MU_DEVICE int mu_numbers_of(int dtype) {
    return dtype == MU_DTYPE_FLOAT4_E2M1FN_X2 || mu_number_type(dtype) != dtype ? 2 : 1;
}

/* Bits of one number: 4 of float4_e2m1fn_x2. */
MU_DEVICE int mu_number_bits(int type) {
    switch (type) {
    case MU_DTYPE_FLOAT4_E2M1FN_X2:
        return 4;
    case MU_DTYPE_UINT16:
    case MU_DTYPE_INT16:
    case MU_DTYPE_FLOAT16:
    case MU_DTYPE_BFLOAT16:
        return 16;
    case MU_DTYPE_UINT32:
    case MU_DTYPE_INT32:
    case MU_DTYPE_FLOAT32:
        return 32;
    case MU_DTYPE_UINT64:
    case MU_DTYPE_INT64:
    case MU_DTYPE_FLOAT64:
        return 64;
    default:
        return 8;
    }
}

MU_DEVICE int mu_is_integer(int dtype) {
    return dtype <= MU_DTYPE_INT64;
}

/* Numbers that a float does not hold exactly. */
MU_DEVICE int mu_is_double(int type) {
    return type == MU_DTYPE_UINT32 || type == MU_DTYPE_INT32 || mu_number_bits(type) == 64;
}

MU_DEVICE double mu_double_of_bits(uint64_t bits) {
    union {
        uint64_t bits;
        double value;
    } pun = {bits};
    return pun.value;
}

/* A number of a type that fits a float, from its bits in the low end. */
MU_DEVICE float mu_float_value(int type, uint64_t bits) {
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

/* A number of any type; 64-bit integers are rounded. */
MU_DEVICE double mu_double_value(int type, uint64_t bits) {
    switch (type) {
    case MU_DTYPE_UINT32:
        return (double)(uint32_t)bits;
    case MU_DTYPE_INT32:
        return (double)(int32_t)(uint32_t)bits;
    case MU_DTYPE_UINT64:
        return (double)bits;
    case MU_DTYPE_INT64:
        return (double)(int64_t)bits;
    case MU_DTYPE_FLOAT64:
        return mu_double_of_bits(bits);
    default:
        return (double)mu_float_value(type, bits);
    }
}

#endif
