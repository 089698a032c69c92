#include "tensor/byte_floats.h"

#include <pthread.h>

#include "tensor/number.h"
#include "tensor/tensor.h"

enum {
    FIRST_BYTE_FLOAT = MU_DTYPE_FLOAT8_E4M3FN,
    BYTE_FLOATS = MU_DTYPE_FLOAT4_E2M1FN_X2 - FIRST_BYTE_FLOAT,
};

static float byte_values[BYTE_FLOATS][256];
static pthread_once_t byte_values_made = PTHREAD_ONCE_INIT;

static void make_byte_values(void) {
    for (int type = 0; type < BYTE_FLOATS; type++) {
        for (uint64_t byte = 0; byte < 256; byte++) {
            byte_values[type][byte] = mu_float_value(FIRST_BYTE_FLOAT + type, byte);
        }
    }
}

const float *mu_byte_float_values(int dtype) {
    pthread_once(&byte_values_made, make_byte_values);
    return byte_values[dtype - FIRST_BYTE_FLOAT];
}
