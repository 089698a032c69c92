/* How many samples and tokens the iterations of a run were given. */
#ifndef MU_PY_BATCHES_H
#define MU_PY_BATCHES_H

#include "core/state.h"
#include "stages/thread_buffer.h"

struct mu_py_batch_size {
    int64_t samples, tokens;
};

/* A batch that was loaded belongs to the iteration whose first optimizer step comes next. */
struct mu_py_batches {
    PyObject *tensor_type;              /* owned: torch.Tensor; NULL: none is looked at */
    PyObject *whole_types[2];           /* owned: the dtypes of tokens */
    PyObject *shape, *dtype;            /* owned: the names of these attributes */
    struct mu_py_batch_size since_step; /* loaded since the last optimizer step, but for `newest` */
    struct mu_py_batch_size newest;     /* the last batch, of which the use is not known yet */
    struct mu_py_batch_size iteration;  /* of the iteration that runs */
};

/* Takes references. -1 with an exception where memory runs out. */
int mu_py_batches_know(struct mu_py_batches *self, PyObject *tensor_type, PyObject *first,
                       PyObject *second);

/* Adds a tensor, or a list or tuple that begins with one. Reads shapes only. False for a batch of
 * another form; no exception is set then. */
bool mu_py_batches_add(struct mu_py_batches *self, PyObject *batch);

/* A batch of that size was loaded. */
void mu_py_batches_put(struct mu_py_batches *self, struct mu_py_batch_size size);

/* An optimizer has stepped. begins: with what was loaded for it begins `iteration`, and the one
 * before is complete and written. buffer: of the events; NULL writes nothing. */
void mu_py_batches_step(struct mu_py_batches *self, struct mu_thread_buffer *buffer, bool begins,
                        int64_t iteration);

/* Writes the row of an iteration, if its batches showed anything. */
void mu_py_batches_write(const struct mu_py_batches *self, struct mu_thread_buffer *buffer,
                         int64_t iteration);

int mu_py_batches_traverse(struct mu_py_batches *self, visitproc visit, void *arg);
void mu_py_batches_clear(struct mu_py_batches *self);

#endif
