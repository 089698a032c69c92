/* The user of a handle: the frame, the context and the stack of frames of the calling thread. A
 * task has its own context, and a greenlet its own stack. */
#ifndef MU_PY_CALLER_H
#define MU_PY_CALLER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "stages/thread_buffer.h"

static inline struct mu_stage_owner mu_py_owner(const void *handle) {
    const PyThreadState *thread = PyThreadState_Get();
    struct mu_stage_owner owner = {
        .handle = handle, .context = thread->context, .stack = thread->datastack_chunk};
#if PY_VERSION_HEX >= 0x030D0000
    owner.frame = thread->current_frame;
#else
    owner.frame = thread->cframe->current_frame;
#endif
    return owner;
}

/* Whether the frame has called the one that runs, itself or through others. A mu_frame_calls. */
bool mu_py_frame_calls(const void *frame);

#endif
