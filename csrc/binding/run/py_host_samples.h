/* What the training thread waited for, and who kept it waiting, as sampled: a part of the rows of
 * py_host_costs.
 */
#ifndef MU_PY_HOST_SAMPLES_H
#define MU_PY_HOST_SAMPLES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "host/sampler.h"
#include "stages/thread_buffer.h"

/* Used by the training thread alone, but for `processes`, which the GIL guards. */
struct mu_py_host_samples {
    bool on;                                 /* the user has not switched it off */
    struct mu_wait_lock gil;                 /* empty: not known */
    struct mu_sampler *sampler;              /* owned; NULL: nothing is sampled */
    struct mu_sampled last;                  /* at the row before */
    pid_t processes[MU_SAMPLER_WORKERS_MAX]; /* of the loader, in its order */
    int process_count;
    struct mu_sampled_worker workers[MU_SAMPLER_WORKERS_MAX]; /* by place, at the row before */
};

/* From now on the training thread is sampled once it begins. True where its waits for the GIL can
 * be distinguished. Needs the GIL. */
bool mu_py_host_samples_switch_on(struct mu_py_host_samples *self);

/* The loader has these workers; what is beyond MU_SAMPLER_WORKERS_MAX is not sampled. */
void mu_py_host_samples_set_workers(struct mu_py_host_samples *self, const pid_t *processes,
                                    int count);

/* Samples the calling thread from now on, if it is switched on. */
void mu_py_host_samples_begin(struct mu_py_host_samples *self);

/* Appends what was sampled since the last call, or since the begin: nothing that was not measured.
 * At most MU_PY_HOST_SAMPLES_BYTES. Returns the end. */
enum { MU_PY_HOST_SAMPLES_BYTES = 640 };
char *mu_py_host_samples_put(struct mu_py_host_samples *self, char *at);

/* Writes the row `loader` of the iteration: which worker did most while the thread waited since the
 * last call, and what. No row where none did anything. */
void mu_py_host_samples_write_worker(struct mu_py_host_samples *self,
                                     struct mu_thread_buffer *buffer, int64_t iteration);

/* Ends the sampling, and lets go of the parent's in a forked child. */
void mu_py_host_samples_end(struct mu_py_host_samples *self);

#endif
