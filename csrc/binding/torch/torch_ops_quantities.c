#include "torch/torch_ops_quantities.h"

#include <string.h>

#include "hash/tensor_hash.h"
#include "hash/tensor_hash_part.h"
#include "stats/nan_inf.h"
#include "stats/stats.h"

static void hash_on_cpu(const struct mu_tensor *tensor, void *out) {
    struct mu_digest digest;
    mu_tensor_hash(tensor, &digest);
    uint64_t *words = out;
    words[0] = digest.lo;
    words[1] = digest.hi;
}

static void sums_on_cpu(const struct mu_tensor *tensor, void *out) {
    struct mu_hash_part part;
    /* A whole has no cut quads, which alone need memory. */
    mu_error_kept(mu_hash_part_of(&part, tensor, tensor->shape, NULL, NULL));
    memcpy(out, &part.sums, sizeof(part.sums));
}

static void stats_on_cpu(const struct mu_tensor *tensor, void *out) {
    struct mu_stats of;
    mu_stats_of(tensor, &of);
    /* clang-format off */
    const double numbers[MU_GPU_STATS_WORDS] = {
        (double)of.count, (double)of.finite,
        of.min, of.max, of.mean, of.std, of.l1, of.l2, of.abs_max,
        (double)of.zeros, (double)of.nans, (double)of.pos_infs, (double)of.neg_infs,
        (double)of.first_nan, (double)of.first_inf,
    };
    /* clang-format on */
    memcpy(out, numbers, sizeof(numbers));
}

static void nan_inf_on_cpu(const struct mu_tensor *tensor, void *out) {
    mu_nan_inf_count(tensor, out);
}

const struct mu_quantity mu_content_hash = {hash_on_cpu, MU_GPU_OP_HASH, MU_GPU_HASH_WORDS,
                                            MU_DTYPE_INT64};
const struct mu_quantity mu_content_sums = {sums_on_cpu, MU_GPU_OP_SUMS, MU_GPU_SUMS_WORDS,
                                            MU_DTYPE_INT64};
const struct mu_quantity mu_statistics = {stats_on_cpu, MU_GPU_OP_STATS, MU_GPU_STATS_WORDS,
                                          MU_DTYPE_FLOAT64};
const struct mu_quantity mu_nan_inf_counts = {nan_inf_on_cpu, MU_GPU_OP_NAN_INF,
                                              MU_GPU_NAN_INF_WORDS, MU_DTYPE_INT64};
