#include <math.h>
#include <stdlib.h>

#include "tensor/decode.h"
#include "tensor/number.h"
#include "tensor/tensor.h"
#include "tests/check.h"

enum { PATTERNS = 65536 };

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Equal bits, or NaN both. */
static int same(double left, double right) {
    return isnan(left) ? isnan(right) : bits_of(left) == bits_of(right);
}

typedef void (*decode_function)(int dtype, const uint8_t *bytes, size_t elements, double *out);

static void decode_portable(int dtype, const uint8_t *bytes, size_t elements, double *out) {
    const struct mu_dtype_info *info = mu_dtype_info(dtype);
    mu_decode_doubles_portable(info->part, bytes, elements * info->parts, out);
}

static void decode_by_floats(int dtype, const uint8_t *bytes, size_t elements, double *out,
                             void (*to_floats)(int, const uint8_t *, size_t, float *)) {
    const struct mu_dtype_info *info = mu_dtype_info(dtype);
    size_t numbers = elements * info->parts;
    if (!mu_decode_fits_float(dtype)) {
        mu_decode_doubles(dtype, bytes, elements, out);
        return;
    }
    float *floats = malloc(numbers * sizeof(*floats) + 1);
    to_floats(info->part, bytes, numbers, floats);
    for (size_t i = 0; i < numbers; i++) {
        out[i] = (double)floats[i];
    }
    free(floats);
}

static void decode_floats_portable(int dtype, const uint8_t *bytes, size_t elements, double *out) {
    decode_by_floats(dtype, bytes, elements, out, mu_decode_floats_portable);
}

static void all_floats(int part, const uint8_t *bytes, size_t numbers, float *out) {
    mu_decode_floats(part, bytes, part == MU_DTYPE_FLOAT4_E2M1FN_X2 ? numbers / 2 : numbers, out);
}

static void decode_floats(int dtype, const uint8_t *bytes, size_t elements, double *out) {
    decode_by_floats(dtype, bytes, elements, out, all_floats);
}

/* Every pattern of a 16-bit type, at an address that is not aligned, against the value of one. */
static void check_halves(decode_function decode, int dtype, float (*value)(uint16_t)) {
    uint8_t *bytes = malloc(2 * PATTERNS + 1);
    double *out = malloc(PATTERNS * sizeof(*out));
    int wrong = 0;
    for (uint32_t i = 0; i < PATTERNS; i++) {
        uint16_t bits = (uint16_t)i;
        memcpy(bytes + 1 + 2 * i, &bits, sizeof(bits));
    }
    decode(dtype, bytes + 1, PATTERNS, out);
    for (uint32_t i = 0; i < PATTERNS; i++) {
        wrong += !same(out[i], (double)value((uint16_t)i));
    }
    CHECK_INT(wrong, 0);
    free(bytes);
    free(out);
}

static void test_halves(decode_function decode) {
    check_halves(decode, MU_DTYPE_FLOAT16, mu_float16_value);
    check_halves(decode, MU_DTYPE_BFLOAT16, mu_bfloat16_value);
}

static void check_bytes_of(decode_function decode, int dtype, float (*value)(uint8_t)) {
    uint8_t bytes[256];
    double out[256];
    int wrong = 0;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (uint8_t)i;
    }
    decode(dtype, bytes, 256, out);
    for (int i = 0; i < 256; i++) {
        wrong += !same(out[i], (double)value((uint8_t)i));
    }
    CHECK_INT(wrong, 0);
}

static void test_byte_floats(decode_function decode) {
    check_bytes_of(decode, MU_DTYPE_FLOAT8_E4M3FN, mu_float8_e4m3fn_value);
    check_bytes_of(decode, MU_DTYPE_FLOAT8_E4M3FNUZ, mu_float8_e4m3fnuz_value);
    check_bytes_of(decode, MU_DTYPE_FLOAT8_E5M2, mu_float8_e5m2_value);
    check_bytes_of(decode, MU_DTYPE_FLOAT8_E5M2FNUZ, mu_float8_e5m2fnuz_value);
    check_bytes_of(decode, MU_DTYPE_FLOAT8_E8M0FNU, mu_float8_e8m0fnu_value);
}

static void test_float4(decode_function decode) {
    static const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    uint8_t bytes[256];
    double out[512];
    for (int i = 0; i < 256; i++) {
        bytes[i] = (uint8_t)i;
    }
    decode(MU_DTYPE_FLOAT4_E2M1FN_X2, bytes, 256, out);
    for (int i = 0; i < 256; i++) {
        double low = values[i & 7], high = values[i >> 4 & 7];
        CHECK(same(out[2 * i], i & 8 ? -low : low));
        CHECK(same(out[2 * i + 1], i & 0x80 ? -high : high));
    }
}

#define CHECK_NUMBERS(decode, dtype, type, ...)                                                    \
    do {                                                                                           \
        type numbers[] = {__VA_ARGS__};                                                            \
        double out[8];                                                                             \
        size_t count = sizeof(numbers) / sizeof(numbers[0]);                                       \
        decode(dtype, (const uint8_t *)numbers, count / mu_dtype_info(dtype)->parts, out);         \
        for (size_t i = 0; i < count; i++) {                                                       \
            CHECK(same(out[i], (double)numbers[i]));                                               \
        }                                                                                          \
    } while (0)

static void test_plain_numbers(decode_function decode) {
    CHECK_NUMBERS(decode, MU_DTYPE_UINT8, uint8_t, 0, 1, 127, 128, 255);
    CHECK_NUMBERS(decode, MU_DTYPE_INT8, int8_t, 0, 1, -1, 127, -128);
    CHECK_NUMBERS(decode, MU_DTYPE_UINT16, uint16_t, 0, 1, 0x8000, 0xFFFF);
    CHECK_NUMBERS(decode, MU_DTYPE_INT16, int16_t, 0, -1, INT16_MIN, INT16_MAX);
    CHECK_NUMBERS(decode, MU_DTYPE_UINT32, uint32_t, 0, 1, 0x80000000u, UINT32_MAX);
    CHECK_NUMBERS(decode, MU_DTYPE_INT32, int32_t, 0, -1, INT32_MIN, INT32_MAX);
    CHECK_NUMBERS(decode, MU_DTYPE_UINT64, uint64_t, 0, 1, UINT64_MAX, (1ull << 53) + 1);
    CHECK_NUMBERS(decode, MU_DTYPE_INT64, int64_t, 0, -1, INT64_MIN, INT64_MAX, -(1ll << 53) - 1);
    CHECK_NUMBERS(decode, MU_DTYPE_FLOAT32, float, 0.0f, -0.0f, 1e-45f, 3e38f, INFINITY, NAN);
    CHECK_NUMBERS(decode, MU_DTYPE_FLOAT64, double, 0.0, -0.0, 5e-324, 1e308, -INFINITY, NAN);
    CHECK_NUMBERS(decode, MU_DTYPE_COMPLEX64, float, 1.0f, -2.0f, 3.0f, -0.0f);
    CHECK_NUMBERS(decode, MU_DTYPE_COMPLEX128, double, 1.0, -2.0, 3.0, -0.0);
}

static void test_bools(decode_function decode) {
    static const uint8_t bytes[] = {0, 1, 2, 255};
    double out[4];
    decode(MU_DTYPE_BOOL, bytes, 4, out);
    CHECK(out[0] == 0 && out[1] == 1 && out[2] == 1 && out[3] == 1);
}

static void test_complex_halves(decode_function decode) {
    static const uint16_t parts[] = {0x3C00, 0xC000, 0x7C00, 0x8000, 0x0001, 0x7BFF};
    double out[6];
    decode(MU_DTYPE_COMPLEX32, (const uint8_t *)parts, 3, out);
    CHECK(out[0] == 1 && out[1] == -2 && out[2] == INFINITY && same(out[3], -0.0));
    CHECK(out[4] == ldexp(1, -24) && out[5] == 65504);
}

/* No length writes beyond its numbers. */
static void test_lengths(decode_function decode) {
    uint16_t ones[40];
    double out[41];
    for (int i = 0; i < 40; i++) {
        ones[i] = 0x3F80;
    }
    for (size_t length = 0; length <= 40; length++) {
        out[length] = 7;
        decode(MU_DTYPE_BFLOAT16, (const uint8_t *)ones, length, out);
        CHECK(out[length] == 7);
        CHECK(length == 0 || out[length - 1] == 1);
    }
}

static void test_which_fit_floats(void) {
    for (int dtype = 0; dtype < MU_DTYPE_COUNT; dtype++) {
        int part = mu_dtype_info(dtype)->part;
        bool wide = part == MU_DTYPE_UINT32 || part == MU_DTYPE_INT32 || part == MU_DTYPE_UINT64 ||
                    part == MU_DTYPE_INT64 || part == MU_DTYPE_FLOAT64;
        CHECK_INT(mu_decode_fits_float(dtype), !wide);
    }
}

int main(void) {
    decode_function decoders[] = {mu_decode_doubles, decode_portable, decode_floats,
                                  decode_floats_portable};
    for (int i = 0; i < 4; i++) {
        test_halves(decoders[i]);
        test_byte_floats(decoders[i]);
        test_float4(decoders[i]);
        test_bools(decoders[i]);
        test_plain_numbers(decoders[i]);
        test_complex_halves(decoders[i]);
        test_lengths(decoders[i]);
    }
    test_which_fit_floats();
    return check_report();
}
