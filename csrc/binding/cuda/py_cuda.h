/* CUDA in the binding: the pool of the recorder, and torch's current stream. */
#ifndef MU_PY_CUDA_H
#define MU_PY_CUDA_H

#include "stages/recorder_state.h"

/* Torch's current stream of a device, or -1. A mu_cuda_current_stream; its owner is the module's
 * state. */
int mu_py_cuda_stream(void *owner, int32_t device, void **stream);

/* Gives the recorder GPU times. Without a driver it warns, and the recorder goes on without GPU
 * times. Returns 0, or -1 with an exception. */
int mu_py_cuda_use(struct mu_state *state);

/* Warns of what went wrong with GPU times, each kind once. */
void mu_py_report_cuda(struct mu_state *state);

#endif
