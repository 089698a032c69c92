/* Kernels to count the instructions of: `instructions KERNEL PASSES` runs one of them, as this
 * processor runs it best, so many times over the same input, and prints the bytes of one pass.
 * Without arguments it prints the names of all. PASSES may be 0: that is what the rest costs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/compare_kernels.h"
#include "csv/csv_scan.h"
#include "hash/md5_lanes.h"
#include "hash/tensor_hash.h"
#include "stats/nan_inf_kernels.h"
#include "stats/stats_kernels.h"
#include "tensor/decode.h"

enum {
    BYTES = 65536,
    PADDING = 64, /* that kernels may read behind the input */
    NUMBERS = BYTES / 2,
    CSV_ROWS = 512,
};

/* The inputs, filled in by `prepare`, and room for results. */
static struct {
    uint8_t halves[BYTES + PADDING], singles[BYTES + PADDING], others[BYTES + PADDING];
    uint8_t doubles[BYTES + PADDING];
    char rows[BYTES + PADDING], text[BYTES + PADDING];
    size_t row_bytes;
    float floats[NUMBERS];
    volatile uint64_t kept; /* so that no result can be left out */
} data;

/* Runs once over its input, and returns the bytes of that. */
typedef size_t pass(void);

static float uniform(uint64_t *state) {
    return (float)(mu_hash_next_random(state) >> 40) / 0x1p24f - 0.5f;
}

static void fill_numbers(void) {
    uint64_t state = 1;
    for (size_t i = 0; i < BYTES / 4; i++) {
        float one = uniform(&state), other = one * (1 + uniform(&state) / 1024);
        memcpy(data.singles + 4 * i, &one, sizeof(one));
        memcpy(data.others + 4 * i, &other, sizeof(other));
    }
    for (size_t i = 0; i < BYTES / 8; i++) {
        double number = (double)uniform(&state);
        memcpy(data.doubles + 8 * i, &number, sizeof(number));
    }
    for (size_t i = 0; i < NUMBERS; i++) {
        uint16_t half = (uint16_t)(mu_hash_next_random(&state) & 0xBBFFu); /* none above 2 */
        memcpy(data.halves + 2 * i, &half, sizeof(half));
    }
}

/* Rows as a profile has them, and words without a start of the pattern that is searched. */
static void fill_text(void) {
    char *at = data.rows;
    for (int row = 0; row < CSV_ROWS; row++) {
        at += sprintf(at,
                      "17321234%02d.123456,2024-11-20 10:00:%02d,host-1,%d,\"layer.%d,%s\",END,"
                      "12.%03d,\"a=%d,b=2\"\n",
                      row % 100, row % 60, row / 8, row % 8, "forward", row, row % 10);
    }
    data.row_bytes = (size_t)(at - data.rows);
    for (size_t i = 0; i < BYTES; i++) {
        data.text[i] = "torch::empty(shape, options); "[i % 30];
    }
}

static size_t decode(int dtype) {
    mu_decode_floats(dtype, data.halves, NUMBERS, data.floats);
    data.kept = data.kept + (uint64_t)data.floats[1];
    return BYTES;
}

static size_t decode_f16(void) {
    return decode(MU_DTYPE_FLOAT16);
}

static size_t decode_bf16(void) {
    return decode(MU_DTYPE_BFLOAT16);
}

static size_t stats(int dtype, const uint8_t *bytes) {
    int64_t shape[] = {BYTES / (int64_t)mu_dtype_info(dtype)->size};
    struct mu_tensor tensor = {
        .data = bytes, .shape = shape, .elements = shape[0], .ndim = 1, .dtype = dtype};
    struct mu_stats_part part;
    mu_stats_part_with(mu_stats_kernels_best(), &tensor, &part);
    data.kept = data.kept + (uint64_t)part.finite;
    return BYTES;
}

static size_t stats_f16(void) {
    return stats(MU_DTYPE_FLOAT16, data.halves);
}

static size_t stats_f32(void) {
    return stats(MU_DTYPE_FLOAT32, data.singles);
}

static size_t stats_f64(void) {
    return stats(MU_DTYPE_FLOAT64, data.doubles);
}

static size_t md5(void) {
    struct mu_md5_kernel kernel = mu_md5_best();
    mu_md5_run run = kernel.lanes == 1 ? mu_md5_run_scalar : kernel.widths[0].run;
    size_t each = BYTES / (size_t)kernel.lanes;
    const uint8_t *messages[MU_MD5_LANES_MAX];
    uint32_t states[4 * MU_MD5_LANES_MAX] = {0};
    for (int lane = 0; lane < kernel.lanes; lane++) {
        messages[lane] = data.singles + (size_t)lane * each;
    }
    run(states, messages, each / MU_MD5_BLOCK);
    data.kept = data.kept + states[0];
    return BYTES;
}

static size_t tensor_hash(void) {
    struct mu_digest digest;
    mu_tensor_hash_bytes(mu_hash_kernel_best(), data.singles, BYTES, &digest);
    data.kept = data.kept + digest.lo;
    return BYTES;
}

static size_t nan_inf(int dtype, const uint8_t *bytes) {
    int64_t counts[MU_NAN_INF_COUNTS] = {0};
    mu_nan_inf_block_best()(dtype, bytes, BYTES / mu_dtype_info(dtype)->size, counts);
    data.kept = data.kept + (uint64_t)counts[MU_NANS];
    return BYTES;
}

static size_t nan_inf_f16(void) {
    return nan_inf(MU_DTYPE_FLOAT16, data.halves);
}

static size_t nan_inf_f32(void) {
    return nan_inf(MU_DTYPE_FLOAT32, data.singles);
}

static size_t nan_inf_f64(void) {
    return nan_inf(MU_DTYPE_FLOAT64, data.singles);
}

static size_t nan_inf_e4m3(void) {
    return nan_inf(MU_DTYPE_FLOAT8_E4M3FN, (const uint8_t *)data.text);
}

static size_t csv_scan(void) {
    mu_csv_scan scan = mu_csv_scan_best();
    const char *end = data.rows + data.row_bytes;
    struct mu_csv_cut cut;
    for (const char *at = data.rows; at < end; at = cut.row_end + 1) {
        if (scan(at, end, &cut) != MU_CSV_SCAN_ROW) {
            abort();
        }
        data.kept = data.kept + (uint64_t)cut.count;
    }
    return data.row_bytes;
}

static size_t compare(enum mu_compare_type type, size_t size, const uint8_t *a, const uint8_t *b) {
    const struct mu_compare_kernels *kernels = mu_compare_best();
    struct mu_compare_block block = {.atol = 1, .rtol = 1e-5, .max_rel_before = 1e30};
    size_t numbers = BYTES / size;
    for (size_t at = 0; at < numbers; at += MU_COMPARE_BLOCK) {
        size_t left = numbers - at;
        kernels->compare[type](a + at * size, b + at * size,
                               left < MU_COMPARE_BLOCK ? left : MU_COMPARE_BLOCK, &block);
    }
    data.kept = data.kept + (uint64_t)block.max_abs;
    return 2 * BYTES;
}

static size_t compare_f16(void) {
    return compare(MU_COMPARE_F16, 2, data.halves, data.halves);
}

static size_t compare_f32(void) {
    return compare(MU_COMPARE_F32, 4, data.singles, data.others);
}

static size_t compare_bf16(void) {
    return compare(MU_COMPARE_BF16, 2, data.halves, data.halves);
}

static size_t compare_f64(void) {
    return compare(MU_COMPARE_F64, 8, data.doubles, data.doubles);
}

static const struct {
    const char *name;
    pass *run;
} kernels[] = {
    {"decode_f16", decode_f16},      {"decode_bf16", decode_bf16},   {"stats_f16", stats_f16},
    {"stats_f32", stats_f32},        {"stats_f64", stats_f64},       {"md5", md5},
    {"tensor_hash", tensor_hash},    {"nan_inf_f16", nan_inf_f16},   {"nan_inf_f32", nan_inf_f32},
    {"nan_inf_f64", nan_inf_f64},    {"nan_inf_e4m3", nan_inf_e4m3}, {"csv_scan", csv_scan},
    {"compare_f16", compare_f16},    {"compare_bf16", compare_bf16}, {"compare_f32", compare_f32},
    {"compare_f64", compare_f64},
};

int main(int argc, char **argv) {
    fill_numbers();
    fill_text();
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
        if (argc < 3) {
            printf("%s\n", kernels[i].name);
        } else if (strcmp(argv[1], kernels[i].name) == 0) {
            size_t bytes = 0;
            for (long passes = strtol(argv[2], NULL, 10); passes > 0; passes--) {
                bytes = kernels[i].run();
            }
            printf("%zu\n", bytes);
        }
    }
    return 0;
}
