/* Where the process's cgroups are in the file system, of version 1 and 2.
 */
#ifndef MU_CGROUP_H
#define MU_CGROUP_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "host/proc_text.h"

/* A cgroup of one hierarchy, and those around it as far as they can be seen. */
struct mu_cgroup {
    size_t mount;          /* bytes of `folder` that are the mount point */
    char folder[PATH_MAX]; /* "": there is none */
};

enum { MU_CGROUP_VERSIONS = 2 };

/* Finds the process's cgroup for a controller, such as "cpu": of version 1, then of version 2,
 * whose one hierarchy has all controllers.
 * proc: "/proc/self", or a folder with its files `cgroup` and `mountinfo`. */
void mu_cgroup_find(const char *proc, const char *controller,
                    struct mu_cgroup found[MU_CGROUP_VERSIONS]);

/* Goes to the cgroup around it. False, and no change, where that is not seen. */
bool mu_cgroup_leave(struct mu_cgroup *cgroup);

/* Opens a file of the cgroup for reading. */
struct mu_proc_file mu_cgroup_open(const struct mu_cgroup *cgroup, const char *name);

#endif
