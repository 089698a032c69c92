/* What the host took from the iterations of a run: collections of garbage, waits for a core.
 *
 * As for readers, an iteration lasts from the begin of its first stage to that of the next one's.
 */
#ifndef MU_PY_HOST_COSTS_H
#define MU_PY_HOST_COSTS_H

#include "core/state.h"
#include "host/quota.h"
#include "host/thread_times.h"
#include "run/py_gpu_health.h"
#include "run/py_host_samples.h"
#include "stages/thread_buffer.h"

enum { MU_GC_GENERATIONS = 3 };

/* One iteration's row holds what was counted since the row before. */
struct mu_py_host_costs {
    PyObject *key;                /* owned: "generation"; NULL before the first collection */
    PyObject *freed_key;          /* owned: "collected"; likewise */
    unsigned long thread;         /* whose times are read; 0: of none yet */
    struct mu_thread_clock clock; /* open while `thread` is not 0, as the quota is */
    struct mu_quota quota;
    struct mu_py_host_samples samples;
    struct mu_py_gpu_health gpu;
    struct mu_thread_times last;  /* at the row before */
    int64_t ended;                /* the iteration whose row is written when a stage begins */
    bool has_ended;               /* there is one */
    uint64_t collecting_since_ns; /* 0: no collection runs on the thread */
    uint64_t collected_ns[MU_GC_GENERATIONS];
    int gc_layout;      /* of mu_py_gc_survivors */
    int64_t gc_objects; /* that the largest full collection looked at; -1: not known */
};

/* What gc.callbacks are given: a collection on the training thread begins or ends. */
int mu_py_host_costs_collect(struct mu_py_host_costs *self, PyObject *phase, PyObject *info);

/* The last optimizer step of an iteration was taken. */
void mu_py_host_costs_end(struct mu_py_host_costs *self, int64_t iteration);

/* A stage begins on the calling thread, `has_ended` is true: the row of the iteration that ended
 * before it is written, unless less than a millisecond has passed since the last one, or it is the
 * first reading. buffer: NULL writes nothing. */
void mu_py_host_costs_begin(struct mu_py_host_costs *self, unsigned long thread,
                            struct mu_thread_buffer *buffer);

/* Nothing was read yet: for a forked child, and at the end. */
void mu_py_host_costs_forget(struct mu_py_host_costs *self);
void mu_py_host_costs_clear(struct mu_py_host_costs *self);

#endif
