/* A thread that samples what another thread of the process waits for, 50 times a second.
 *
 * It notices by its own gaps that the process was stopped, which is why it does nothing else and
 * is not the drain thread, whose writes may block. It takes no lock of anybody else's and asks no
 * file system but /proc and cgroups. These may keep it waiting, too, so a stop that begins within a
 * sample counts as the sample's own work: about one in a hundred.
 */
#ifndef MU_SAMPLER_H
#define MU_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "host/pressure.h"
#include "host/thread_wait.h"

enum { MU_SAMPLER_WORKERS_MAX = 32 };

struct mu_sampler;

struct mu_sampler_options {
    pid_t tid;                /* the thread that is watched, of this process */
    struct mu_wait_lock lock; /* of MU_WAIT_LOCK; empty: not known */
    int64_t period_ns;        /* 0: 20 ms */
};

/* What was counted since the sampler began. All of it only rises. */
struct mu_sampled {
    uint64_t waited_ns[MU_WAIT_KINDS]; /* each sample stands for the time since the one before */
    uint64_t stopped_ns;               /* of gaps that no other thread and no quota explains */
    uint64_t limits_met, stalled_ns, refaults; /* see memory_cgroup.h */
    /* Of the samples in which the thread ran or was ready to: how many there were, and the sum of
     * the threads of the host that were so, too, without the sampler's and with the watched one. */
    uint64_t runnable_samples, runnable_sum;
    uint64_t pressure_number; /* of readings of the pressure, ten times a second */
    struct mu_pressure_reading pressure;
    /* False: not measured, and the number means nothing. */
    bool has_waits, has_lock, has_stopped, has_limits, has_stalled, has_refaults;
};

/* A process that loads data for this one. */
struct mu_sampled_worker {
    /* While the watched thread waited and the worker was on a core, was ready to run and on none,
     * waited for storage. Where has_delay is false, the second is a part of the first. */
    uint64_t ran_ns, delay_ns, storage_ns;
    uint64_t read_bytes;  /* from storage, at the last reading, at most one a second */
    uint64_t io_readings; /* of read_bytes; 0: not measured */
    pid_t process;
    bool has_delay;
};

/* NULL where nothing can be sampled, or there is no memory or thread for it. Ended and freed by
 * mu_sampler_stop. */
struct mu_sampler *mu_sampler_start(const struct mu_sampler_options *options);

/* Waits for the thread, which takes as long as one sample. In a forked child, where there is no
 * thread, it only lets go. NULL is allowed. */
void mu_sampler_stop(struct mu_sampler *sampler);

/* Any thread may read at any time. */
void mu_sampler_read(const struct mu_sampler *sampler, struct mu_sampled *out);

/* From now on these workers are sampled while the watched thread waits; at most
 * MU_SAMPLER_WORKERS_MAX, and those that cannot be read are left out. What they counted begins
 * anew. Thread-safe. */
void mu_sampler_set_workers(struct mu_sampler *sampler, const pid_t *processes, int count);

/* Fills at most MU_SAMPLER_WORKERS_MAX and returns how many. index[i]: the place of the worker in
 * the list that was set. Thread-safe. */
int mu_sampler_workers(struct mu_sampler *sampler, struct mu_sampled_worker *out, int *index);

#endif
