/* What the kernel counted for a thread: how long it ran, and how long it was ready to and did not.
 */
#ifndef MU_THREAD_TIMES_H
#define MU_THREAD_TIMES_H

#include <stdbool.h>
#include <stdint.h>

#include "host/proc_text.h"

/* Since the thread began. */
struct mu_thread_times {
    uint64_t wall_ns;      /* the monotonic clock of the reading */
    uint64_t cpu_ns;       /* on a core */
    uint64_t kernel_ns;    /* of that in the kernel, as far as its ticks show */
    uint64_t delay_ns;     /* ready to run, on no core: others were, or a quota was used up */
    uint64_t major_faults; /* pages that had to come from a disk */
    bool has_delay;        /* false: the kernel does not say, and delay_ns is 0 */
};

/* Reads the times of the thread that opened it. Not thread-safe, and of no use to a forked child,
 * which opens its own. */
struct mu_thread_clock {
    struct mu_proc_file schedstat; /* none: the kernel does not say */
};

/* For the calling thread. Closed by mu_thread_clock_close. */
void mu_thread_clock_open(struct mu_thread_clock *clock);
void mu_thread_clock_close(struct mu_thread_clock *clock);

/* Must be called on the thread that opened it. Three system calls, about a microsecond. False where
 * the kernel refuses the time on a core; nothing is known then. */
bool mu_thread_clock_read(const struct mu_thread_clock *clock, struct mu_thread_times *out);

/* A file `schedstat` of any thread: how long it was on a core, which lags by a tick of the kernel,
 * and how long ready to run and on none, ns. False where the kernel does not say. */
bool mu_schedstat_read(const struct mu_proc_file *file, uint64_t *ran_ns, uint64_t *delay_ns);

#endif
