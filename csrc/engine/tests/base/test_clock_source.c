/* Which clock is taken where there is no /sys: it is asked how the libc reads CLOCK_MONOTONIC. */
#include "base/clock.h"

#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

enum { TRIES = 100 };

static int (*libc_gettime)(clockid_t, struct timespec *);
static bool by_system_call;

/* Instead of the libc's, for all of this program. By a system call it is what the libc does where
 * the kernel keeps time with a clock that user space cannot read. */
int clock_gettime(clockid_t clock, struct timespec *now) {
    if (by_system_call || libc_gettime == NULL) {
        return (int)syscall(SYS_clock_gettime, clock, now);
    }
    return libc_gettime(clock, now);
}

static int found_in_tries(void) {
    int found = 0;
    for (int i = 0; i < TRIES; i++) {
        found += mu_clock_counter_by_timing();
    }
    return found;
}

/* An interruption can hide the counter, so one of many tries is enough. */
static void test_the_clock_that_sys_names_is_found_without_it(void) {
    by_system_call = false;
    if (mu_clock_counter_is_kernel_clock()) {
        CHECK(found_in_tries() > 0);
    }
}

static void test_a_clock_behind_system_calls_is_not_the_counter(void) {
    by_system_call = true;
    CHECK_INT(found_in_tries(), 0);
    by_system_call = false;
}

/* There the kernel ends a process that reads the TSC. */
static void test_a_counter_that_is_forbidden_is_left_alone(void) {
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
        _exit(mu_clock_counter_by_timing());
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child);
#if defined(__x86_64__)
    CHECK_INT(status, 0);
#endif
}

int main(void) {
    /* POSIX lets dlsym return a function as an object pointer. */
    *(void **)&libc_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    CHECK(libc_gettime != NULL);
    test_the_clock_that_sys_names_is_found_without_it();
    test_a_clock_behind_system_calls_is_not_the_counter();
    test_a_counter_that_is_forbidden_is_left_alone();
    return check_report();
}
