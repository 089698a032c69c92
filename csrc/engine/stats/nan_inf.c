#include "stats/nan_inf.h"

#include <stdbool.h>
#include <string.h>

#include "base/cpu.h"
#include "base/parallel.h"
#include "stats/nan_inf_kernels.h"

enum {
    BLOCK_BYTES = 16384, /* stays in the first-level cache, should it be counted */
    CHUNKS_MAX = 128,
    CHUNK_BLOCKS_MIN = 16,
};

/* One tensor, as all threads see it. */
struct job {
    const struct mu_tensor *tensor;
    mu_nan_inf_block block;
    struct mu_special_rule rule;
    const struct mu_dtype_info *info;
    int64_t chunk_elements;
    int64_t (*counts)[MU_NAN_INF_COUNTS]; /* of each chunk */
};

static void count_chunk(const struct job *job, int64_t chunk) {
    uint8_t scratch[BLOCK_BYTES];
    struct mu_tensor_walk walk;
    int64_t first = chunk * job->chunk_elements;
    int64_t left = job->tensor->elements - first;
    int64_t *counts = job->counts[chunk];
    size_t bytes;
    memset(counts, 0, sizeof(job->counts[chunk]));
    mu_tensor_walk_start(&walk, job->tensor, first,
                         left < job->chunk_elements ? left : job->chunk_elements);
    for (;;) {
        const uint8_t *block = mu_tensor_walk_next(&walk, scratch, sizeof(scratch), &bytes);
        if (bytes == 0) {
            return;
        }
        job->block(&job->rule, block, bytes / job->info->size * job->info->parts, counts);
    }
}

static void count_chunks(int64_t begin, int64_t end, void *context) {
    for (int64_t chunk = begin; chunk < end; chunk++) {
        count_chunk(context, chunk);
    }
}

static int64_t divide_up(int64_t value, int64_t divisor) {
    return value / divisor + (value % divisor != 0);
}

void mu_nan_inf_count_with(mu_nan_inf_block block, const struct mu_tensor *tensor,
                           int64_t counts[MU_NAN_INF_COUNTS]) {
    const struct mu_dtype_info *info = mu_dtype_info(tensor->dtype);
    int64_t chunks[CHUNKS_MAX][MU_NAN_INF_COUNTS];
    struct job job = {.tensor = tensor,
                      .block = block,
                      .rule = mu_special_rule_of(tensor->dtype),
                      .info = info,
                      .counts = chunks};
    memset(counts, 0, MU_NAN_INF_COUNTS * sizeof(counts[0]));
    if (tensor->elements == 0 || job.rule.bits == 0) {
        return;
    }
    int64_t block_elements = BLOCK_BYTES / info->size;
    int64_t blocks = divide_up(tensor->elements, block_elements);
    int64_t chunk_blocks = divide_up(blocks, CHUNKS_MAX);
    job.chunk_elements =
        block_elements * (chunk_blocks < CHUNK_BLOCKS_MIN ? CHUNK_BLOCKS_MIN : chunk_blocks);
    int64_t count = divide_up(tensor->elements, job.chunk_elements);
    mu_parallel_for(count, 1, count_chunks, &job);
    for (int64_t chunk = 0; chunk < count; chunk++) {
        for (int kind = 0; kind < MU_NAN_INF_COUNTS; kind++) {
            counts[kind] += chunks[chunk][kind];
        }
    }
}

mu_nan_inf_block mu_nan_inf_block_best(void) {
#ifdef __x86_64__
    if (mu_cpu_has(MU_CPU_AVX512)) {
        return mu_nan_inf_block_avx512;
    }
    if (mu_cpu_has(MU_CPU_AVX2)) {
        return mu_nan_inf_block_avx2;
    }
#elif defined(__aarch64__)
    if (mu_cpu_has(MU_CPU_NEON)) {
        return mu_nan_inf_block_neon;
    }
#endif
    return mu_nan_inf_block_portable;
}

void mu_nan_inf_count(const struct mu_tensor *tensor, int64_t counts[MU_NAN_INF_COUNTS]) {
    mu_nan_inf_count_with(mu_nan_inf_block_best(), tensor, counts);
}
