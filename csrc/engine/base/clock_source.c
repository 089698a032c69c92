#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const clock_source_path =
    "/sys/devices/system/clocksource/clocksource0/current_clocksource";

#if defined(__x86_64__)
static const char *const counter_name = "tsc\n";
#else
static const char *const counter_name = "arch_sys_counter\n";
#endif

/* ROUNDS is many, as one that nothing has interrupted decides. */
enum { ROUNDS = 12, READS = 8 };

#if defined(__x86_64__)

/* Leaf 0x80000007 of CPUID, EDX: the TSC keeps its rate in all states of the processor. Source:
 * Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, "Invariant TSC". */
enum { INVARIANT_TSC = 1 << 8 };

static bool counter_is_steady(void) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) != 0 && (edx & INVARIANT_TSC) != 0;
}

/* A process may have the kernel end it at a read of the TSC. */
static bool counter_is_allowed(void) {
    int mode = PR_TSC_ENABLE;
    return prctl(PR_GET_TSC, &mode, 0, 0, 0) != 0 || mode == PR_TSC_ENABLE;
}

#elif defined(__aarch64__)

static bool counter_is_steady(void) {
    return true;
}

static bool counter_is_allowed(void) {
    return true;
}

#else

static bool counter_is_steady(void) {
    return false;
}

static bool counter_is_allowed(void) {
    return false;
}

#endif

static void read_by_libc(struct timespec *now) {
    clock_gettime(CLOCK_MONOTONIC, now);
}

static void read_by_system_call(struct timespec *now) {
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, now);
}

static int64_t cost_ns(void (*read)(struct timespec *)) {
    struct timespec now;
    int64_t began = mu_clock_ns(CLOCK_MONOTONIC);
    for (int i = 0; i < READS; i++) {
        read(&now);
    }
    return mu_clock_ns(CLOCK_MONOTONIC) - began;
}

/* Where the libc makes the system call itself, both cost the same. */
static bool clock_is_read_without_system_call(void) {
    int64_t by_libc = INT64_MAX;
    int64_t by_system_call = INT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t first = cost_ns(read_by_libc);
        int64_t second = cost_ns(read_by_system_call);
        by_libc = first < by_libc ? first : by_libc;
        by_system_call = second < by_system_call ? second : by_system_call;
    }
    return by_libc <= by_system_call / 2;
}

bool mu_clock_counter_by_timing(void) {
    return counter_is_steady() && counter_is_allowed() && clock_is_read_without_system_call();
}

bool mu_clock_counter_is_kernel_clock(void) {
    char name[64] = "";
    FILE *file = fopen(clock_source_path, "re");
    if (file != NULL) {
        bool read = fgets(name, sizeof(name), file) != NULL;
        fclose(file);
        if (read) {
            return strcmp(name, counter_name) == 0;
        }
    }
    return mu_clock_counter_by_timing();
}
