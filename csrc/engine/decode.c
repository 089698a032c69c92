#include "decode.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "number.h"
#include "tensor.h"

/* The values of all bytes of the 8-bit floats, by type. */
enum { FIRST_BYTE_FLOAT = MU_DTYPE_FLOAT8_E4M3FN, BYTE_FLOATS = 5 };

static float byte_values[BYTE_FLOATS][256];
static pthread_once_t byte_values_made = PTHREAD_ONCE_INIT;

static void make_byte_values(void) {
    for (int bits = 0; bits < 256; bits++) {
        uint8_t byte = (uint8_t)bits;
        byte_values[MU_DTYPE_FLOAT8_E4M3FN - FIRST_BYTE_FLOAT][bits] = mu_float8_e4m3fn_value(byte);
        byte_values[MU_DTYPE_FLOAT8_E4M3FNUZ - FIRST_BYTE_FLOAT][bits] =
            mu_float8_e4m3fnuz_value(byte);
        byte_values[MU_DTYPE_FLOAT8_E5M2 - FIRST_BYTE_FLOAT][bits] = mu_float8_e5m2_value(byte);
        byte_values[MU_DTYPE_FLOAT8_E5M2FNUZ - FIRST_BYTE_FLOAT][bits] =
            mu_float8_e5m2fnuz_value(byte);
        byte_values[MU_DTYPE_FLOAT8_E8M0FNU - FIRST_BYTE_FLOAT][bits] =
            mu_float8_e8m0fnu_value(byte);
    }
}

static void decode_byte_floats(int dtype, const uint8_t *bytes, size_t numbers, double *out) {
    pthread_once(&byte_values_made, make_byte_values);
    const float *values = byte_values[dtype - FIRST_BYTE_FLOAT];
    for (size_t i = 0; i < numbers; i++) {
        out[i] = (double)values[bytes[i]];
    }
}

static void decode_float4_pairs(const uint8_t *bytes, size_t elements, double *out) {
    for (size_t i = 0; i < elements; i++) {
        out[2 * i] = (double)mu_float4_e2m1_value(bytes[i] & 0xFu);
        out[2 * i + 1] = (double)mu_float4_e2m1_value(bytes[i] >> 4);
    }
}

/* The loop over elements of one C type; `value` is an expression of the element `x`. */
#define DECODE(type, value)                                                                        \
    for (size_t i = 0; i < numbers; i++) {                                                         \
        type x;                                                                                    \
        memcpy(&x, bytes + i * sizeof(x), sizeof(x));                                              \
        out[i] = (double)(value);                                                                  \
    }

static void decode_numbers(int part, const uint8_t *bytes, size_t numbers, double *out) {
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
    case MU_DTYPE_UINT32:
        DECODE(uint32_t, x)
        break;
    case MU_DTYPE_UINT64:
        DECODE(uint64_t, x)
        break;
    case MU_DTYPE_INT8:
        DECODE(int8_t, x)
        break;
    case MU_DTYPE_INT16:
        DECODE(int16_t, x)
        break;
    case MU_DTYPE_INT32:
        DECODE(int32_t, x)
        break;
    case MU_DTYPE_INT64:
        DECODE(int64_t, x)
        break;
    case MU_DTYPE_FLOAT16:
        DECODE(uint16_t, mu_float16_value(x))
        break;
    case MU_DTYPE_BFLOAT16:
        DECODE(uint16_t, mu_bfloat16_value(x))
        break;
    case MU_DTYPE_FLOAT32:
        DECODE(float, x)
        break;
    case MU_DTYPE_FLOAT64:
        DECODE(double, x)
        break;
    case MU_DTYPE_FLOAT4_E2M1FN_X2:
        decode_float4_pairs(bytes, numbers / 2, out);
        break;
    default:
        decode_byte_floats(part, bytes, numbers, out);
        break;
    }
}

void mu_decode_doubles_portable(int dtype, const uint8_t *bytes, size_t elements, double *out) {
    const struct mu_dtype_info *info = mu_dtype_info(dtype);
    decode_numbers(info->part, bytes, elements * info->parts, out);
}

#ifdef __x86_64__
/* Every processor with AVX2 has F16C. */
static bool has_fast_halves(int part) {
    return (part == MU_DTYPE_FLOAT16 || part == MU_DTYPE_BFLOAT16) &&
           __builtin_cpu_supports("avx2");
}
#endif

void mu_decode_doubles(int dtype, const uint8_t *bytes, size_t elements, double *out) {
    const struct mu_dtype_info *info = mu_dtype_info(dtype);
#ifdef __x86_64__
    if (has_fast_halves(info->part)) {
        mu_decode_halves_avx2(info->part, bytes, elements * info->parts, out);
        return;
    }
#endif
    decode_numbers(info->part, bytes, elements * info->parts, out);
}
