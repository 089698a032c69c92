/* All kernels on the emulated GPU, by name, to be called with arguments as cuLaunchKernel has
 * them. */
#ifndef MU_EMULATED_KERNELS_H
#define MU_EMULATED_KERNELS_H

#include "gpu_kernels/kernels/compare.cu"
#include "gpu_kernels/kernels/hash.cu"
#include "gpu_kernels/kernels/nan_inf.cu"
#include "gpu_kernels/kernels/stats.cu"
#include "tests/gpu_kernels/gpu_emulation.h"

#define ARGUMENT(type, index) (*(type *)arguments[index])
#define LAYOUT(index) ARGUMENT(struct mu_gpu_layout, index)

static void run_hash_blocks(void **arguments) {
    mu_hash_blocks(LAYOUT(0), ARGUMENT(uint64_t, 1), ARGUMENT(uint64_t, 2),
                   ARGUMENT(uint64_t *, 3));
}

static void run_hash_rows(void **arguments) {
    mu_hash_rows(LAYOUT(0), ARGUMENT(struct mu_gpu_rows, 1), ARGUMENT(uint64_t *, 2));
}

static void run_hash_ends(void **arguments) {
    mu_hash_ends(LAYOUT(0), ARGUMENT(struct mu_gpu_rows, 1), ARGUMENT(struct mu_quad *, 2));
}

static void run_hash_finish(void **arguments) {
    mu_hash_finish(ARGUMENT(const struct mu_hash_sums *, 0), ARGUMENT(uint64_t, 1),
                   ARGUMENT(uint64_t *, 2));
}

static void run_nan_inf_dense(void **arguments) {
    mu_nan_inf_dense(LAYOUT(0), ARGUMENT(struct mu_special_rule, 1), ARGUMENT(uint64_t *, 2));
}

static void run_nan_inf_strided(void **arguments) {
    mu_nan_inf_strided(LAYOUT(0), ARGUMENT(struct mu_special_rule, 1), ARGUMENT(uint64_t *, 2));
}

static void run_stats_dense(void **arguments) {
    mu_stats_dense(LAYOUT(0), ARGUMENT(struct mu_stats_part *, 1), ARGUMENT(double *, 2),
                   ARGUMENT(struct mu_stats_part *, 3));
}

static void run_stats_strided(void **arguments) {
    mu_stats_strided(LAYOUT(0), ARGUMENT(struct mu_stats_part *, 1), ARGUMENT(double *, 2),
                     ARGUMENT(struct mu_stats_part *, 3));
}

static void run_stats_end(void **arguments) {
    mu_stats_end(ARGUMENT(struct mu_stats_part *, 0), ARGUMENT(int, 1), ARGUMENT(double *, 2),
                 ARGUMENT(struct mu_stats_part *, 3));
}

static void run_compare_pairs(void **arguments) {
    mu_compare_pairs(LAYOUT(0), LAYOUT(1), ARGUMENT(struct mu_compare_tolerance, 2),
                     ARGUMENT(uint64_t, 3), ARGUMENT(struct mu_compare_part *, 4));
}

static void run_compare_end(void **arguments) {
    mu_compare_end(LAYOUT(0), LAYOUT(1), ARGUMENT(struct mu_compare_tolerance, 2),
                   ARGUMENT(uint64_t, 3), ARGUMENT(struct mu_compare_part *, 4),
                   ARGUMENT(uint64_t, 5), ARGUMENT(int64_t, 6), ARGUMENT(struct mu_gpu_diff *, 7));
}

struct emulated_kernel {
    const char *name;
    gpu_kernel run;
};

static const struct emulated_kernel emulated_kernels[] = {
    {"mu_hash_blocks", run_hash_blocks},     {"mu_hash_rows", run_hash_rows},
    {"mu_hash_ends", run_hash_ends},         {"mu_hash_finish", run_hash_finish},
    {"mu_nan_inf_dense", run_nan_inf_dense}, {"mu_nan_inf_strided", run_nan_inf_strided},
    {"mu_stats_dense", run_stats_dense},     {"mu_stats_strided", run_stats_strided},
    {"mu_stats_end", run_stats_end},         {"mu_compare_pairs", run_compare_pairs},
    {"mu_compare_end", run_compare_end},
};

static const struct emulated_kernel *find_emulated_kernel(const char *name) {
    for (size_t i = 0; i < sizeof(emulated_kernels) / sizeof(emulated_kernels[0]); i++) {
        if (strcmp(emulated_kernels[i].name, name) == 0) {
            return &emulated_kernels[i];
        }
    }
    return NULL;
}

#endif
