#include "tensor/byte_floats.h"

#include <pthread.h>

#include "tensor/number.h"
#include "tensor/tensor.h"

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

const float *mu_byte_float_values(int dtype) {
    pthread_once(&byte_values_made, make_byte_values);
    return values_of(dtype);
}
