#include "stats/stats.h"

#include <stddef.h>
#include <string.h>

#include "base/cpu.h"
#include "base/parallel.h"
#include "stats/nan_inf_kernels.h"
#include "stats/stats_kernels.h"
#include "tensor/decode.h"
#include "tensor/float_mode.h"

/* Floats and doubles are measured in place, in blocks so long that the fold of their lanes costs
 * next to nothing, and which the second-level cache holds should they be read again. Other types,
 * and blocks that are not plain, are decoded, a piece at a time, which the first-level cache holds.
 * Work is cut into CHUNKS_MAX chunks at most by the size of the tensor alone. */
enum {
    BLOCK_BYTES = 65536,
    PIECE_BYTES = 16384,
    PIECE_NUMBERS_MAX = 4096,
    CHUNKS_MAX = 128,
    CHUNK_BLOCKS_MIN = 2,
    CHUNK_PIECES_MIN = 8, /* where a block is a piece */
    CHUNKS_A_THREAD_MIN = 2,
};

/* One tensor, as all threads see it. */
struct job {
    const struct mu_tensor *tensor;
    mu_stats_block floats; /* NULL: the numbers do not fit floats */
    mu_stats_block doubles;
    int part;  /* the type of a number */
    int parts; /* numbers an element */
    int64_t piece_elements;
    int64_t block_elements;
    int64_t blocks;
    int64_t chunk_blocks;
    struct mu_stats_part *chunks; /* a result each */
};

/* The position of one thread. */
struct reader {
    const struct job *job;
    struct mu_tensor_walk walk;
    int64_t element;            /* index of the next */
    uint8_t bytes[BLOCK_BYTES]; /* of a block that is not contiguous */
    union {
        float floats[PIECE_NUMBERS_MAX];
        double numbers[PIECE_NUMBERS_MAX];
    };
};

/* --- one block -------------------------------------------------------------------------------- */

static void count_special(const double *numbers, size_t count, struct mu_stats_part *part) {
    int64_t counts[MU_NAN_INF_COUNTS] = {0};
    struct mu_special_rule rule = mu_special_rule_of(MU_DTYPE_FLOAT64);
    mu_nan_inf_block_best()(&rule, (const uint8_t *)numbers, count, counts);
    part->nans = counts[MU_NANS];
    part->pos_infs = counts[MU_POS_INFS];
    part->neg_infs = counts[MU_NEG_INFS];
}

static size_t first_nan(const double *numbers) {
    size_t i = 0;
    while (!isnan(numbers[i])) {
        i++;
    }
    return i;
}

static size_t first_inf(const double *numbers) {
    size_t i = 0;
    while (!isinf(numbers[i])) {
        i++;
    }
    return i;
}

static const uint64_t infinity_bits = 0x7FF0000000000000u;

/* Moves the finite numbers together and returns how many there are. */
static size_t keep_finite(double *numbers, size_t count) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits;
        memcpy(&bits, &numbers[i], sizeof(bits));
        memcpy(&numbers[kept], &bits, sizeof(bits));
        kept += (bits & INT64_MAX) < infinity_bits;
    }
    return kept;
}

/* Counts the NaNs and Infs, notes where the first are, and takes them out. */
static size_t take_out_special(struct reader *reader, size_t count, struct mu_stats_part *part) {
    int parts = reader->job->parts;
    count_special(reader->numbers, count, part);
    if (part->nans > 0) {
        part->first_nan = reader->element + (int64_t)first_nan(reader->numbers) / parts;
    }
    if (part->pos_infs + part->neg_infs > 0) {
        part->first_inf = reader->element + (int64_t)first_inf(reader->numbers) / parts;
    }
    return keep_finite(reader->numbers, count);
}

/* The fields that scaling must not change. */
static void measure_range(const double *numbers, size_t count, struct mu_stats_part *part) {
    for (size_t i = 0; i < count; i++) {
        part->min = numbers[i] < part->min ? numbers[i] : part->min;
        part->max = numbers[i] > part->max ? numbers[i] : part->max;
        part->zeros += numbers[i] == 0;
    }
}

/* For finite numbers whose squares leave, or might leave, the range of a double. */
static void measure_scaled(mu_stats_block block, double *numbers, size_t count,
                           struct mu_stats_part *part) {
    struct mu_stats_part scaled;
    measure_range(numbers, count, part);
    double abs_max = -part->min > part->max ? -part->min : part->max;
    part->scale = mu_stats_scale_of(abs_max);
    for (size_t i = 0; i < count; i++) {
        numbers[i] = mu_stats_scaled(numbers[i], -part->scale);
    }
    mu_stats_part_clear(&scaled);
    block((const uint8_t *)numbers, count, &scaled);
    part->finite = (int64_t)count;
    part->mean = scaled.mean;
    part->mean_rest = scaled.mean_rest;
    part->abs_sum = scaled.abs_sum;
    part->m2 = scaled.m2;
}

static void measure_doubles(struct reader *reader, size_t count, struct mu_stats_part *part) {
    mu_stats_block block = reader->job->doubles;
    if (block((const uint8_t *)reader->numbers, count, part)) {
        return;
    }
    count = take_out_special(reader, count, part);
    struct mu_stats_part finite;
    mu_stats_part_clear(&finite);
    if (count > 0 && !block((const uint8_t *)reader->numbers, count, &finite)) {
        measure_scaled(block, reader->numbers, count, &finite);
    }
    mu_stats_merge(part, &finite);
}

/* Doubles round integers of 64 bits; their range is exact. */
static void measure_longs(const struct job *job, const uint8_t *bytes, size_t count,
                          struct mu_stats_part *part) {
    uint64_t flip = job->part == MU_DTYPE_UINT64 ? 1ull << 63 : 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits;
        memcpy(&bits, bytes + i * sizeof(bits), sizeof(bits));
        int64_t value = (int64_t)(bits ^ flip);
        part->int_min = value < part->int_min ? value : part->int_min;
        part->int_max = value > part->int_max ? value : part->int_max;
    }
}

static bool is_direct(int part) {
    return part == MU_DTYPE_FLOAT32 || part == MU_DTYPE_FLOAT64;
}

/* Returns false when the block needs the careful path, or conversion to doubles. */
static bool measure_directly(struct reader *reader, const uint8_t *block, size_t elements,
                             struct mu_stats_part *part) {
    const struct job *job = reader->job;
    size_t numbers = elements * (size_t)job->parts;
    if (job->part == MU_DTYPE_FLOAT64) {
        return job->doubles(block, numbers, part);
    }
    if (job->floats == NULL) {
        return false;
    }
    if (job->part == MU_DTYPE_FLOAT32) {
        return job->floats(block, numbers, part);
    }
    mu_decode_floats(job->tensor->dtype, block, elements, reader->floats);
    return job->floats((const uint8_t *)reader->floats, numbers, part);
}

/* Moves the reader behind the block. */
static void measure_pieces(struct reader *reader, const uint8_t *block, size_t elements,
                           struct mu_stats_part *part) {
    const struct job *job = reader->job;
    size_t item = mu_dtype_info(job->tensor->dtype)->size, most = (size_t)job->piece_elements;
    for (size_t done = 0; done < elements; done += most) {
        struct mu_stats_part piece;
        size_t count = elements - done < most ? elements - done : most;
        mu_stats_part_clear(&piece);
        mu_decode_doubles(job->tensor->dtype, block + done * item, count, reader->numbers);
        measure_doubles(reader, count * (size_t)job->parts, &piece);
        mu_stats_merge(part, &piece);
        reader->element += (int64_t)count;
    }
}

static void measure_block(struct reader *reader, struct mu_stats_part *part) {
    const struct job *job = reader->job;
    size_t item = mu_dtype_info(job->tensor->dtype)->size, bytes;
    const uint8_t *block = mu_tensor_walk_next(&reader->walk, reader->bytes,
                                               (size_t)job->block_elements * item, &bytes);
    size_t elements = bytes / item;
    mu_stats_part_clear(part);
    if (measure_directly(reader, block, elements, part)) {
        reader->element += (int64_t)elements;
    } else {
        measure_pieces(reader, block, elements, part);
    }
    if (job->part == MU_DTYPE_INT64 || job->part == MU_DTYPE_UINT64) {
        measure_longs(job, block, elements, part);
    }
}

/* --- all blocks, merged in pairs whatever thread did them ------------------------------------- */

static void measure_blocks(struct reader *reader, int64_t blocks, struct mu_stats_part *part) {
    struct mu_stats_part right;
    if (blocks == 1) {
        measure_block(reader, part);
        return;
    }
    measure_blocks(reader, blocks / 2, part);
    measure_blocks(reader, blocks - blocks / 2, &right);
    mu_stats_merge(part, &right);
}

static void measure_chunks(int64_t begin, int64_t end, void *context) {
    const struct job *job = context;
    int64_t first_block = begin * job->chunk_blocks;
    struct reader reader;
    uint64_t mode = mu_float_mode_exact();
    reader.job = job;
    reader.element = first_block * job->block_elements;
    mu_tensor_walk_start(&reader.walk, job->tensor, reader.element,
                         job->tensor->elements - reader.element);
    for (int64_t chunk = begin; chunk < end; chunk++) {
        int64_t left = job->blocks - chunk * job->chunk_blocks;
        measure_blocks(&reader, left < job->chunk_blocks ? left : job->chunk_blocks,
                       &job->chunks[chunk]);
    }
    mu_float_mode_restore(mode);
}

static void merge_chunks(struct mu_stats_part *chunks, int64_t count) {
    if (count > 1) {
        int64_t left = count / 2;
        merge_chunks(chunks, left);
        merge_chunks(chunks + left, count - left);
        mu_stats_merge(&chunks[0], &chunks[left]);
    }
}

/* --- set-up ----------------------------------------------------------------------------------- */

static int64_t divide_up(int64_t value, int64_t divisor) {
    return value / divisor + (value % divisor != 0);
}

static int64_t piece_elements_of(const struct mu_dtype_info *info) {
    int64_t by_bytes = PIECE_BYTES / info->size, by_numbers = PIECE_NUMBERS_MAX / info->parts;
    return by_bytes < by_numbers ? by_bytes : by_numbers;
}

static int64_t least_chunk(const struct job *job) {
    return is_direct(job->part) ? CHUNK_BLOCKS_MIN : CHUNK_PIECES_MIN;
}

void mu_stats_part_with(const struct mu_stats_kernels *kernels, const struct mu_tensor *tensor,
                        struct mu_stats_part *out) {
    const struct mu_dtype_info *info = mu_dtype_info(tensor->dtype);
    struct mu_stats_part chunks[CHUNKS_MAX];
    struct job job = {
        .tensor = tensor,
        .floats = mu_decode_fits_float(tensor->dtype) ? kernels->float32 : NULL,
        .doubles = kernels->float64,
        .part = info->part,
        .parts = info->parts,
        .piece_elements = piece_elements_of(info),
        .chunks = chunks,
    };
    mu_stats_part_clear(out);
    if (tensor->elements == 0) {
        return;
    }
    job.block_elements = is_direct(job.part) ? BLOCK_BYTES / info->size : job.piece_elements;
    job.blocks = divide_up(tensor->elements, job.block_elements);
    job.chunk_blocks = divide_up(job.blocks, CHUNKS_MAX);
    if (job.chunk_blocks < least_chunk(&job)) {
        job.chunk_blocks = least_chunk(&job);
    }
    int64_t count = divide_up(job.blocks, job.chunk_blocks);
    mu_parallel_for(count, CHUNKS_A_THREAD_MIN, measure_chunks, &job);
    merge_chunks(chunks, count);
    *out = chunks[0];
}

const struct mu_stats_kernels *mu_stats_kernels_best(void) {
#ifdef __x86_64__
    if (mu_cpu_has(MU_CPU_AVX512)) {
        return &mu_stats_kernels_avx512;
    }
    if (mu_cpu_has(MU_CPU_AVX2)) {
        return &mu_stats_kernels_avx2;
    }
#elif defined(__aarch64__)
    if (mu_cpu_has(MU_CPU_NEON)) {
        return &mu_stats_kernels_neon;
    }
#endif
    return &mu_stats_kernels_portable;
}

void mu_stats_part_of(const struct mu_tensor *tensor, struct mu_stats_part *out) {
    mu_stats_part_with(mu_stats_kernels_best(), tensor, out);
}

void mu_stats_finish_as(int dtype, const struct mu_stats_part *part, struct mu_stats *out) {
    mu_stats_finish(part, out);
    if (dtype == MU_DTYPE_UINT64) {
        out->int_min ^= INT64_MIN;
        out->int_max ^= INT64_MIN;
    }
}

void mu_stats_of(const struct mu_tensor *tensor, struct mu_stats *out) {
    struct mu_stats_part part;
    mu_stats_part_of(tensor, &part);
    mu_stats_finish_as(tensor->dtype, &part, out);
}
