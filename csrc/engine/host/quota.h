/* How long the quotas of the process's cgroups, of version 1 or 2, have kept its threads waiting.
 */
#ifndef MU_QUOTA_H
#define MU_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "host/proc_text.h"

enum { MU_QUOTA_LEVELS = 8 };

/* The files cpu.stat of the process's cgroup and of those around it, as far as they can be seen.
 * Not thread-safe. */
struct mu_quota {
    struct mu_proc_file files[MU_QUOTA_LEVELS];
    uint64_t waited_ns[MU_QUOTA_LEVELS]; /* at the last reading */
    int count;                           /* 0: none is known */
};

/* proc: "/proc/self", or a folder with its files `cgroup` and `mountinfo`. Closed by
 * mu_quota_close. */
void mu_quota_open(struct mu_quota *quota, const char *proc);
void mu_quota_close(struct mu_quota *quota);

/* What a quota took since the last call, or since it was opened: of the cgroup that took most, as
 * the same time counts in several. The kernel adds up the waiting of all processors in version 1.
 * False where no cgroup says so. */
bool mu_quota_waited(struct mu_quota *quota, uint64_t *out);

#endif
