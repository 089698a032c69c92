/* How long threads were kept waiting for cores, storage and memory, as the kernel counts it
 * (pressure stall information): those of the process's own cgroup, and those of the whole host.
 */
#ifndef MU_PRESSURE_H
#define MU_PRESSURE_H

#include <stdbool.h>
#include <stdint.h>

#include "host/cgroup.h"

enum mu_pressure_kind {
    MU_PRESSURE_CPU, /* of the own cgroup, version 2; that of the root is the host's, and left out
                      */
    MU_PRESSURE_IO,
    MU_PRESSURE_HOST_CPU, /* of the host from here on */
    MU_PRESSURE_HOST_IO,
    MU_PRESSURE_HOST_MEMORY,
    MU_PRESSURES,
};

/* None where the kernel does not say. Not thread-safe. */
struct mu_pressure {
    struct mu_proc_file files[MU_PRESSURES];
};

struct mu_pressure_reading {
    uint64_t ns[MU_PRESSURES]; /* since the cgroup, or the host, began: some thread waited */
    bool known[MU_PRESSURES];  /* false: not measured */
};

/* proc: "/proc/self", or a folder with its files `cgroup` and `mountinfo`. host: "/proc/pressure",
 * or such a folder. Closed by mu_pressure_close. */
void mu_pressure_open(struct mu_pressure *pressure, const char *proc, const char *host);
void mu_pressure_close(struct mu_pressure *pressure);

void mu_pressure_read(const struct mu_pressure *pressure, struct mu_pressure_reading *out);

/* A pressure file of a cgroup of version 2; none for the root of all. */
struct mu_proc_file mu_pressure_file(const struct mu_cgroup *cgroup, const char *name);

/* How long some thread waited, by such a file. False where it does not say, and *out stays. */
bool mu_pressure_file_ns(const struct mu_proc_file *file, uint64_t *out);

#endif
