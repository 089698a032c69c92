/* The marks of a timer: which of its stages become NVTX ranges and which have GPU times. */
#ifndef MU_PY_MARKS_H
#define MU_PY_MARKS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "marks.h"
#include "recorder_state.h"
#include "text.h"

struct mu_gpu_choice;

/* How a stage looks in NVTX. */
struct mu_py_look {
    uint32_t argb;
    struct mu_py_text domain; /* bytes NULL: the default domain */
};

struct mu_py_marks {
    bool any;                      /* the one thing that the hot path asks */
    bool use_cuda;                 /* the recorder has a pool, and this timer wants times */
    struct mu_nvtx *nvtx;          /* borrowed from the module's state; NULL: nothing attached */
    PyObject *search;              /* owned: of the pattern cuda_stages; NULL: all stages */
    struct mu_gpu_choice *choices; /* owned: what the pattern said of names, NULL without one */
    const char *category;          /* borrowed: the timer's tag */
};

/* `cuda_stages` is a str, a compiled pattern, None or NULL. 0, or -1 with an exception. */
int mu_py_marks_init(struct mu_py_marks *marks, struct mu_state *state, const char *tag,
                     int use_cuda, PyObject *cuda_stages);
void mu_py_marks_clear(struct mu_py_marks *marks);

/* Checks color and domain_name, either of which may be NULL. The domain is borrowed. */
int mu_py_look_of(PyObject *color, PyObject *domain, struct mu_py_look *look);

/* mu_lane_start with what the marks say of the name; `look` NULL: blue, in the default domain. */
int mu_py_marks_start(struct mu_py_marks *marks, struct mu_lane *lane,
                      const struct mu_py_name *name, const struct mu_py_look *look);

/* Makes the range known to the tool ahead of its first use. */
void mu_py_marks_register(struct mu_py_marks *marks, const struct mu_py_name *name,
                          const struct mu_py_look *look);

#endif
