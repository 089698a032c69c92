#include "host/pressure.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 512, NS_IN_US = 1000 };

/* Files of the own cgroup, and of the host's folder. */
static const char *const names[MU_PRESSURES] = {
    [MU_PRESSURE_CPU] = "cpu.pressure",   [MU_PRESSURE_IO] = "io.pressure",
    [MU_PRESSURE_HOST_CPU] = "cpu",       [MU_PRESSURE_HOST_IO] = "io",
    [MU_PRESSURE_HOST_MEMORY] = "memory",
};

/* Only the root of all cgroups has no type. */
struct mu_proc_file mu_pressure_file(const struct mu_cgroup *cgroup, const char *name) {
    struct mu_proc_file type = mu_cgroup_open(cgroup, "cgroup.type");
    if (type.fd < 0) {
        return type;
    }
    mu_proc_close(&type);
    return mu_cgroup_open(cgroup, name);
}

static struct mu_proc_file host_file(const char *folder, const char *name) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof(path), "%s/%s", folder, name);
    return length >= (int)sizeof(path) ? MU_NO_PROC_FILE : mu_proc_open(path);
}

void mu_pressure_open(struct mu_pressure *pressure, const char *proc, const char *host) {
    struct mu_cgroup *cgroups = calloc(MU_CGROUP_VERSIONS, sizeof(*cgroups));
    if (cgroups != NULL) {
        mu_cgroup_find(proc, "cpu", cgroups);
    }
    for (int i = 0; i < MU_PRESSURES; i++) {
        pressure->files[i] = MU_NO_PROC_FILE;
        if (i >= MU_PRESSURE_HOST_CPU) {
            pressure->files[i] = host_file(host, names[i]);
        } else if (cgroups != NULL) {
            pressure->files[i] = mu_pressure_file(&cgroups[1], names[i]);
        }
    }
    free(cgroups);
}

void mu_pressure_close(struct mu_pressure *pressure) {
    for (int i = 0; i < MU_PRESSURES; i++) {
        mu_proc_close(&pressure->files[i]);
    }
}

void mu_pressure_read(const struct mu_pressure *pressure, struct mu_pressure_reading *out) {
    for (int i = 0; i < MU_PRESSURES; i++) {
        out->ns[i] = 0;
        out->known[i] = mu_pressure_file_ns(&pressure->files[i], &out->ns[i]);
    }
}

/* "some avg10=0.00 avg60=0.00 avg300=0.00 total=12", in microseconds. */
bool mu_pressure_file_ns(const struct mu_proc_file *file, uint64_t *out) {
    char text[TEXT_BYTES];
    if (!mu_proc_text(file, text, sizeof(text)) || strncmp(text, "some ", strlen("some ")) != 0) {
        return false;
    }
    const char *total = strstr(text, "total=");
    if (total == NULL) {
        return false;
    }
    *out = strtoull(total + strlen("total="), NULL, 10) * NS_IN_US;
    return true;
}
