/* Views of Python's tensors: torch's, numpy's, and whatever has a buffer or __dlpack__.
 *
 * All of it needs the GIL; the view itself may be read without it.
 */
#ifndef MU_PY_TENSOR_H
#define MU_PY_TENSOR_H

#include "core/state.h"
#include "tensor/tensor.h"

struct mu_py_tensor {
    struct mu_tensor view; /* borrows from the owner, the buffer or the layout */
    PyObject *owner;       /* owned: it keeps the memory alive */
    Py_buffer *buffer;     /* owned, or NULL: a buffer that is held */
    int64_t *layout; /* owned, or NULL: shape and strides that the exporter has not as int64 */
};

/* Work on fewer bytes keeps the GIL: releasing it and taking it back costs more than the work. */
enum { MU_PY_GIL_BYTES = 16384 };

/* A view of `object`, which messages call `name`.
 *
 * Takes torch tensors and Parameters, objects with the buffer protocol, and objects with
 * __dlpack__, on the CPU or a CUDA device. A torch tensor on another device is copied to the CPU.
 * Lazily conjugated or negated tensors are resolved to a copy; a DTensor stands for its local
 * shard. TypeError for all that has no plain memory: meta, fake, sparse, quantized and nested
 * tensors, and wrapper subclasses. Returns 0, or -1 with an exception. The caller releases the view
 * with mu_py_tensor_release. */
int mu_py_tensor_view(struct mu_state *state, PyObject *object, const char *name,
                      struct mu_py_tensor *out);

void mu_py_tensor_release(struct mu_py_tensor *tensor);

/* Views a copy on the CPU of a tensor on a GPU; waits for the GPU. */
int mu_py_tensor_copy_to_cpu(struct mu_state *state, const char *name,
                             const struct mu_py_tensor *tensor, struct mu_py_tensor *copy);

/* Replaces a view of a tensor on a GPU by a view of such a copy. */
int mu_py_tensor_to_cpu(struct mu_state *state, const char *name, struct mu_py_tensor *tensor);

/* Views of one tensor, or of the items of a list or tuple. */
struct mu_py_tensors {
    struct mu_py_tensor *items; /* `one`, or owned */
    Py_ssize_t count;
    int64_t total_bytes; /* of all of them */
    bool is_list;        /* false: one tensor was given, and one result is wanted */
    bool on_cuda;        /* at least one of them */
    struct mu_py_tensor one;
};

/* The struct must stay where it is until it is released. */
int mu_py_tensors_view(struct mu_state *state, PyObject *object, const char *name,
                       struct mu_py_tensors *out);
void mu_py_tensors_release(struct mu_py_tensors *tensors);

/* torch's current stream of a CUDA device. 0, or -1 with an exception. */
int mu_py_current_stream(struct mu_state *state, int device_index, void **stream);

#endif
