#include "host/quota.h"

#include <stdlib.h>
#include <string.h>

#include "host/cgroup.h"

enum { TEXT_BYTES = 2048, NS_IN_US = 1000 };

static bool read_waited(const struct mu_proc_file *file, uint64_t *out) {
    char text[TEXT_BYTES];
    if (!mu_proc_text(file, text, sizeof(text))) {
        return false;
    }
    const char *in_us = strstr(text, "throttled_usec ");
    const char *in_ns = strstr(text, "throttled_time ");
    if (in_us != NULL) {
        *out = strtoull(in_us + strlen("throttled_usec "), NULL, 10) * NS_IN_US;
    } else if (in_ns != NULL) {
        *out = strtoull(in_ns + strlen("throttled_time "), NULL, 10);
    }
    return in_us != NULL || in_ns != NULL;
}

static void add_file(struct mu_quota *quota, struct mu_proc_file file) {
    uint64_t waited;
    if (quota->count == MU_QUOTA_LEVELS || !read_waited(&file, &waited)) {
        mu_proc_close(&file);
        return;
    }
    quota->files[quota->count] = file;
    quota->waited_ns[quota->count++] = waited;
}

void mu_quota_open(struct mu_quota *quota, const char *proc) {
    struct mu_cgroup *cgroups = calloc(MU_CGROUP_VERSIONS, sizeof(*cgroups));
    quota->count = 0;
    if (cgroups == NULL) {
        return; /* as if no cgroup said so */
    }
    mu_cgroup_find(proc, "cpu", cgroups);
    for (int i = 0; i < MU_CGROUP_VERSIONS; i++) {
        do {
            add_file(quota, mu_cgroup_open(&cgroups[i], "cpu.stat"));
        } while (mu_cgroup_leave(&cgroups[i]));
    }
    free(cgroups);
}

void mu_quota_close(struct mu_quota *quota) {
    while (quota->count > 0) {
        mu_proc_close(&quota->files[--quota->count]);
    }
}

bool mu_quota_waited(struct mu_quota *quota, uint64_t *out) {
    bool known = false;
    *out = 0;
    for (int i = 0; i < quota->count; i++) {
        uint64_t waited;
        if (!read_waited(&quota->files[i], &waited)) {
            continue;
        }
        uint64_t more = waited > quota->waited_ns[i] ? waited - quota->waited_ns[i] : 0;
        quota->waited_ns[i] = waited;
        known = true;
        *out = more > *out ? more : *out;
    }
    return known;
}
