#include "host/thread_times.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"

enum { TEXT_BYTES = 128 };

void mu_thread_clock_open(struct mu_thread_clock *clock) {
    clock->schedstat = mu_proc_open("/proc/thread-self/schedstat");
}

void mu_thread_clock_close(struct mu_thread_clock *clock) {
    mu_proc_close(&clock->schedstat);
}

/* The third number is how often it was put on a core. */
bool mu_schedstat_read(const struct mu_proc_file *file, uint64_t *ran_ns, uint64_t *delay_ns) {
    char text[TEXT_BYTES];
    char *second, *end;
    if (!mu_proc_text(file, text, sizeof(text))) {
        return false;
    }
    errno = 0;
    unsigned long long ran = strtoull(text, &second, 10);
    unsigned long long delay = strtoull(second, &end, 10);
    if (errno != 0 || second == text || end == second) {
        return false;
    }
    *ran_ns = ran;
    *delay_ns = delay;
    return true;
}

bool mu_thread_clock_read(const struct mu_thread_clock *clock, struct mu_thread_times *out) {
    struct timespec cpu;
    struct rusage usage;
    uint64_t lagging_ns;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu) < 0 || getrusage(RUSAGE_THREAD, &usage) < 0) {
        return false;
    }
    *out = (struct mu_thread_times){
        .wall_ns = (uint64_t)mu_clock_monotonic_ns(),
        .cpu_ns = (uint64_t)cpu.tv_sec * UINT64_C(1000000000) + (uint64_t)cpu.tv_nsec,
        .kernel_ns = (uint64_t)usage.ru_stime.tv_sec * UINT64_C(1000000000) +
                     (uint64_t)usage.ru_stime.tv_usec * UINT64_C(1000),
        .major_faults = (uint64_t)usage.ru_majflt,
    };
    out->has_delay = mu_schedstat_read(&clock->schedstat, &lagging_ns, &out->delay_ns);
    return true;
}
