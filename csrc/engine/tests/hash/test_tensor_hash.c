/* The tensor hash: every kernel, strides, threads, parts. The vectors come from the plain
 * definition in tests/support/tensor_hash_oracle.py; docs/correctness/tensor-hash.md lists them. */
#include "hash/tensor_hash.h"

#include <stdlib.h>

#include "hash/tensor_hash_part.h"
#include "hash/tensor_hash_quads.h"
#include "tensor/tensor_batch.h"
#include "tests/check.h"

/* The code of the AVX-512 kernel, on lanes that any processor has. */
typedef struct {
    uint64_t pair[8];
} lanes, factors;
#define LANES_QUADS 4
#define EACH(expression)                                                                           \
    lanes result;                                                                                  \
    for (int i = 0; i < LANES_QUADS * 2; i++) {                                                    \
        result.pair[i] = (expression);                                                             \
    }                                                                                              \
    return result

static inline lanes lanes_zero(void) {
    return (lanes){{0}};
}

static inline lanes lanes_load(const void *address) {
    lanes a;
    memcpy(&a, address, sizeof(a));
    return a;
}

static inline void lanes_fold(lanes a, uint64_t *out) {
    out[0] = 0;
    out[1] = 0;
    for (int i = 0; i < LANES_QUADS * 2; i++) {
        out[i % 2] += a.pair[i];
    }
}

static inline lanes lanes_add_words(lanes a, lanes b) {
    EACH((uint32_t)(a.pair[i] + b.pair[i]) | ((a.pair[i] >> 32) + (b.pair[i] >> 32)) << 32);
}

static inline factors lanes_even(lanes a) {
    return a;
}

static inline factors lanes_odd(lanes a) {
    EACH(a.pair[i] >> 32);
}

static inline factors lanes_exchange(factors x) {
    EACH(x.pair[i ^ 1]);
}

static inline lanes lanes_add_products(lanes sum, factors x, factors y) {
    EACH(sum.pair[i] + (uint64_t)(uint32_t)x.pair[i] * (uint32_t)y.pair[i]);
}

#include "hash/tensor_hash_lanes.h"

static const struct mu_hash_kernel emulated = {.name = "avx512, emulated",
                                               .add_quads = add_quads,
                                               .add_block = add_block,
                                               .add_blocks = add_blocks};

enum { DATA_BYTES = 6 * MU_HASH_BLOCK_BYTES };

/* Bytes that all tests read; the last third is of one value. */
static uint8_t *make_data(size_t count) {
    uint8_t *bytes = malloc(count + 1);
    uint64_t state = 1;
    for (size_t i = 0; bytes != NULL && i < count; i++) {
        bytes[i] = i < count / 3 * 2 ? (uint8_t)mu_hash_next_random(&state) : 0x7F;
    }
    return bytes;
}

/* --- the definition ----------------------------------------------------------------------- */

static void hashes_to(const uint8_t *bytes, size_t count, const char *want) {
    struct mu_digest digest;
    char text[MU_HASH_HEX + 1] = {0};
    mu_tensor_hash_bytes(mu_hash_kernel_best(), bytes, count, &digest);
    mu_digest_hex(&digest, text);
    CHECK_STR(text, want);
}

static void test_vectors(void) {
    uint8_t bytes[12289];
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)(i * 7 + i / 256);
    }
    hashes_to(bytes, 0, "fac093705c7c9f2b9ee5bd6e6290f795");
    hashes_to(bytes, 1, "444be3adef8751a5d36eccf8951f5e9c");
    hashes_to(bytes, 4, "f8acde262dfa776784702994f3a53563");
    hashes_to(bytes, 16, "a6341d165556844b56e104fb68adcc53");
    hashes_to(bytes, 17, "e864e1dc21bcee37063c7d81aedd2082");
    hashes_to(bytes, 64, "9176fc455e532f274ecf5bc95bfc9a1c");
    hashes_to(bytes, 4096, "3046751588627f700224a53c3bf8e144");
    hashes_to(bytes, 4097, "690aaaf89ddf63ec6d1fd268e1693b28");
    hashes_to(bytes, 12288, "f37a04ac390ec44b6652197fb2497ea9");
    hashes_to(bytes, 12289, "cd01c7bfcdeaffde9dc1915043583786");
}

static void test_combined(void) {
    static const int64_t shape[] = {2, 0, 3};
    struct mu_digest content, digest;
    char text[MU_HASH_HEX + 1] = {0};
    mu_tensor_hash_bytes(mu_hash_kernel_best(), NULL, 0, &content);
    mu_tensor_hash_combine(&content, MU_DTYPE_FLOAT4_E2M1FN_X2, 3, shape, &digest);
    mu_digest_hex(&digest, text);
    CHECK_STR(text, "7c6fe5482b73e5e14a0a2f82abe476f3");
    mu_tensor_hash_combine(&content, MU_DTYPE_BOOL, 0, NULL, &digest);
    mu_digest_hex(&digest, text);
    CHECK_STR(text, "0517c7cc297d90ebac4c1b2ae95e8d29");
}

/* --- kernels ------------------------------------------------------------------------------ */

static void kernel_agrees(const struct mu_hash_kernel *kernel, const uint8_t *data) {
    static const size_t counts[] = {0,    1,    15,   16,   17,   31,    32,        48,   63,
                                    64,   80,   112,  255,  4080, 4095,  4096,      4097, 4112,
                                    8191, 8192, 8193, 9000, 9001, 20479, DATA_BYTES};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        for (size_t offset = 0; offset < 3 && offset + counts[i] <= DATA_BYTES; offset++) {
            struct mu_digest want, got;
            mu_tensor_hash_bytes(&mu_hash_kernel_scalar, data + offset, counts[i], &want);
            mu_tensor_hash_bytes(kernel, data + offset, counts[i], &got);
            CHECK(got.lo == want.lo && got.hi == want.hi);
        }
    }
}

/* On a copy that ends where its memory ends, so that a sanitizer sees a byte read too many. */
static void kernel_stays_within(const struct mu_hash_kernel *kernel, const uint8_t *data) {
    for (size_t count = 1; count < 300; count++) {
        uint8_t *copy = malloc(count);
        struct mu_digest want, got;
        if (!CHECK(copy != NULL)) {
            return;
        }
        memcpy(copy, data, count);
        mu_tensor_hash_bytes(&mu_hash_kernel_scalar, data, count, &want);
        mu_tensor_hash_bytes(kernel, copy, count, &got);
        CHECK(got.lo == want.lo && got.hi == want.hi);
        free(copy);
    }
}

static void test_kernels(const uint8_t *data) {
#ifdef __aarch64__
    static const char *const names[] = {"scalar", "neon"};
    CHECK_STR(mu_hash_kernel_best()->name, "neon");
#else
    static const char *const names[] = {"scalar", "avx2", "avx512"};
#endif
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct mu_hash_kernel *kernel = mu_hash_kernel_by_name(names[i]);
        if (kernel == NULL) {
            printf("no %s here: its code ran emulated; ", names[i]);
            continue;
        }
        CHECK_STR(kernel->name, names[i]);
        kernel_agrees(kernel, data);
        kernel_stays_within(kernel, data);
    }
    kernel_agrees(&emulated, data);
    kernel_stays_within(&emulated, data);
    CHECK(mu_hash_kernel_by_name("sse9") == NULL);
}

/* --- tensors ------------------------------------------------------------------------------ */

static struct mu_tensor view_of(const void *data, int dtype, int ndim, const int64_t *shape,
                                const int64_t *strides) {
    struct mu_tensor view = {
        .data = data, .shape = shape, .strides = strides, .ndim = ndim, .dtype = (uint8_t)dtype};
    CHECK_INT(mu_tensor_check(&view, NULL), MU_OK);
    return view;
}

static void equal_content(const struct mu_tensor *tensor, const uint8_t *bytes, size_t count) {
    struct mu_digest want, got;
    mu_tensor_hash_bytes(&mu_hash_kernel_scalar, bytes, count, &want);
    mu_tensor_hash(tensor, &got);
    CHECK(got.lo == want.lo && got.hi == want.hi);
}

/* A transposed and a reversed matrix, against copies in row-major order. */
static void test_strides(void) {
    enum { ROWS = 257, COLUMNS = 65 };
    static uint16_t matrix[ROWS][COLUMNS], transposed[COLUMNS][ROWS], reversed[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLUMNS; j++) {
            matrix[i][j] = (uint16_t)(i * 251 + j * 17);
            transposed[j][i] = matrix[i][j];
            reversed[ROWS - 1 - i][j] = matrix[i][j];
        }
    }
    static const int64_t shape[] = {COLUMNS, ROWS}, strides[] = {1, COLUMNS};
    struct mu_tensor view = view_of(matrix, MU_DTYPE_BFLOAT16, 2, shape, strides);
    equal_content(&view, (const uint8_t *)transposed, sizeof(transposed));
    static const int64_t back_shape[] = {ROWS, COLUMNS}, back_strides[] = {-COLUMNS, 1};
    view = view_of(matrix[ROWS - 1], MU_DTYPE_BFLOAT16, 2, back_shape, back_strides);
    equal_content(&view, (const uint8_t *)reversed, sizeof(reversed));
}

/* Lines across memory that begin and end at quads, of every size of element: a part of a transposed
 * matrix, against a copy of it in row-major order. */
static void test_lines_across_memory(const uint8_t *data) {
    enum { LINES = 270, LINE_BYTES = 1040 };
    static const int dtypes[] = {MU_DTYPE_UINT8, MU_DTYPE_BFLOAT16, MU_DTYPE_FLOAT32,
                                 MU_DTYPE_FLOAT64, MU_DTYPE_COMPLEX128};
    static uint8_t lines[LINES * LINE_BYTES], across[LINES * LINE_BYTES];
    for (size_t i = 0; i < sizeof(lines); i++) {
        lines[i] = data[i % DATA_BYTES] ^ (uint8_t)(i / DATA_BYTES);
    }
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        size_t item = mu_dtype_info(dtypes[i])->size, count = LINE_BYTES / item;
        for (size_t line = 0; line < LINES; line++) {
            for (size_t at = 0; at < count; at++) {
                memcpy(across + (at * LINES + line) * item, lines + (line * count + at) * item,
                       item);
            }
        }
        const int64_t shape[] = {LINES, (int64_t)count}, strides[] = {1, LINES};
        struct mu_tensor view = view_of(across, dtypes[i], 2, shape, strides);
        equal_content(&view, lines, sizeof(lines));
        const int64_t whole[] = {LINES + 3, 2 * (int64_t)count}, place[] = {2, (int64_t)count};
        struct mu_tensor dense = view_of(lines, dtypes[i], 2, shape, NULL);
        struct mu_hash_part got, want;
        CHECK_INT(mu_hash_part_of(&got, &view, whole, place, NULL), MU_OK);
        CHECK_INT(mu_hash_part_of(&want, &dense, whole, place, NULL), MU_OK);
        CHECK(memcmp(&got.sums, &want.sums, sizeof(got.sums)) == 0);
        CHECK(got.cut_count == 0 && want.cut_count == 0);
    }
}

static void test_empty(void) {
    static const int64_t shape[] = {3, 0}, strides[] = {1, 1};
    struct mu_tensor view = view_of(NULL, MU_DTYPE_FLOAT32, 2, shape, strides);
    equal_content(&view, NULL, 0);
}

/* Large enough to be cut into chunks, of a length that no chunk divides; forwards and backwards. */
static void test_chunks(void) {
    size_t count = 3 * (size_t)MU_HASH_SPLIT_BYTES + 4097;
    uint8_t *data = make_data(count), *reversed = malloc(count);
    int64_t shape[] = {(int64_t)count}, backwards[] = {-1};
    if (CHECK(data != NULL && reversed != NULL)) {
        for (size_t i = 0; i < count; i++) {
            reversed[i] = data[count - 1 - i];
        }
        struct mu_tensor view = view_of(data, MU_DTYPE_UINT8, 1, shape, NULL);
        equal_content(&view, data, count);
        view = view_of(data + count - 1, MU_DTYPE_UINT8, 1, shape, backwards);
        equal_content(&view, reversed, count);
    }
    free(reversed);
    free(data);
}

static void hash_to(const struct mu_tensor *tensor, int64_t index, void *context) {
    mu_tensor_hash(tensor, (struct mu_digest *)context + index);
}

/* Many of many sizes, empty ones and two big ones among them. */
static void test_many(void) {
    enum { COUNT = 100 };
    size_t capacity = 2 * (size_t)MU_HASH_SPLIT_BYTES;
    uint8_t *data = make_data(capacity);
    struct mu_tensor views[COUNT];
    const struct mu_tensor *pointers[COUNT];
    int64_t shapes[COUNT];
    struct mu_digest digests[COUNT];
    if (!CHECK(data != NULL)) {
        return;
    }
    for (int i = 0; i < COUNT; i++) {
        shapes[i] = i % 40 == 7 ? (int64_t)capacity : (int64_t)i * i * 7 % 70000;
        shapes[i] = i == 0 || i == COUNT - 1 ? 0 : shapes[i];
        views[i] = view_of(data, MU_DTYPE_INT8, 1, &shapes[i], NULL);
        pointers[i] = &views[i];
    }
    for (int count = COUNT; count >= 0; count -= 50) {
        memset(digests, 0, sizeof(digests));
        mu_tensors_each(pointers, count, hash_to, digests);
        for (int i = 0; i < count; i++) {
            struct mu_digest want;
            mu_tensor_hash_bytes(&mu_hash_kernel_scalar, data, (size_t)shapes[i], &want);
            CHECK(digests[i].lo == want.lo && digests[i].hi == want.hi);
        }
    }
    free(data);
}

/* --- parts -------------------------------------------------------------------------------- */

static uint64_t below(uint64_t *state, uint64_t limit) {
    return mu_hash_next_random(state) % limit;
}

/* A part of a run of bytes. */
static void start_run(struct mu_hash_part *part, const uint8_t *data, size_t from, size_t to,
                      size_t total) {
    int64_t count = (int64_t)(to - from), whole = (int64_t)total, at = (int64_t)from;
    struct mu_tensor view = view_of(data + from, MU_DTYPE_UINT8, 1, &count, NULL);
    CHECK_INT(mu_hash_part_of(part, &view, &whole, &at, NULL), MU_OK);
}

/* Replaces `sum` by the sum of both, and frees `more`. */
static void add_part(struct mu_hash_part *sum, struct mu_hash_part *more) {
    struct mu_hash_part both;
    CHECK_INT(mu_hash_part_add(&both, sum, more, NULL), MU_OK);
    mu_hash_part_free(sum);
    mu_hash_part_free(more);
    *sum = both;
}

static void closes_as(struct mu_hash_part *part, const uint8_t *data, size_t count) {
    struct mu_digest want, got = {0};
    mu_tensor_hash_bytes(&mu_hash_kernel_scalar, data, count, &want);
    CHECK_INT(mu_hash_part_close(part, &got, NULL), MU_OK);
    CHECK(got.lo == want.lo && got.hi == want.hi);
}

/* Runs that are cut at random places, added in random order. */
static void test_runs(const uint8_t *data) {
    enum { RUNS_MAX = 40 };
    static struct mu_hash_part parts[RUNS_MAX];
    uint64_t state = 3;
    for (int i = 0; i < 300; i++) {
        size_t total = below(&state, DATA_BYTES), used = 0;
        for (size_t at = 0; at < total; used++) {
            size_t to = at + below(&state, used % 2 ? 40 : DATA_BYTES / 8);
            to = to > total || used == RUNS_MAX - 1 ? total : to;
            start_run(&parts[used], data, at, to, total);
            at = to;
        }
        struct mu_hash_part sum;
        mu_hash_part_start(&sum, total);
        for (; used > 0; used--) {
            size_t taken = below(&state, used);
            add_part(&sum, &parts[taken]);
            parts[taken] = parts[used - 1];
        }
        closes_as(&sum, data, total);
        mu_hash_part_free(&sum);
    }
}

/* Large enough for the threads, at odd places, row-major and not. */
static void test_large_parts(void) {
    size_t total = 3 * (size_t)MU_HASH_SPLIT_BYTES + 4097;
    uint8_t *data = make_data(total), *reversed = malloc(total);
    static const int64_t cuts[] = {1, 2043, 4096, 1500001};
    if (CHECK(data != NULL && reversed != NULL)) {
        for (size_t i = 0; i < total; i++) {
            reversed[i] = data[total - 1 - i];
        }
        for (size_t i = 0; i < 4; i++) {
            struct mu_hash_part sum, part;
            int64_t shape = cuts[i], whole = (int64_t)total, backwards = -1;
            struct mu_tensor view =
                view_of(reversed + total - 1, MU_DTYPE_UINT8, 1, &shape, &backwards);
            CHECK_INT(mu_hash_part_of(&sum, &view, &whole, NULL, NULL), MU_OK);
            start_run(&part, data, (size_t)cuts[i], total, total);
            add_part(&sum, &part);
            closes_as(&sum, data, total);
            mu_hash_part_free(&sum);
        }
    }
    free(reversed);
    free(data);
}

/* The whole [6, 40, 25], cut into boxes [0, a) and [a, size) in each dimension. */
enum { WHOLE_0 = 6, WHOLE_1 = 40, WHOLE_2 = 25, WHOLE = WHOLE_0 * WHOLE_1 * WHOLE_2 };

static const int64_t whole_shape[] = {WHOLE_0, WHOLE_1, WHOLE_2};

/* Boxes are views of the whole, so they have gaps. */
static void test_boxes(const uint8_t *data) {
    static const int64_t cuts[][3] = {{0, 0, 0},   {6, 40, 25}, {3, 0, 0},  {1, 7, 0},
                                      {2, 11, 12}, {0, 0, 1},   {5, 39, 20}};
    static const int64_t strides[] = {WHOLE_1 * WHOLE_2, WHOLE_2, 1};
    static const int dtypes[] = {MU_DTYPE_UINT8, MU_DTYPE_BFLOAT16, MU_DTYPE_FLOAT32};
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]) * 3; i++) {
        size_t item = mu_dtype_info(dtypes[i % 3])->size;
        struct mu_hash_part sum, part;
        mu_hash_part_start(&sum, WHOLE * item);
        for (int corner = 0; corner < 8; corner++) {
            int64_t at[3], shape[3], offset = 0;
            for (int dim = 0; dim < 3; dim++) {
                bool right = corner >> dim & 1;
                at[dim] = right ? cuts[i / 3][dim] : 0;
                shape[dim] = right ? whole_shape[dim] - cuts[i / 3][dim] : cuts[i / 3][dim];
                offset += at[dim] * strides[dim];
            }
            struct mu_tensor view =
                view_of(data + (size_t)offset * item, dtypes[i % 3], 3, shape, strides);
            CHECK_INT(mu_hash_part_of(&part, &view, whole_shape, at, NULL), MU_OK);
            add_part(&sum, &part);
        }
        CHECK_INT(sum.cut_count, 0);
        closes_as(&sum, data, WHOLE * item);
        mu_hash_part_free(&sum);
    }
}

static void test_boxes_outside(const uint8_t *data) {
    static const int64_t shape[] = {2, 3, 6}, outside[] = {5, 0, 0}, before[] = {0, -1, 0};
    static const int64_t large[] = {INT64_MAX, 3, 6};
    struct mu_tensor view = view_of(data, MU_DTYPE_FLOAT32, 3, shape, NULL);
    struct mu_hash_part part;
    struct mu_error err;
    CHECK_INT(mu_hash_part_of(&part, &view, whole_shape, outside, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, "indices 5 to 7 of 6 in dimension 0");
    CHECK_INT(mu_hash_part_of(&part, &view, whole_shape, before, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, "indices -1 to 2 of 40 in dimension 1");
    CHECK_INT(mu_hash_part_of(&part, &view, large, NULL, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, "a tensor of more than 2^63 bytes");
}

static void does_not_close(struct mu_hash_part *part, const char *want) {
    struct mu_digest content;
    struct mu_error err;
    CHECK_INT(mu_hash_part_close(part, &content, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, want);
    mu_hash_part_free(part);
}

static void test_parts_that_do_not_fit(const uint8_t *data) {
    struct mu_hash_part a, b, both;
    struct mu_error err;
    start_run(&a, data, 0, 48, 80);
    does_not_close(&a, "parts of 48 bytes, not 80: some are missing");
    start_run(&a, data, 0, 48, 80);
    start_run(&b, data, 16, 64, 80);
    add_part(&a, &b);
    does_not_close(&a, "parts of 96 bytes, not 80: some are there twice");
    start_run(&a, data, 0, 40, 80);
    start_run(&b, data, 40, 48, 80);
    add_part(&a, &b);
    start_run(&b, data, 0, 32, 80);
    add_part(&a, &b);
    CHECK_INT(mu_hash_part_check(&a, NULL), MU_OK); /* the number of bytes says no more */
    mu_hash_part_free(&a);
    start_run(&a, data, 0, 40, 80);
    start_run(&b, data, 0, 40, 80);
    CHECK_INT(mu_hash_part_add(&both, &a, &b, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, "byte 32 is there twice");
    mu_hash_part_free(&b);
    start_run(&b, data, 0, 40, 81);
    CHECK_INT(mu_hash_part_add(&both, &a, &b, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, "parts of wholes of 80 and 81 bytes");
    mu_hash_part_free(&a);
    mu_hash_part_free(&b);
    start_run(&a, data, 0, 36, 80);
    start_run(&b, data, 0, 32, 80);
    add_part(&a, &b);
    start_run(&b, data, 48, 60, 80);
    add_part(&a, &b);
    does_not_close(&a, "bytes from 36 on are missing, and others are there twice");
}

static void test_parts_from_figures(const uint8_t *data) {
    struct mu_hash_sums none = {0};
    struct mu_hash_cut cuts[] = {
        {.quad = 1, .has = 0xF}, {.quad = 0, .has = 0xFF00}, {.quad = 0, .has = 0xFF}};
    struct mu_hash_part part;
    struct mu_error err;
    memcpy(cuts[2].bytes, data, 8);
    memcpy(cuts[1].bytes + 8, data + 8, 8);
    memcpy(cuts[0].bytes, data + 16, 4);
    CHECK_INT(mu_hash_part_from(&part, 20, 20, &none, cuts, 3, NULL), MU_OK);
    CHECK_INT(part.cut_count, 0);
    closes_as(&part, data, 20);
    mu_hash_part_free(&part);
    CHECK_INT(mu_hash_part_from(&part, 19, 20, &none, cuts, 3, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, "cut bytes from 16 on, in a whole of 19");
    cuts[0].quad = UINT64_MAX / 16;
    CHECK_INT(mu_hash_part_from(&part, 20, 20, &none, cuts, 3, &err), MU_ERR_ARGUMENT);
}

/* Single changes and pairs of them, from the sums alone. */
static void test_places(void) {
    enum { COUNT = 64 * MU_HASH_BLOCK_BYTES + 77 };
    uint8_t *data = make_data(COUNT);
    struct mu_hash_part before, after;
    uint64_t state = 9;
    if (!CHECK(data != NULL)) {
        return;
    }
    start_run(&before, data, 0, COUNT, COUNT);
    CHECK(mu_hash_place(&before, &before) == UINT64_MAX);
    for (int i = 0; i < 500; i++) {
        size_t one = below(&state, COUNT), two = (one + COUNT / 2) % COUNT;
        uint8_t bit = (uint8_t)(1u << below(&state, 8));
        data[one] ^= bit;
        start_run(&after, data, 0, COUNT, COUNT);
        CHECK_INT(mu_hash_place(&before, &after), one / MU_HASH_BLOCK_BYTES);
        mu_hash_part_free(&after);
        data[two] ^= bit;
        start_run(&after, data, 0, COUNT, COUNT);
        CHECK(mu_hash_place(&before, &after) == UINT64_MAX);
        mu_hash_part_free(&after);
        data[one] ^= bit;
        data[two] ^= bit;
    }
    mu_hash_part_free(&before);
    free(data);
}

int main(void) {
    uint8_t *data = make_data(DATA_BYTES + 2);
    if (data == NULL) {
        return 2;
    }
    test_vectors();
    test_combined();
    test_kernels(data);
    test_strides();
    test_lines_across_memory(data);
    test_empty();
    test_chunks();
    test_many();
    test_runs(data);
    test_large_parts();
    test_boxes(data);
    test_boxes_outside(data);
    test_parts_that_do_not_fit(data);
    test_parts_from_figures(data);
    test_places();
    free(data);
    return check_report();
}
