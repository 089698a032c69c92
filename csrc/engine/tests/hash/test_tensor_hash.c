/* The tensor hash: every kernel, strides, threads, parts. The vectors come from the plain
 * definition in tests/support/tensor_hash_oracle.py; docs/correctness/tensor-hash.md lists them. */
#include "hash/tensor_hash.h"

#include <stdlib.h>

#include "hash/tensor_hash_part.h"
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

static const struct mu_hash_kernel emulated = {
    .name = "avx512, emulated", .add_quads = add_quads, .add_blocks = add_blocks};

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
    hashes_to(bytes, 0, "da79f3d81e579803e3c666a64b5577a7");
    hashes_to(bytes, 1, "ccf42b73c3acfc9189d68592d8b9b65b");
    hashes_to(bytes, 4, "c5fd54aa4eb38a1967c9e0d36a4a86c6");
    hashes_to(bytes, 16, "b865f07bc4c551da95818316fe8e0bdd");
    hashes_to(bytes, 17, "d092a49823f45762f103b339f9d70b30");
    hashes_to(bytes, 64, "81482f87f23aef818eb07a9760b03821");
    hashes_to(bytes, 4096, "08a90ed4ac77096c7039e4c713e1f8b4");
    hashes_to(bytes, 4097, "b3958deb4146fc279a2fbb019737818b");
    hashes_to(bytes, 12288, "0095c6ac6548e9b158a8ea3993c4d9d0");
    hashes_to(bytes, 12289, "00cad48fd9fd33f6e8040426ef52129a");
}

static void test_combined(void) {
    static const int64_t shape[] = {2, 0, 3};
    struct mu_digest content, digest;
    char text[MU_HASH_HEX + 1] = {0};
    mu_tensor_hash_bytes(mu_hash_kernel_best(), NULL, 0, &content);
    mu_tensor_hash_combine(&content, MU_DTYPE_FLOAT4_E2M1FN_X2, 3, shape, &digest);
    mu_digest_hex(&digest, text);
    CHECK_STR(text, "ef93096ab84f16683bf57257a74be3b5");
    mu_tensor_hash_combine(&content, MU_DTYPE_BOOL, 0, NULL, &digest);
    mu_digest_hex(&digest, text);
    CHECK_STR(text, "ac0df159895d13e36f08669e098360cd");
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

/* Cuts [0, count) at random places, multiples of `unit`, and gives the parts in random order. Each
 * is added in up to three calls. */
static size_t cut_at_random(const uint8_t *data, size_t count, size_t unit, uint64_t *state,
                            struct mu_hash_part *parts, size_t capacity) {
    size_t used = 0;
    for (size_t at = 0; at < count && used < capacity; used++) {
        size_t to = at + unit * below(state, used % 2 ? 40 : 4 * MU_HASH_BLOCK_BYTES / unit);
        to = to > count || used == capacity - 1 ? count : to;
        mu_hash_part_start(&parts[used], at);
        while (at < to) {
            size_t next = (at / 16 + 1 + below(state, 600)) * 16;
            next = next < to ? next : to;
            mu_hash_part_add(&parts[used], data + at, next - at);
            at = next;
        }
    }
    for (size_t i = used; i > 1; i--) {
        size_t j = below(state, i);
        struct mu_hash_part kept = parts[j];
        parts[j] = parts[i - 1];
        parts[i - 1] = kept;
    }
    return used;
}

static void test_merge(const uint8_t *data) {
    static struct mu_hash_part parts[4000];
    uint64_t state = 3;
    for (int i = 0; i < 400; i++) {
        size_t count = below(&state, DATA_BYTES), unit = i % 2 ? 16 : 1;
        size_t used = cut_at_random(data, count, unit, &state, parts, 4000);
        struct mu_digest want, got = {0};
        mu_tensor_hash_bytes(&mu_hash_kernel_scalar, data, count, &want);
        CHECK_INT(mu_hash_merge(parts, used, count, &got, NULL), MU_OK);
        CHECK(got.lo == want.lo && got.hi == want.hi);
    }
    struct mu_digest nothing, empty;
    mu_tensor_hash_bytes(&mu_hash_kernel_scalar, NULL, 0, &nothing);
    CHECK_INT(mu_hash_merge(NULL, 0, 0, &empty, NULL), MU_OK);
    CHECK(nothing.lo == empty.lo && nothing.hi == empty.hi);
}

static void does_not_merge(struct mu_hash_part *parts, size_t count, uint64_t bytes,
                           const char *want) {
    struct mu_digest content;
    struct mu_error err;
    CHECK_INT(mu_hash_merge(parts, count, bytes, &content, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, want);
}

static void test_merge_errors(const uint8_t *data) {
    struct mu_hash_part parts[2];
    mu_hash_part_start(&parts[0], 0);
    mu_hash_part_add(&parts[0], data, 48);
    mu_hash_part_start(&parts[1], 64);
    mu_hash_part_add(&parts[1], data, 16);
    does_not_merge(parts, 2, 80, "a part of bytes 64 to 80, after parts up to byte 48");
    does_not_merge(parts, 1, 47, "parts of 48 bytes, not 47");
    does_not_merge(parts, 0, 1, "parts of 0 bytes, not 1");
    mu_hash_part_start(&parts[1], 32);
    mu_hash_part_add(&parts[1], data, 48);
    does_not_merge(parts, 2, 80, "a part of bytes 32 to 80, after parts up to byte 48");
    parts[0].end = 0;
    parts[0].begin = 80;
    does_not_merge(parts, 1, 80, "a part of bytes 80 to 0, after parts up to byte 0");
}

/* Halves of a tensor, large enough for the threads and not, contiguous and not, at odd places. */
static void test_parts_of_tensors(void) {
    size_t capacity = 3 * (size_t)MU_HASH_SPLIT_BYTES;
    uint16_t *data = (uint16_t *)make_data(capacity);
    static const int64_t counts[] = {10, 3000, MU_HASH_SPLIT_BYTES + 4099};
    static const int64_t cuts[] = {0, 1, 2043, 2048, 9000};
    for (size_t i = 0; CHECK(data != NULL) && i < 3; i++) {
        for (size_t j = 0; j < 5 && cuts[j] <= counts[i]; j++) {
            int64_t shapes[] = {cuts[j], counts[i] - cuts[j]};
            struct mu_hash_part parts[2];
            struct mu_digest want, got;
            for (int half = 0; half < 2; half++) {
                struct mu_tensor view =
                    view_of(data + (half ? cuts[j] : 0), MU_DTYPE_INT16, 1, &shapes[half], NULL);
                mu_hash_part_of(&view, half ? 2 * (uint64_t)cuts[j] : 0, &parts[half]);
            }
            mu_tensor_hash_bytes(&mu_hash_kernel_scalar, (uint8_t *)data, 2 * (size_t)counts[i],
                                 &want);
            CHECK_INT(mu_hash_merge(parts, 2, 2 * (uint64_t)counts[i], &got, NULL), MU_OK);
            CHECK(got.lo == want.lo && got.hi == want.hi);
        }
    }
    free(data);
}

/* --- boxes -------------------------------------------------------------------------------- */

/* The whole [6, 40, 24] of float32, cut into boxes [0, a) and [a, size) in each dimension. */
enum { WHOLE_0 = 6, WHOLE_1 = 40, WHOLE_2 = 24, WHOLE = WHOLE_0 * WHOLE_1 * WHOLE_2 };

static const int64_t whole_shape[] = {WHOLE_0, WHOLE_1, WHOLE_2};

static int add_box(const uint32_t *whole, const int64_t *offset, const int64_t *shape,
                   struct mu_hash_sums *total, struct mu_error *err) {
    enum { BLOCKS = (WHOLE * 4 + MU_HASH_BLOCK_BYTES - 1) / MU_HASH_BLOCK_BYTES };
    static uint32_t box[WHOLE];
    struct mu_hash_sums sums[BLOCKS];
    size_t count = 0;
    for (int64_t i = 0; i < shape[0]; i++) {
        for (int64_t j = 0; j < shape[1]; j++) {
            for (int64_t k = 0; k < shape[2]; k++) {
                box[count++] =
                    whole[((offset[0] + i) * WHOLE_1 + offset[1] + j) * WHOLE_2 + offset[2] + k];
            }
        }
    }
    struct mu_tensor view = view_of(box, MU_DTYPE_FLOAT32, 3, shape, NULL);
    int code = mu_hash_box_sums(&view, whole_shape, offset, sums, err);
    for (int i = 0; code == MU_OK && i < BLOCKS; i++) {
        mu_hash_add_sums(&total[i], &sums[i]);
    }
    return code;
}

static void test_boxes(const uint8_t *data) {
    const uint32_t *whole = (const uint32_t *)(const void *)data;
    static const int64_t cuts[][3] = {{0, 0, 0},   {6, 40, 24}, {3, 0, 0},  {1, 7, 0},
                                      {2, 11, 12}, {0, 0, 4},   {5, 39, 20}};
    struct mu_digest want, got;
    mu_tensor_hash_bytes(&mu_hash_kernel_scalar, data, WHOLE * 4, &want);
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        struct mu_hash_sums total[WHOLE * 4 / MU_HASH_BLOCK_BYTES + 1] = {{0}};
        for (int corner = 0; corner < 8; corner++) {
            int64_t offset[3], shape[3];
            for (int dim = 0; dim < 3; dim++) {
                bool right = corner >> dim & 1;
                offset[dim] = right ? cuts[i][dim] : 0;
                shape[dim] = right ? whole_shape[dim] - cuts[i][dim] : cuts[i][dim];
            }
            CHECK_INT(add_box(whole, offset, shape, total, NULL), MU_OK);
        }
        mu_hash_close_sums(total, WHOLE * 4, &got);
        CHECK(got.lo == want.lo && got.hi == want.hi);
    }
}

static void test_box_errors(const uint8_t *data) {
    const uint32_t *whole = (const uint32_t *)(const void *)data;
    static const int64_t shape[] = {2, 3, 6}, origin[] = {0, 0, 0}, outside[] = {5, 0, 0};
    struct mu_hash_sums total[WHOLE * 4 / MU_HASH_BLOCK_BYTES + 1] = {{0}};
    struct mu_error err;
    CHECK_INT(add_box(whole, origin, shape, total, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, "rows of 24 bytes that do not begin and end at a multiple of 16");
    CHECK_INT(add_box(whole, outside, shape, total, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, "indices 5 to 7 of 6 in dimension 0");
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
    test_empty();
    test_chunks();
    test_many();
    test_merge(data);
    test_merge_errors(data);
    test_parts_of_tensors();
    test_boxes(data);
    test_box_errors(data);
    free(data);
    return check_report();
}
