/* Decides which stages of a timer become NVTX ranges, and which have GPU times. */
#ifndef MU_PY_GPU_EVENTS_H
#define MU_PY_GPU_EVENTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core/text.h"
#include "cuda/nvtx.h"
#include "stages/recorder_state.h"

struct mu_gpu_choice;

/* How NVTX shows a stage. */
struct mu_py_appearance {
    uint32_t argb;
    struct mu_py_text domain; /* bytes NULL: the default domain */
};

struct mu_py_gpu_events {
    bool any;                        /* all that the hot path reads */
    bool use_cuda;                   /* the recorder has a pool, and this timer wants times */
    struct mu_py_exchange *exchange; /* borrowed from the module's state */
    struct mu_nvtx *nvtx;            /* borrowed from the module's state; NULL: nothing attached */
    PyObject *search;                /* owned: of the pattern cuda_stages; NULL: all stages */
    struct mu_gpu_choice *choices;   /* owned: which names match; NULL without a pattern */
    const char *category;            /* borrowed: the timer's tag */
};

/* `cuda_stages` is a str, a compiled pattern, None or NULL. 0, or -1 with an exception. */
int mu_py_gpu_events_init(struct mu_py_gpu_events *events, struct mu_state *state, const char *tag,
                          int use_cuda, PyObject *cuda_stages);
void mu_py_gpu_events_clear(struct mu_py_gpu_events *events);

/* Checks color and domain_name. Either may be NULL. The domain is borrowed. */
int mu_py_appearance_of(PyObject *color, PyObject *domain, struct mu_py_appearance *appearance);

/* Calls mu_thread_buffer_start with the GPU events of the name. `appearance` NULL means blue, in
 * the default domain. */
int mu_py_gpu_events_start(struct mu_py_gpu_events *events, struct mu_thread_buffer *buffer,
                           const struct mu_py_name *name,
                           const struct mu_py_appearance *appearance);

/* Registers the range with the tool before its first use. */
void mu_py_gpu_events_register(struct mu_py_gpu_events *events, const struct mu_py_name *name,
                               const struct mu_py_appearance *appearance);

#endif
