#include "tensor/decode.h"

#include "base/cpu.h"
#include "tensor/decode_loops.h"

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
#elif defined(__aarch64__)
    if (mu_cpu_has(MU_CPU_NEON)) {
        mu_decode_doubles_neon(info->part, bytes, elements * info->parts, out);
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
#elif defined(__aarch64__)
    if (mu_cpu_has(MU_CPU_NEON)) {
        mu_decode_floats_neon(info->part, bytes, elements * info->parts, out);
        return;
    }
#endif
    mu_decode_floats_portable(info->part, bytes, elements * info->parts, out);
}
