#include "hash/md5.h"

#include <stdlib.h>

#include "base/cpu.h"
#include "base/parallel.h"
#include "hash/md5_lanes.h"

/* A thread is woken for at least this many bytes, some 50 us of work. */
enum { BYTES_A_THREAD = 256 * 1024, PARTS_MAX = 256 };

/* What one thread does. */
struct part {
    struct mu_md5_item *first; /* borrowed */
    struct mu_md5_item *last;
    double bytes; /* expanded tensors may have more together than 64 bits count */
    struct mu_md5_lanes lanes;
};

struct batch {
    struct mu_md5_kernel kernel;
    struct mu_md5_item *items; /* owned; the longest first */
    size_t count;
    double total_bytes;
    bool any_strided;
    struct part *parts;             /* owned */
    struct mu_md5_strided *strided; /* owned: one for each lane of each part, or NULL */
    int part_count;
};

/* Speeds in 0.1 GB/s of a Zen 4 at 3.8 GHz. Those of NEON have not been measured: they are the
 * ratio of 16 to 8 lanes on a core of four vector units, where a step of 8 waits for the latency of
 * ten instructions and a step of 16 for the units. */
struct mu_md5_kernel mu_md5_best(void) {
#if defined(__x86_64__)
    if (mu_cpu_has(MU_CPU_AVX512)) {
        return (struct mu_md5_kernel){.lanes = 32,
                                      .count = 3,
                                      .widths = {{mu_md5_run32_avx512, 32, 131},
                                                 {mu_md5_run16_avx512, 16, 102},
                                                 {mu_md5_run8_avx512, 8, 58}}};
    }
    if (mu_cpu_has(MU_CPU_AVX2)) {
        return (struct mu_md5_kernel){
            .lanes = 16,
            .count = 2,
            .widths = {{mu_md5_run16_avx2, 16, 84}, {mu_md5_run8_avx2, 8, 50}}};
    }
#elif defined(__aarch64__)
    if (mu_cpu_has(MU_CPU_NEON)) {
        return (struct mu_md5_kernel){
            .lanes = 16,
            .count = 2,
            .widths = {{mu_md5_run16_neon, 16, 18}, {mu_md5_run8_neon, 8, 10}}};
    }
#endif
    return (struct mu_md5_kernel){.lanes = 1};
}

static int longest_first(const void *left, const void *right) {
    const struct mu_md5_item *a = left, *b = right;
    return (a->bytes < b->bytes) - (a->bytes > b->bytes);
}

MU_MUST_CHECK static int sort_jobs(struct batch *batch, struct mu_md5_job *jobs,
                                   struct mu_error *err) {
    batch->items = malloc(batch->count * sizeof *batch->items);
    if (batch->items == NULL) {
        return mu_error_no_memory(err, "the list of tensors");
    }
    for (size_t i = 0; i < batch->count; i++) {
        int64_t bytes = mu_tensor_bytes(jobs[i].tensor);
        batch->items[i] = (struct mu_md5_item){.job = &jobs[i], .bytes = bytes};
        batch->total_bytes += (double)bytes;
        batch->any_strided = batch->any_strided || !mu_tensor_is_contiguous(jobs[i].tensor);
    }
    qsort(batch->items, batch->count, sizeof *batch->items, longest_first);
    return MU_OK;
}

/* The number of parts: one for each thread, or fewer when the threads would have too little to do
 * or would have lanes without a tensor. Half of the lanes take about as long however few of them
 * are in use. */
static int count_parts(const struct batch *batch) {
    size_t lanes = batch->kernel.lanes > 1 ? (size_t)batch->kernel.lanes / 2 : 1;
    size_t filled = (batch->count + lanes - 1) / lanes;
    int parts = mu_parallel_threads();
    parts = parts < PARTS_MAX ? parts : PARTS_MAX;
    parts = (size_t)parts < filled ? parts : (int)filled;
    double worth = 1 + batch->total_bytes / BYTES_A_THREAD;
    return parts < worth ? parts : (int)worth;
}

MU_MUST_CHECK static int make_parts(struct batch *batch, struct mu_error *err) {
    batch->part_count = count_parts(batch);
    batch->parts = calloc((size_t)batch->part_count, sizeof *batch->parts);
    if (batch->parts == NULL) {
        return mu_error_no_memory(err, "the lanes");
    }
    if (!batch->any_strided || batch->kernel.lanes == 1) {
        return MU_OK;
    }
    size_t lanes = (size_t)batch->kernel.lanes;
    batch->strided = malloc((size_t)batch->part_count * lanes * sizeof *batch->strided);
    if (batch->strided == NULL) {
        return mu_error_no_memory(err, "the lanes of strided tensors");
    }
    for (int i = 0; i < batch->part_count; i++) {
        batch->parts[i].lanes.strided = batch->strided + (size_t)i * lanes;
    }
    return MU_OK;
}

static void append(struct part *part, struct mu_md5_item *item) {
    item->next = NULL;
    if (part->last == NULL) {
        part->first = item;
    } else {
        part->last->next = item;
    }
    part->last = item;
    part->bytes += (double)item->bytes;
}

/* How many of the longest tensors get their own thread. They are those that would still run in
 * their lane when all others are done. */
static int count_giants(const struct batch *batch) {
    double rest = batch->total_bytes;
    int giants = 0;
    while (giants + 1 < batch->part_count) {
        double bytes = (double)batch->items[giants].bytes;
        if (bytes * batch->kernel.lanes * (batch->part_count - giants) <= rest) {
            break;
        }
        rest -= bytes;
        giants++;
    }
    return giants;
}

/* Distributes the others, each to the part that has the least so far. */
static void deal(struct batch *batch) {
    int giants = count_giants(batch);
    for (size_t i = 0; i < batch->count; i++) {
        int least = giants;
        for (int part = giants + 1; part < batch->part_count; part++) {
            least = batch->parts[part].bytes < batch->parts[least].bytes ? part : least;
        }
        append(&batch->parts[i < (size_t)giants ? (int)i : least], &batch->items[i]);
    }
}

static void run_parts(int64_t begin, int64_t end, void *context) {
    struct batch *batch = context;
    for (int64_t i = begin; i < end; i++) {
        struct part *part = &batch->parts[i];
        mu_md5_lanes_run(&part->lanes, batch->kernel, part->first);
    }
}

int mu_md5_batch_with(struct mu_md5_kernel kernel, struct mu_md5_job *jobs, size_t count,
                      struct mu_error *err) {
    if (count == 0) {
        return MU_OK;
    }
    if (count == 1) {
        mu_md5_one(jobs);
        return MU_OK;
    }
    struct batch batch = {.kernel = kernel, .count = count};
    int code = sort_jobs(&batch, jobs, err);
    if (code == MU_OK) {
        code = make_parts(&batch, err);
    }
    if (code == MU_OK) {
        deal(&batch);
        mu_parallel_for(batch.part_count, 1, run_parts, &batch);
    }
    free(batch.strided);
    free(batch.parts);
    free(batch.items);
    return code;
}

int mu_md5_batch(struct mu_md5_job *jobs, size_t count, struct mu_error *err) {
    return mu_md5_batch_with(mu_md5_best(), jobs, count, err);
}
