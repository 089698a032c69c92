/* CUDA as the binding sees it: the pool of the recorder, and torch's current stream. */
#ifndef MU_PY_CUDA_H
#define MU_PY_CUDA_H

#include "recorder_state.h"

/* Gives the recorder GPU times; warns, and goes on without, where there is no driver. 0, or -1
 * with an exception. */
int mu_py_cuda_use(struct mu_state *state);

/* Warns of what went wrong with GPU times, each kind once. */
void mu_py_report_cuda(struct mu_state *state);

#endif
