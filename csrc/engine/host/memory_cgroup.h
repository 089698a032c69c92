/* What the kernel counted for lack of memory in the process's own cgroup, of version 1 or 2.
 */
#ifndef MU_MEMORY_CGROUP_H
#define MU_MEMORY_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "host/proc_text.h"

enum { MU_MEMORY_LEVELS = 8 };

/* Files of the process's cgroup and of those around it, as far as they can be seen. Not
 * thread-safe. */
struct mu_memory_cgroup {
    /* memory.failcnt, memory.events: how often a limit was met */
    struct mu_proc_file limits[MU_MEMORY_LEVELS];
    int limit_count;
    struct mu_proc_file pressure; /* memory.pressure of the own cgroup, if it is not the root */
    struct mu_proc_file stat;     /* memory.stat of the own cgroup */
};

/* proc: "/proc/self", or a folder with its files `cgroup` and `mountinfo`. Closed by
 * mu_memory_cgroup_close. */
void mu_memory_cgroup_open(struct mu_memory_cgroup *memory, const char *proc);
void mu_memory_cgroup_close(struct mu_memory_cgroup *memory);

/* Each is false where the kernel does not say, and *out stays. All numbers only rise. */

/* How often the limit of a cgroup was met: the sum over all that are seen. */
bool mu_memory_limits_met(const struct mu_memory_cgroup *memory, uint64_t *out);

/* How long some of the cgroup's threads waited for memory. */
bool mu_memory_stalled_ns(const struct mu_memory_cgroup *memory, uint64_t *out);

/* Pages that were read again soon after they had been dropped for lack of memory. The kernel adds
 * up what its processors have counted, which takes longer the more it has. */
bool mu_memory_refaults(const struct mu_memory_cgroup *memory, uint64_t *out);

#endif
