#include "decode.h"

#include <pthread.h>

#include "cpu.h"
#include "decode_loops.h"

/* --- floats of 8 bits, made at their first use ------------------------------------------------ */

enum { FIRST_BYTE_FLOAT = MU_DTYPE_FLOAT8_E4M3FN, BYTE_FLOATS = 5 };

static float byte_values[BYTE_FLOATS][256];
static pthread_once_t byte_values_made = PTHREAD_ONCE_INIT;

static float *values_of(int dtype) {
    return byte_values[dtype - FIRST_BYTE_FLOAT];
}

static void make_byte_values(void) {
    for (int bits = 0; bits < 256; bits++) {
        uint8_t byte = (uint8_t)bits;
        values_of(MU_DTYPE_FLOAT8_E4M3FN)[bits] = mu_float8_e4m3fn_value(byte);
        values_of(MU_DTYPE_FLOAT8_E4M3FNUZ)[bits] = mu_float8_e4m3fnuz_value(byte);
        values_of(MU_DTYPE_FLOAT8_E5M2)[bits] = mu_float8_e5m2_value(byte);
        values_of(MU_DTYPE_FLOAT8_E5M2FNUZ)[bits] = mu_float8_e5m2fnuz_value(byte);
        values_of(MU_DTYPE_FLOAT8_E8M0FNU)[bits] = mu_float8_e8m0fnu_value(byte);
    }
}

const float *mu_decode_byte_values(int dtype) {
    pthread_once(&byte_values_made, make_byte_values);
    return values_of(dtype);
}

/* --- any type --------------------------------------------------------------------------------- */

bool mu_decode_fits_float(int dtype) {
    const struct mu_dtype_info *info = mu_dtype_info(dtype);
    return info->part == MU_DTYPE_FLOAT32 || mu_dtype_info(info->part)->size <= 2;
}

void mu_decode_doubles_portable(int part, const uint8_t *bytes, size_t numbers, double *out) {
    doubles_of_numbers(part, bytes, numbers, out);
}

void mu_decode_floats_portable(int part, const uint8_t *bytes, size_t numbers, float *out) {
    floats_of_numbers(part, bytes, numbers, out);
}

void mu_decode_doubles(int dtype, const uint8_t *bytes, size_t elements, double *out) {
    const struct mu_dtype_info *info = mu_dtype_info(dtype);
#ifdef __x86_64__
    if (mu_cpu_has(MU_CPU_AVX2)) {
        mu_decode_doubles_avx2(info->part, bytes, elements * info->parts, out);
        return;
    }
#endif
    mu_decode_doubles_portable(info->part, bytes, elements * info->parts, out);
}

void mu_decode_floats(int dtype, const uint8_t *bytes, size_t elements, float *out) {
    const struct mu_dtype_info *info = mu_dtype_info(dtype);
#ifdef __x86_64__
    if (mu_cpu_has(MU_CPU_AVX2)) {
        mu_decode_floats_avx2(info->part, bytes, elements * info->parts, out);
        return;
    }
#endif
    mu_decode_floats_portable(info->part, bytes, elements * info->parts, out);
}
