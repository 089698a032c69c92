#include "host/memory_cgroup.h"

#include <stdlib.h>
#include <string.h>

#include "host/cgroup.h"
#include "host/pressure.h"

enum { TEXT_BYTES = 8192 };

/* Adds the number after `key` at the beginning of each line that has it. */
static bool add_numbers(const char *text, const char *key, uint64_t *out) {
    bool found = false;
    size_t length = strlen(key);
    for (const char *at = text; at != NULL && *at != '\0';) {
        if (strncmp(at, key, length) == 0) {
            const char *space = strchr(at, ' ');
            *out += space == NULL ? 0 : strtoull(space, NULL, 10);
            found = true;
        }
        at = strchr(at, '\n');
        at = at == NULL ? NULL : at + 1;
    }
    return found;
}

/* --- opening ------------------------------------------------------------------------------ */

/* Version 1 has a number in memory.failcnt, version 2 lines in memory.events. */
static bool read_limit(const struct mu_proc_file *file, uint64_t *out) {
    char text[TEXT_BYTES];
    if (!mu_proc_text(file, text, sizeof(text))) {
        return false;
    }
    char *end;
    uint64_t number = strtoull(text, &end, 10);
    if (end != text) {
        *out += number;
        return true;
    }
    bool high = add_numbers(text, "high ", out);
    return add_numbers(text, "max ", out) || high;
}

static void add_limit(struct mu_memory_cgroup *memory, struct mu_proc_file file) {
    uint64_t number = 0;
    if (memory->limit_count == MU_MEMORY_LEVELS || !read_limit(&file, &number)) {
        mu_proc_close(&file);
        return;
    }
    memory->limits[memory->limit_count++] = file;
}

static void open_levels(struct mu_memory_cgroup *memory, struct mu_cgroup *cgroup,
                        const char *name) {
    do {
        add_limit(memory, mu_cgroup_open(cgroup, name));
    } while (mu_cgroup_leave(cgroup));
}

void mu_memory_cgroup_open(struct mu_memory_cgroup *memory, const char *proc) {
    struct mu_cgroup *cgroups = calloc(MU_CGROUP_VERSIONS, sizeof(*cgroups));
    *memory = (struct mu_memory_cgroup){.pressure = MU_NO_PROC_FILE, .stat = MU_NO_PROC_FILE};
    if (cgroups == NULL) {
        return; /* as if no cgroup said so */
    }
    mu_cgroup_find(proc, "memory", cgroups);
    memory->pressure = mu_pressure_file(&cgroups[1], "memory.pressure");
    memory->stat = mu_cgroup_open(&cgroups[0], "memory.stat");
    if (memory->stat.fd < 0) {
        memory->stat = mu_cgroup_open(&cgroups[1], "memory.stat");
    }
    open_levels(memory, &cgroups[0], "memory.failcnt");
    open_levels(memory, &cgroups[1], "memory.events");
    free(cgroups);
}

void mu_memory_cgroup_close(struct mu_memory_cgroup *memory) {
    while (memory->limit_count > 0) {
        mu_proc_close(&memory->limits[--memory->limit_count]);
    }
    mu_proc_close(&memory->pressure);
    mu_proc_close(&memory->stat);
}

/* --- reading ------------------------------------------------------------------------------ */

bool mu_memory_limits_met(const struct mu_memory_cgroup *memory, uint64_t *out) {
    uint64_t sum = 0;
    bool known = false;
    for (int i = 0; i < memory->limit_count; i++) {
        known = read_limit(&memory->limits[i], &sum) || known;
    }
    *out = known ? sum : *out;
    return known;
}

bool mu_memory_stalled_ns(const struct mu_memory_cgroup *memory, uint64_t *out) {
    return mu_pressure_file_ns(&memory->pressure, out);
}

bool mu_memory_refaults(const struct mu_memory_cgroup *memory, uint64_t *out) {
    char text[TEXT_BYTES];
    uint64_t sum = 0;
    if (!mu_proc_text(&memory->stat, text, sizeof(text)) ||
        !add_numbers(text, "workingset_refault", &sum)) {
        return false;
    }
    *out = sum;
    return true;
}
