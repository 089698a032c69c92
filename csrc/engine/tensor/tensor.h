/* A view of a tensor: the place of its elements, and their type.
 *
 * The view borrows everything it points to. Whoever made it keeps the memory, the shape and the
 * strides alive and unchanged until the work on it is done. Reading a view is thread-safe.
 */
#ifndef MU_TENSOR_H
#define MU_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "tensor/number.h"

enum { MU_TENSOR_DIMS_MAX = 64 };

enum mu_device { MU_DEVICE_CPU, MU_DEVICE_CUDA };

enum mu_number_kind { MU_KIND_BOOL, MU_KIND_UINT, MU_KIND_INT, MU_KIND_FLOAT, MU_KIND_COMPLEX };

/* A row of MU_DTYPES. */
struct mu_dtype_info {
    const char *name;
    uint8_t kind;  /* enum mu_number_kind */
    uint8_t size;  /* bytes an element */
    uint8_t parts; /* numbers an element */
    uint8_t part;  /* enum mu_dtype of one of them */
};

extern const struct mu_dtype_info mu_dtypes[MU_DTYPE_COUNT];

/* `dtype` is an enum mu_dtype, below MU_DTYPE_COUNT. */
static inline const struct mu_dtype_info *mu_dtype_info(int dtype) {
    return &mu_dtypes[dtype];
}

/* The type of that name, or -1. */
int mu_dtype_by_name(const char *name);

struct mu_tensor {
    const void *data;       /* borrowed; NULL only where there are no elements */
    const int64_t *shape;   /* borrowed; `ndim` numbers, none negative */
    const int64_t *strides; /* borrowed; in elements, may be 0 or negative; NULL: row-major */
    int64_t elements;
    int32_t ndim;
    uint8_t dtype;  /* enum mu_dtype */
    uint8_t device; /* enum mu_device */
    int16_t device_index;
};

/* Checks a view whose fields come from a caller, and counts its elements. All other fields must be
 * set. MU_ERR_ARGUMENT for too many dimensions, a negative size, a size in bytes beyond 2^63 - 1,
 * or elements without memory. */
MU_MUST_CHECK int mu_tensor_check(struct mu_tensor *tensor, struct mu_error *err);

/* Whether a storage of `bytes` whose element number `offset` is the view's first one is in memory
 * and has all elements of the view, which has been checked and has strides, none negative. A
 * storage without memory begins at address 0, so that the view's data is NULL only where `offset`
 * is 0. */
bool mu_tensor_is_within(const struct mu_tensor *tensor, int64_t offset, int64_t bytes);

static inline int64_t mu_tensor_bytes(const struct mu_tensor *tensor) {
    return tensor->elements * mu_dtype_info(tensor->dtype)->size;
}

/* True when the elements are in row-major order without gaps, from `data` on. */
bool mu_tensor_is_contiguous(const struct mu_tensor *tensor);

bool mu_tensor_same_shape(const struct mu_tensor *a, const struct mu_tensor *b);

/* A walk over the row-major bytes of a tensor on the CPU, whatever its strides.
 *
 * Dimensions that follow one another in memory are merged first, so the runs are as long as can be.
 * The struct holds no resources and may be copied.
 */
struct mu_tensor_walk {
    const char *at;                         /* the next element */
    int64_t left;                           /* elements */
    int64_t run_left;                       /* elements up to the end of the innermost dimension */
    size_t item;                            /* bytes an element */
    int ndim;                               /* merged dimensions, 1 at least */
    int64_t shape[MU_TENSOR_DIMS_MAX];      /* outermost first */
    int64_t step_bytes[MU_TENSOR_DIMS_MAX]; /* from one index to the next */
    int64_t index[MU_TENSOR_DIMS_MAX];      /* of `at`, but for the innermost dimension */
};

/* Starts a walk at the element number `first` in row-major order, over `count` elements. The caller
 * ensures that they are within the tensor. */
void mu_tensor_walk_start(struct mu_tensor_walk *walk, const struct mu_tensor *tensor,
                          int64_t first, int64_t count);

/* Returns the next `max_bytes` bytes, or fewer when fewer are left; sets `*bytes` to 0 at the end.
 * The result points into the tensor where the bytes are contiguous there, else to a copy in
 * `scratch`, which has room for max_bytes. `max_bytes` is a multiple of 16, so that no element is
 * cut. */
const uint8_t *mu_tensor_walk_next(struct mu_tensor_walk *walk, uint8_t *scratch, size_t max_bytes,
                                   size_t *bytes);

#endif
