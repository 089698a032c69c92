#include "tensor/tensor.h"

#include <string.h>

#define INFO(NAME, text, family, bytes, numbers, NUMBER, ...)                                      \
    [MU_DTYPE_##NAME] = {.name = (text),                                                           \
                         .kind = MU_KIND_##family,                                                 \
                         .size = (bytes),                                                          \
                         .parts = (numbers),                                                       \
                         .part = MU_DTYPE_##NUMBER},

const struct mu_dtype_info mu_dtypes[MU_DTYPE_COUNT] = {MU_DTYPES(INFO)};

int mu_dtype_by_name(const char *name) {
    for (int dtype = 0; dtype < MU_DTYPE_COUNT; dtype++) {
        if (strcmp(mu_dtypes[dtype].name, name) == 0) {
            return dtype;
        }
    }
    return -1;
}

int mu_tensor_check(struct mu_tensor *tensor, struct mu_error *err) {
    if (tensor->ndim < 0 || tensor->ndim > MU_TENSOR_DIMS_MAX) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "a tensor of %d dimensions; %d are allowed",
                            (int)tensor->ndim, MU_TENSOR_DIMS_MAX);
    }
    int64_t bytes = mu_dtype_info(tensor->dtype)->size;
    int64_t elements = 1; /* no more than the bytes, so that they cannot overflow first */
    for (int dim = 0; dim < tensor->ndim; dim++) {
        int64_t size = tensor->shape[dim];
        if (size < 0) {
            return mu_error_set(err, MU_ERR_ARGUMENT, "size %lld in dimension %d", (long long)size,
                                dim);
        }
        if (elements > 0 && size > 0 && __builtin_mul_overflow(bytes, size, &bytes)) {
            return mu_error_set(err, MU_ERR_ARGUMENT, "a tensor of more than 2^63 bytes");
        }
        elements *= size;
    }
    tensor->elements = elements;
    if (tensor->elements > 0 && tensor->data == NULL) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "a tensor with elements, but no memory");
    }
    return MU_OK;
}

bool mu_tensor_is_within(const struct mu_tensor *tensor, int64_t offset, int64_t bytes) {
    if (tensor->elements == 0) {
        return true;
    }
    int64_t item = mu_dtype_info(tensor->dtype)->size;
    int64_t last = offset, before, end;
    for (int dim = 0; dim < tensor->ndim; dim++) {
        int64_t steps = tensor->shape[dim] - 1, span;
        if (__builtin_mul_overflow(steps, tensor->strides[dim], &span) ||
            __builtin_add_overflow(last, span, &last)) {
            return false;
        }
    }
    return offset >= 0 && !__builtin_mul_overflow(offset, item, &before) &&
           (uintptr_t)tensor->data != (uintptr_t)before && last < INT64_MAX &&
           !__builtin_mul_overflow(last + 1, item, &end) && end <= bytes;
}

bool mu_tensor_is_contiguous(const struct mu_tensor *tensor) {
    if (tensor->strides == NULL || tensor->elements == 0) {
        return true;
    }
    int64_t expected = 1;
    for (int dim = tensor->ndim - 1; dim >= 0; dim--) {
        if (tensor->shape[dim] != 1 && tensor->strides[dim] != expected) {
            return false;
        }
        expected *= tensor->shape[dim];
    }
    return true;
}

bool mu_tensor_same_shape(const struct mu_tensor *a, const struct mu_tensor *b) {
    bool same = a->ndim == b->ndim;
    for (int dim = 0; same && dim < a->ndim; dim++) {
        same = a->shape[dim] == b->shape[dim];
    }
    return same;
}

/* --- the walk ----------------------------------------------------------------------------- */

/* The dimensions without those of size 1, neighbours merged where one continues the other. */
static void merge_dims(struct mu_tensor_walk *walk, const struct mu_tensor *tensor) {
    if (tensor->strides == NULL) {
        walk->shape[walk->ndim] = tensor->elements;
        walk->step_bytes[walk->ndim++] = (int64_t)walk->item;
        return;
    }
    for (int dim = 0; dim < tensor->ndim; dim++) {
        int64_t size = tensor->shape[dim];
        int last = walk->ndim - 1;
        if (size == 1) {
            continue; /* its stride may be any number */
        }
        int64_t step = tensor->strides[dim] * (int64_t)walk->item;
        if (last >= 0 && walk->step_bytes[last] == step * size) {
            walk->shape[last] *= size;
            walk->step_bytes[last] = step;
        } else {
            walk->shape[walk->ndim] = size;
            walk->step_bytes[walk->ndim++] = step;
        }
    }
    if (walk->ndim == 0) {
        walk->shape[0] = 1;
        walk->step_bytes[0] = (int64_t)walk->item;
        walk->ndim = 1;
    }
}

static void seek(struct mu_tensor_walk *walk, int64_t first) {
    int inner = walk->ndim - 1;
    for (int dim = inner; dim >= 0; dim--) {
        int64_t index = first % walk->shape[dim];
        first /= walk->shape[dim];
        walk->at += index * walk->step_bytes[dim];
        walk->index[dim] = index;
    }
    walk->run_left = walk->shape[inner] - walk->index[inner];
}

void mu_tensor_walk_start(struct mu_tensor_walk *walk, const struct mu_tensor *tensor,
                          int64_t first, int64_t count) {
    walk->at = tensor->data;
    walk->left = count;
    walk->item = mu_dtype_info(tensor->dtype)->size;
    walk->ndim = 0;
    if (count == 0) {
        walk->run_left = 0;
        return;
    }
    merge_dims(walk, tensor);
    seek(walk, first);
}

/* From the end of one innermost run to the beginning of the next. */
static void next_run(struct mu_tensor_walk *walk) {
    int inner = walk->ndim - 1;
    walk->at -= walk->shape[inner] * walk->step_bytes[inner];
    walk->run_left = walk->shape[inner];
    for (int dim = inner - 1; dim >= 0; dim--) {
        walk->at += walk->step_bytes[dim];
        if (++walk->index[dim] < walk->shape[dim]) {
            return;
        }
        walk->at -= walk->shape[dim] * walk->step_bytes[dim];
        walk->index[dim] = 0;
    }
}

static void advance(struct mu_tensor_walk *walk, int64_t elements) {
    walk->at += elements * walk->step_bytes[walk->ndim - 1];
    walk->left -= elements;
    walk->run_left -= elements;
    if (walk->run_left == 0 && walk->left > 0) {
        next_run(walk);
    }
}

#define GATHER(type)                                                                               \
    for (int64_t i = 0; i < count; i++) {                                                          \
        memcpy(to + i * (int64_t)sizeof(type), from + i * step, sizeof(type));                     \
    }

/* Constant sizes, so that the compiler makes a load and a store of each copy. */
static void gather(uint8_t *to, const char *from, int64_t step, int64_t count, size_t item) {
    switch (item) {
    case 1:
        GATHER(uint8_t)
        break;
    case 2:
        GATHER(uint16_t)
        break;
    case 4:
        GATHER(uint32_t)
        break;
    case 8:
        GATHER(uint64_t)
        break;
    default:
        GATHER(uint64_t[2])
        break;
    }
}

static bool run_is_dense(const struct mu_tensor_walk *walk) {
    return walk->step_bytes[walk->ndim - 1] == (int64_t)walk->item;
}

const uint8_t *mu_tensor_walk_next(struct mu_tensor_walk *walk, uint8_t *scratch, size_t max_bytes,
                                   size_t *bytes) {
    int64_t wanted = (int64_t)(max_bytes / walk->item);
    wanted = wanted < walk->left ? wanted : walk->left;
    *bytes = (size_t)wanted * walk->item;
    if (wanted == 0) {
        return scratch;
    }
    if (run_is_dense(walk) && walk->run_left >= wanted) {
        const uint8_t *direct = (const uint8_t *)walk->at;
        advance(walk, wanted);
        return direct;
    }
    uint8_t *to = scratch;
    while (wanted > 0) {
        int64_t count = wanted < walk->run_left ? wanted : walk->run_left;
        if (run_is_dense(walk)) {
            memcpy(to, walk->at, (size_t)count * walk->item);
        } else {
            gather(to, walk->at, walk->step_bytes[walk->ndim - 1], count, walk->item);
        }
        to += (size_t)count * walk->item;
        wanted -= count;
        advance(walk, count);
    }
    return scratch;
}
