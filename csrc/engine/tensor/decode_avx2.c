#include "tensor/decode.h"
#include "tensor/decode_loops.h"

void mu_decode_doubles_avx2(int part, const uint8_t *bytes, size_t numbers, double *out) {
    doubles_of_numbers(part, bytes, numbers, out);
}

void mu_decode_floats_avx2(int part, const uint8_t *bytes, size_t numbers, float *out) {
    floats_of_numbers(part, bytes, numbers, out);
}
