#include "base/cpu.h"
#include "hash/md5.h"
#include "hash/md5_lanes.h"
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>

/* What AVX-512 runs, in whatever vectors this processor has. */
#define MU_MD5_VECTOR_BYTES 64
#include "hash/md5_kernel.h"

static void run_wide(uint32_t *states, const uint8_t *const *data, size_t blocks) {
    mu_md5_run_blocks(states, data, blocks, 2);
}

static void run_half(uint32_t *states, const uint8_t *const *data, size_t blocks) {
    mu_md5_run_blocks(states, data, blocks, 1);
}

/* --- MD5 once more, as the RFC words it ------------------------------------------------------ */

static uint32_t rfc_round(int step, uint32_t x, uint32_t y, uint32_t z) {
    switch (step / 16) {
    case 0:
        return (x & y) | (~x & z);
    case 1:
        return (x & z) | (y & ~z);
    case 2:
        return x ^ y ^ z;
    default:
        return y ^ (x | ~z);
    }
}

static void rfc_block(uint32_t state[4], const uint8_t *block) {
    static const int shifts[4][4] = {
        {7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
    static const int factors[4][2] = {{1, 0}, {5, 1}, {3, 5}, {7, 0}};
    uint32_t words[16], v[4];
    memcpy(words, block, sizeof words);
    memcpy(v, state, sizeof v);
    for (int step = 0; step < 64; step++) {
        const int *factor = factors[step / 16];
        uint32_t addend = (uint32_t)floor(4294967296.0 * fabs(sin(step + 1)));
        uint32_t word = words[(factor[0] * step + factor[1]) % 16];
        uint32_t sum = v[0] + rfc_round(step, v[1], v[2], v[3]) + word + addend;
        int shift = shifts[step / 16][step % 4];
        uint32_t next = v[1] + (sum << shift | sum >> (32 - shift));
        v[0] = v[3];
        v[3] = v[2];
        v[2] = v[1];
        v[1] = next;
    }
    for (int i = 0; i < 4; i++) {
        state[i] += v[i];
    }
}

static void rfc_md5(const uint8_t *message, size_t bytes, uint8_t digest[MU_MD5_BYTES]) {
    uint32_t state[4] = {0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u};
    size_t padded = (bytes + 8) / 64 * 64 + 64;
    uint64_t bits = (uint64_t)bytes * 8;
    uint8_t *all = calloc(1, padded);
    if (all == NULL) {
        abort();
    }
    if (bytes > 0) {
        memcpy(all, message, bytes);
    }
    all[bytes] = 0x80;
    memcpy(all + padded - 8, &bits, 8);
    for (size_t at = 0; at < padded; at += 64) {
        rfc_block(state, all + at);
    }
    memcpy(digest, state, MU_MD5_BYTES);
    free(all);
}

/* --- the kernels ----------------------------------------------------------------------------- */

static struct mu_md5_kernel kernels[12];
static int kernel_count;

/* Each width alone, so that every one meets all messages, and then all together. */
static void add_kernels(const struct mu_md5_width *widths, int count) {
    struct mu_md5_kernel all = {.lanes = widths[0].lanes, .count = count};
    for (int i = 0; i < count; i++) {
        all.widths[i] = widths[i];
        kernels[kernel_count++] =
            (struct mu_md5_kernel){.lanes = widths[i].lanes, .count = 1, .widths = {widths[i]}};
    }
    kernels[kernel_count++] = all;
}

static void find_kernels(void) {
    static const struct mu_md5_width portable[] = {{run_wide, 32, 13}, {run_half, 16, 10}};
    kernels[kernel_count++] = (struct mu_md5_kernel){.lanes = 1};
    add_kernels(portable, 2);
#if defined(__x86_64__)
    static const struct mu_md5_width avx2[] = {{mu_md5_run16_avx2, 16, 84},
                                               {mu_md5_run8_avx2, 8, 50}};
    static const struct mu_md5_width avx512[] = {{mu_md5_run32_avx512, 32, 131},
                                                 {mu_md5_run16_avx512, 16, 102},
                                                 {mu_md5_run8_avx512, 8, 58}};
    if (mu_cpu_has(MU_CPU_AVX2)) {
        add_kernels(avx2, 2);
    } else {
        printf("skipped: this processor has no AVX2; ");
    }
    if (mu_cpu_has(MU_CPU_AVX512)) {
        add_kernels(avx512, 3);
    } else {
        printf("skipped: this processor has no AVX-512; ");
    }
#elif defined(__aarch64__)
    static const struct mu_md5_width neon[] = {{mu_md5_run16_neon, 16, 18},
                                               {mu_md5_run8_neon, 8, 10}};
    CHECK(mu_md5_best().widths[0].run == mu_md5_run16_neon);
    add_kernels(neon, 2);
#endif
}

static uint64_t random_state;

static uint64_t random_below(uint64_t bound) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % bound;
}

static uint8_t *random_bytes(size_t bytes) {
    uint8_t *made = malloc(bytes + 1); /* never NULL for 0 bytes, and the end is at the end */
    if (made == NULL) {
        abort();
    }
    for (size_t i = 0; i < bytes; i++) {
        made[i] = (uint8_t)random_below(256);
    }
    return made;
}

/* A tensor of `shape[0]` bytes. */
static struct mu_tensor bytes_tensor(const uint8_t *data, const int64_t *shape) {
    return (struct mu_tensor){
        .data = data, .shape = shape, .elements = shape[0], .ndim = 1, .dtype = MU_DTYPE_UINT8};
}

/* --- the tests ------------------------------------------------------------------------------- */

static void test_vectors_of_the_rfc(void) {
    static const char *const vectors[][2] = {
        {"", "d41d8cd98f00b204e9800998ecf8427e"},
        {"a", "0cc175b9c0f1b6a831c399e269772661"},
        {"abc", "900150983cd24fb0d6963f7d28e17f72"},
        {"message digest", "f96b697d7cb7938d525a2f31aaf161d0"},
        {"abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"},
        {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
         "d174ab98d277d9f5a5611c2c9f419d9f"},
        {"12345678901234567890123456789012345678901234567890123456789012345678901234567890",
         "57edf4a22be3c955ac49da2e2107b67a"},
    };
    enum { COUNT = sizeof vectors / sizeof *vectors };
    for (int kernel = 0; kernel < kernel_count; kernel++) {
        struct mu_tensor tensors[COUNT];
        struct mu_md5_job jobs[COUNT];
        int64_t lengths[COUNT];
        for (int i = 0; i < COUNT; i++) {
            lengths[i] = (int64_t)strlen(vectors[i][0]);
            tensors[i] = bytes_tensor((const uint8_t *)vectors[i][0], &lengths[i]);
            jobs[i].tensor = &tensors[i];
        }
        CHECK_INT(mu_md5_batch_with(kernels[kernel], jobs, COUNT, NULL), MU_OK);
        for (int i = 0; i < COUNT; i++) {
            char hex[2 * MU_MD5_BYTES + 1];
            for (int byte = 0; byte < MU_MD5_BYTES; byte++) {
                snprintf(hex + 2 * byte, 3, "%02x", jobs[i].digest[byte]);
            }
            CHECK_STR(hex, vectors[i][1]);
        }
    }
}

/* `count` messages of these lengths, at any alignment, through every kernel. */
static void check_lengths(const int64_t *lengths, size_t count) {
    struct mu_tensor *tensors = malloc(count * sizeof *tensors);
    struct mu_md5_job *jobs = malloc(count * sizeof *jobs);
    uint8_t **data = malloc(count * sizeof *data);
    uint8_t (*wanted)[MU_MD5_BYTES] = malloc(count * sizeof *wanted);
    if (tensors == NULL || jobs == NULL || data == NULL || wanted == NULL) {
        abort();
    }
    for (size_t i = 0; i < count; i++) {
        size_t shift = random_below(64);
        data[i] = random_bytes(shift + (size_t)lengths[i]);
        tensors[i] = bytes_tensor(data[i] + shift, &lengths[i]);
        rfc_md5(data[i] + shift, (size_t)lengths[i], wanted[i]);
    }
    for (int kernel = 0; kernel < kernel_count; kernel++) {
        for (size_t i = 0; i < count; i++) {
            jobs[i] = (struct mu_md5_job){.tensor = &tensors[i]};
        }
        CHECK_INT(mu_md5_batch_with(kernels[kernel], jobs, count, NULL), MU_OK);
        int good = 0;
        for (size_t i = 0; i < count; i++) {
            good += memcmp(jobs[i].digest, wanted[i], MU_MD5_BYTES) == 0;
        }
        CHECK_INT(good, count);
    }
    for (size_t i = 0; i < count; i++) {
        free(data[i]);
    }
    free(wanted);
    free(data);
    free(jobs);
    free(tensors);
}

static void test_every_length_up_to_300(void) {
    int64_t lengths[301];
    for (int i = 0; i <= 300; i++) {
        lengths[i] = i;
        check_lengths(&lengths[i], 1);
    }
    check_lengths(lengths, 301);
}

static void test_any_number_of_messages(void) {
    int64_t lengths[70];
    for (size_t count = 2; count <= 70; count++) {
        uint64_t bound = count % 3 == 0 ? 130 : 20000;
        for (size_t i = 0; i < count; i++) {
            lengths[i] = (int64_t)random_below(bound);
        }
        check_lengths(lengths, count);
    }
}

static void test_one_giant_among_many(void) {
    int64_t lengths[40];
    for (int i = 0; i < 40; i++) {
        lengths[i] = 1000 + i;
    }
    lengths[17] = 3000001;
    check_lengths(lengths, 40);
    check_lengths(lengths + 17, 2);
}

/* --- the width ------------------------------------------------------------------------------- */

static int widest_run;

static void note_lanes(int lanes, uint32_t *states, const uint8_t *const *data, size_t blocks) {
    widest_run = lanes > widest_run ? lanes : widest_run;
    for (int lane = 0; lane < lanes; lane++) {
        uint32_t state[4];
        for (int word = 0; word < 4; word++) {
            state[word] = states[word * lanes + lane];
        }
        mu_md5_run_scalar(state, &data[lane], blocks);
        for (int word = 0; word < 4; word++) {
            states[word * lanes + lane] = state[word];
        }
    }
}

static void note_32(uint32_t *states, const uint8_t *const *data, size_t blocks) {
    note_lanes(32, states, data, blocks);
}

static void note_16(uint32_t *states, const uint8_t *const *data, size_t blocks) {
    note_lanes(16, states, data, blocks);
}

static void note_8(uint32_t *states, const uint8_t *const *data, size_t blocks) {
    note_lanes(8, states, data, blocks);
}

/* `giants` messages of 100 times the length of the `others`: the widest kernel that runs. */
static int width_for(int giants, int others) {
    static const struct mu_md5_kernel noted = {
        .lanes = 32,
        .count = 3,
        .widths = {{note_32, 32, 131}, {note_16, 16, 102}, {note_8, 8, 58}}};
    enum { MOST = 600, SHORT = 500 };
    static uint8_t bytes[100 * SHORT];
    static const int64_t lengths[2] = {SHORT, 100 * SHORT};
    struct mu_tensor tensors[2] = {bytes_tensor(bytes, &lengths[0]),
                                   bytes_tensor(bytes, &lengths[1])};
    struct mu_md5_job jobs[MOST];
    for (int i = 0; i < giants + others; i++) {
        jobs[i] = (struct mu_md5_job){.tensor = &tensors[i < giants]};
    }
    widest_run = 0;
    CHECK_INT(mu_md5_batch_with(noted, jobs, (size_t)(giants + others), NULL), MU_OK);
    return widest_run;
}

static void test_width_fits_the_messages(void) {
    CHECK_INT(width_for(0, 600), 32);
    CHECK_INT(width_for(32, 100), 32);
    CHECK_INT(width_for(0, 20), 32);
    CHECK_INT(width_for(0, 16), 16);
    CHECK_INT(width_for(0, 33), 32);
    CHECK_INT(width_for(13, 200),
              16); /* as language models: a few large matrices are a fifteenth */
    CHECK_INT(width_for(1, 500), 8);
    CHECK_INT(width_for(0, 3), 8);
}

/* Strided views of many kinds side by side, against the bytes that an odometer picks. */
static void test_strided(void) {
    enum { COUNT = 45 };
    static const int64_t shapes[][3] = {{30, 50, 7}, {1, 9000, 1}, {5, 1, 600}, {3, 0, 4}};
    static const int64_t strides[][3] = {
        {350, 7, 1}, {7, 210, 1}, {1, 30, 1500}, {0, 1, 50}, {700, -3, 2}};
    static const int dtypes[] = {MU_DTYPE_UINT8, MU_DTYPE_FLOAT16, MU_DTYPE_FLOAT64,
                                 MU_DTYPE_COMPLEX128};
    size_t capacity = (size_t)8 << 20;
    uint8_t *memory = random_bytes(2 * capacity);
    struct mu_tensor tensors[COUNT];
    struct mu_md5_job jobs[COUNT];
    uint8_t wanted[COUNT][MU_MD5_BYTES];
    for (int i = 0; i < COUNT; i++) {
        const int64_t *shape = shapes[i % 4], *step = strides[i % 5];
        size_t item = mu_dtype_info(dtypes[i % 4])->size;
        int64_t elements = shape[0] * shape[1] * shape[2];
        const uint8_t *origin = memory + capacity;
        tensors[i] = (struct mu_tensor){.data = origin,
                                        .shape = shape,
                                        .strides = step,
                                        .elements = elements,
                                        .ndim = 3,
                                        .dtype = (uint8_t)dtypes[i % 4]};
        uint8_t *packed = random_bytes((size_t)elements * item), *to = packed;
        for (int64_t at = 0; at < elements; at++, to += item) {
            int64_t offset = at / (shape[1] * shape[2]) * step[0] +
                             at / shape[2] % shape[1] * step[1] + at % shape[2] * step[2];
            memcpy(to, origin + offset * (int64_t)item, item);
        }
        rfc_md5(packed, (size_t)elements * item, wanted[i]);
        free(packed);
    }
    for (int kernel = 0; kernel < kernel_count; kernel++) {
        for (int i = 0; i < COUNT; i++) {
            jobs[i] = (struct mu_md5_job){.tensor = &tensors[i]};
        }
        CHECK_INT(mu_md5_batch_with(kernels[kernel], jobs, COUNT, NULL), MU_OK);
        for (int i = 0; i < COUNT; i++) {
            CHECK_BYTES(jobs[i].digest, wanted[i], MU_MD5_BYTES);
        }
    }
    free(memory);
}

/* The length in bits has 64 bits: 600 MiB are more than 2^32 of them. An expanded byte needs no
 * memory. */
static void test_more_than_32_bits_of_length(void) {
    static const uint8_t byte = 'x';
    static const int64_t shape = 600LL << 20, stride = 0;
    struct mu_tensor tensor = bytes_tensor(&byte, &shape);
    tensor.strides = &stride;
    struct mu_md5_job job = {.tensor = &tensor};
    CHECK_INT(mu_md5_batch(&job, 1, NULL), MU_OK);
    static const uint8_t wanted[] = {0x9c, 0x7b, 0x23, 0x72, 0x9e, 0x00, 0x4d, 0x73,
                                     0xd4, 0xe1, 0x93, 0x66, 0x7e, 0xd3, 0x89, 0x57};
    CHECK_BYTES(job.digest, wanted, MU_MD5_BYTES);
}

static void test_nothing(void) {
    CHECK_INT(mu_md5_batch(NULL, 0, NULL), MU_OK);
}

int main(void) {
    find_kernels();
    test_vectors_of_the_rfc();
    test_every_length_up_to_300();
    test_any_number_of_messages();
    test_one_giant_among_many();
    test_width_fits_the_messages();
    test_strided();
    test_more_than_32_bits_of_length();
    test_nothing();
    return check_report();
}
