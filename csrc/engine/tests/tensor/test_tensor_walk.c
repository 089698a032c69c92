/* Walks over tensors of any shape and strides, against an odometer that takes element by element.
 *
 * The memory of each random tensor is allocated to the byte, so that a sanitizer sees every read
 * beyond it. */
#include "tensor/tensor.h"

#include <stdlib.h>

#include "tests/check.h"

enum { RANDOM_TENSORS = 4000, RANDOM_DIMS_MAX = 6, PIECE_MAX = 512 };

static uint64_t random_state = 1;

/* xorshift64* */
static uint64_t next_random(void) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545F4914F6CDD1Du;
}

static int64_t below(int64_t limit) {
    return (int64_t)(next_random() % (uint64_t)limit);
}

/* A tensor with memory of its own. */
struct subject {
    struct mu_tensor tensor;
    int64_t shape[MU_TENSOR_DIMS_MAX];
    int64_t strides[MU_TENSOR_DIMS_MAX];
    uint8_t *memory;   /* owned */
    uint8_t *expected; /* owned: the bytes in row-major order */
};

static size_t item_of(const struct subject *subject) {
    return mu_dtype_info(subject->tensor.dtype)->size;
}

/* Memory for exactly the elements that strides and shape reach. */
static void allocate(struct subject *subject) {
    int64_t lowest = 0, highest = 0;
    for (int dim = 0; dim < subject->tensor.ndim; dim++) {
        int64_t reach = (subject->shape[dim] - 1) * subject->strides[dim];
        *(reach < 0 ? &lowest : &highest) += reach;
    }
    size_t item = item_of(subject);
    size_t bytes = (size_t)(highest - lowest + 1) * item;
    subject->memory = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) {
        subject->memory[i] = (uint8_t)next_random();
    }
    subject->tensor.data = subject->memory - lowest * (int64_t)item;
}

static void write_expected(struct subject *subject) {
    const struct mu_tensor *tensor = &subject->tensor;
    size_t item = item_of(subject);
    subject->expected = malloc((size_t)tensor->elements * item + 1);
    for (int64_t i = 0; i < tensor->elements; i++) {
        int64_t rest = i, offset = 0;
        for (int dim = tensor->ndim - 1; dim >= 0; dim--) {
            offset += rest % subject->shape[dim] * subject->strides[dim];
            rest /= subject->shape[dim];
        }
        memcpy(subject->expected + i * (int64_t)item,
               (const char *)tensor->data + offset * (int64_t)item, item);
    }
}

static void finish(struct subject *subject) {
    subject->tensor.shape = subject->shape;
    subject->tensor.strides = subject->strides;
    int64_t elements = 1;
    for (int dim = 0; dim < subject->tensor.ndim; dim++) {
        elements *= subject->shape[dim];
    }
    subject->memory = NULL;
    subject->tensor.data = NULL;
    if (elements > 0) {
        allocate(subject);
    }
    struct mu_error err;
    CHECK_INT(mu_tensor_check(&subject->tensor, &err), MU_OK);
    CHECK_INT(subject->tensor.elements, elements);
    write_expected(subject);
}

static void release(struct subject *subject) {
    free(subject->memory);
    free(subject->expected);
}

/* Strides of a dense tensor whose dimensions lie in a random order, some of them then spoilt. */
static void draw_strides(struct subject *subject) {
    int order[RANDOM_DIMS_MAX];
    int ndim = subject->tensor.ndim;
    for (int i = 0; i < ndim; i++) {
        int other = (int)below(i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    bool row_major = below(2) == 0;
    int64_t stride = 1 + below(10) / 8;
    for (int i = 0; i < ndim; i++) {
        int dim = row_major ? ndim - 1 - i : order[i];
        subject->strides[dim] = stride;
        stride *= subject->shape[dim] + below(12) / 10;
        switch (below(12)) {
        case 0:
            subject->strides[dim] = 0;
            break;
        case 1:
            subject->strides[dim] = -subject->strides[dim];
            break;
        case 2:
            subject->strides[dim] = below(7) - 3;
            break;
        default:
            break;
        }
    }
}

static void draw(struct subject *subject) {
    static const uint8_t dtypes[] = {MU_DTYPE_UINT8, MU_DTYPE_BFLOAT16, MU_DTYPE_FLOAT32,
                                     MU_DTYPE_INT64, MU_DTYPE_COMPLEX128};
    *subject = (struct subject){0};
    subject->tensor.dtype = dtypes[below(5)];
    subject->tensor.ndim = (int32_t)below(RANDOM_DIMS_MAX + 1);
    int64_t longest = subject->tensor.ndim < 3 ? 60 : 5;
    for (int dim = 0; dim < subject->tensor.ndim; dim++) {
        subject->shape[dim] = below(40) == 0 ? 0 : 1 + below(longest);
    }
    draw_strides(subject);
    finish(subject);
}

/* Walks over `count` elements from `first` on, in pieces of `max_bytes`. */
static void walk(const struct subject *subject, int64_t first, int64_t count, size_t max_bytes) {
    struct mu_tensor_walk at;
    size_t item = item_of(subject), done = 0, bytes = 0;
    uint8_t *scratch = malloc(max_bytes);
    mu_tensor_walk_start(&at, &subject->tensor, first, count);
    for (;;) {
        const uint8_t *piece = mu_tensor_walk_next(&at, scratch, max_bytes, &bytes);
        size_t left = (size_t)count * item - done;
        CHECK_INT(bytes, left < max_bytes ? left : max_bytes);
        if (bytes == 0 || bytes > left) {
            break;
        }
        CHECK_BYTES(piece, subject->expected + (size_t)first * item + done, bytes);
        done += bytes;
    }
    CHECK_INT(done, (size_t)count * item);
    free(scratch);
}

static void test_random(void) {
    for (int i = 0; i < RANDOM_TENSORS; i++) {
        struct subject subject;
        draw(&subject);
        int64_t elements = subject.tensor.elements;
        size_t max_bytes = 16 * (size_t)(1 + below(PIECE_MAX / 16));
        walk(&subject, 0, elements, max_bytes);
        if (elements > 0) {
            int64_t first = below(elements);
            walk(&subject, first, below(elements - first + 1), max_bytes);
        }
        walk(&subject, elements, 0, max_bytes);
        release(&subject);
    }
}

/* A tensor with the given shape and strides, without memory. */
static struct mu_tensor plain(int32_t ndim, const int64_t *shape, const int64_t *strides) {
    struct mu_tensor tensor = {
        .shape = shape, .strides = strides, .ndim = ndim, .dtype = MU_DTYPE_FLOAT32};
    static const float place = 0;
    tensor.data = &place;
    struct mu_error err;
    CHECK_INT(mu_tensor_check(&tensor, &err), MU_OK);
    return tensor;
}

static int merged_dims(int32_t ndim, const int64_t *shape, const int64_t *strides) {
    struct mu_tensor tensor = plain(ndim, shape, strides);
    struct mu_tensor_walk at;
    mu_tensor_walk_start(&at, &tensor, 0, tensor.elements);
    return at.ndim;
}

static void test_merging(void) {
    CHECK_INT(merged_dims(0, NULL, NULL), 1);
    CHECK_INT(merged_dims(3, (int64_t[]){2, 3, 4}, NULL), 1);
    CHECK_INT(merged_dims(3, (int64_t[]){2, 3, 4}, (int64_t[]){12, 4, 1}), 1);
    CHECK_INT(merged_dims(3, (int64_t[]){2, 1, 4}, (int64_t[]){4, 77, 1}), 1);
    CHECK_INT(merged_dims(3, (int64_t[]){2, 3, 4}, (int64_t[]){13, 4, 1}), 2);
    CHECK_INT(merged_dims(3, (int64_t[]){4, 3, 2}, (int64_t[]){1, 4, 12}), 3);
    CHECK_INT(merged_dims(3, (int64_t[]){5, 6, 7}, (int64_t[]){0, 0, 0}), 1);
    CHECK_INT(merged_dims(2, (int64_t[]){3, 4}, (int64_t[]){-4, -1}), 1);
    CHECK_INT(merged_dims(2, (int64_t[]){1, 1}, (int64_t[]){5, 9}), 1);
    /* Where there is one element, torch and others leave any number as the stride. */
    CHECK_INT(merged_dims(3, (int64_t[]){2, 1, 4}, (int64_t[]){4, INT64_MAX, 1}), 1);
    CHECK_INT(merged_dims(2, (int64_t[]){1, 3}, (int64_t[]){INT64_MIN, 1}), 1);
}

/* What lies together is not copied. */
static void test_dense_pieces_are_not_copied(void) {
    float values[32] = {0};
    uint8_t scratch[64];
    size_t bytes = 0;
    struct mu_tensor tensor = {.data = values,
                               .shape = (int64_t[]){2, 8},
                               .strides = (int64_t[]){16, 1},
                               .elements = 16,
                               .ndim = 2,
                               .dtype = MU_DTYPE_FLOAT32};
    struct mu_tensor_walk at;
    mu_tensor_walk_start(&at, &tensor, 0, 16);
    CHECK(mu_tensor_walk_next(&at, scratch, 32, &bytes) == (const uint8_t *)values);
    CHECK(mu_tensor_walk_next(&at, scratch, 32, &bytes) == (const uint8_t *)(values + 16));
    mu_tensor_walk_start(&at, &tensor, 0, 16);
    CHECK(mu_tensor_walk_next(&at, scratch, 64, &bytes) == scratch);
    CHECK_INT(bytes, 64);
}

static void test_most_dimensions(void) {
    struct subject subject = {.tensor = {.ndim = MU_TENSOR_DIMS_MAX, .dtype = MU_DTYPE_INT16}};
    for (int dim = 0; dim < MU_TENSOR_DIMS_MAX; dim++) {
        subject.shape[dim] = dim % 9 == 0 ? 2 : 1;
        subject.strides[dim] = dim % 9 == 0 ? 1 + dim : 0;
    }
    finish(&subject);
    walk(&subject, 0, subject.tensor.elements, 64);
    walk(&subject, 5, 100, 16);
    release(&subject);
}

static int check_shape(int32_t ndim, const int64_t *shape, const void *data, int64_t *elements) {
    struct mu_tensor tensor = {.data = data, .shape = shape, .ndim = ndim, .dtype = MU_DTYPE_INT32};
    struct mu_error err;
    int code = mu_tensor_check(&tensor, &err);
    *elements = tensor.elements;
    return code;
}

static void test_check(void) {
    int64_t elements = 0, many[MU_TENSOR_DIMS_MAX + 1] = {0};
    const int64_t huge = INT64_C(1) << 40;
    int32_t place = 0;
    CHECK_INT(check_shape(0, NULL, &place, &elements), MU_OK);
    CHECK_INT(elements, 1);
    CHECK_INT(check_shape(2, (int64_t[]){3, 0}, NULL, &elements), MU_OK);
    CHECK_INT(elements, 0);
    CHECK_INT(check_shape(3, (int64_t[]){0, huge, huge}, NULL, &elements), MU_OK);
    CHECK_INT(elements, 0);
    CHECK_INT(check_shape(2, (int64_t[]){huge, INT64_C(1) << 20}, &place, &elements), MU_OK);
    CHECK_INT(check_shape(2, (int64_t[]){huge, INT64_C(1) << 21}, &place, &elements),
              MU_ERR_ARGUMENT);
    CHECK_INT(check_shape(1, (int64_t[]){-1}, &place, &elements), MU_ERR_ARGUMENT);
    CHECK_INT(check_shape(2, (int64_t[]){0, -1}, &place, &elements), MU_ERR_ARGUMENT);
    CHECK_INT(check_shape(1, (int64_t[]){1}, NULL, &elements), MU_ERR_ARGUMENT);
    CHECK_INT(check_shape(-1, many, &place, &elements), MU_ERR_ARGUMENT);
    CHECK_INT(check_shape(MU_TENSOR_DIMS_MAX, many, NULL, &elements), MU_OK);
    CHECK_INT(check_shape(MU_TENSOR_DIMS_MAX + 1, many, NULL, &elements), MU_ERR_ARGUMENT);
}

static bool is_contiguous(int32_t ndim, const int64_t *shape, const int64_t *strides) {
    struct mu_tensor tensor = plain(ndim, shape, strides);
    return mu_tensor_is_contiguous(&tensor);
}

static void test_is_contiguous(void) {
    CHECK(is_contiguous(0, NULL, (int64_t[]){0}));
    CHECK(is_contiguous(2, (int64_t[]){2, 3}, NULL));
    CHECK(is_contiguous(2, (int64_t[]){2, 3}, (int64_t[]){3, 1}));
    CHECK(is_contiguous(3, (int64_t[]){2, 1, 3}, (int64_t[]){3, -9, 1}));
    CHECK(is_contiguous(2, (int64_t[]){0, 3}, (int64_t[]){1, 5}));
    CHECK(!is_contiguous(2, (int64_t[]){2, 3}, (int64_t[]){1, 2}));
    CHECK(!is_contiguous(1, (int64_t[]){3}, (int64_t[]){-1}));
    CHECK(!is_contiguous(1, (int64_t[]){3}, (int64_t[]){0}));
}

static void test_dtypes(void) {
    for (int dtype = 0; dtype < MU_DTYPE_COUNT; dtype++) {
        const struct mu_dtype_info *info = mu_dtype_info(dtype);
        CHECK_INT(mu_dtype_by_name(info->name), dtype);
        CHECK(info->size > 0 && 16 % info->size == 0);
        CHECK_INT(info->parts,
                  info->kind == MU_KIND_COMPLEX || dtype == MU_DTYPE_FLOAT4_E2M1FN_X2 ? 2 : 1);
        if (info->kind == MU_KIND_COMPLEX) {
            CHECK_INT(mu_dtype_info(info->part)->size * 2, info->size);
        }
    }
    CHECK_INT(mu_dtype_by_name("float128"), -1);
    CHECK_INT(mu_dtype_by_name(""), -1);
}

int main(void) {
    test_random();
    test_merging();
    test_dense_pieces_are_not_copied();
    test_most_dimensions();
    test_check();
    test_is_contiguous();
    test_dtypes();
    return check_report();
}
