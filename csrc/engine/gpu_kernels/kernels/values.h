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

#define BITS(NAME, name, kind, bytes, numbers, ...)                                                \
    case MU_DTYPE_##NAME:                                                                          \
        return 8 * (bytes) / (numbers);

/* Bits of one number: 4 of float4_e2m1fn_x2. */
MU_DEVICE int mu_number_bits(int type) {
    switch (type) {
        MU_DTYPES(BITS)
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
