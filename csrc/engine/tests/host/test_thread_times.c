/* The times of a thread, beside what it and others did. */
#include "host/thread_times.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "base/clock.h"
#include "tests/check.h"

enum { WORK_NS = 30000000 };

static uint64_t own_cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void work(uint64_t ns) {
    uint64_t until = own_cpu_ns() + ns;
    while (own_cpu_ns() < until) {
    }
}

static void sleep_ns(long ns) {
    struct timespec left = {0, ns};
    nanosleep(&left, NULL);
}

static void *work_for_long(void *core) {
    CHECK(sched_setaffinity(0, sizeof(cpu_set_t), core) == 0);
    work(WORK_NS * UINT64_C(10));
    return NULL;
}

static void test_work_is_on_a_core_and_sleep_is_not(void) {
    struct mu_thread_clock clock;
    struct mu_thread_times before, after, last;
    mu_thread_clock_open(&clock);
    CHECK(mu_thread_clock_read(&clock, &before));
    work(WORK_NS);
    CHECK(mu_thread_clock_read(&clock, &after));
    CHECK(after.cpu_ns - before.cpu_ns >= WORK_NS);
    CHECK(after.wall_ns - before.wall_ns >= WORK_NS);
    sleep_ns(WORK_NS);
    CHECK(mu_thread_clock_read(&clock, &last));
    CHECK(last.wall_ns - after.wall_ns >= WORK_NS);
    CHECK(last.cpu_ns - after.cpu_ns < WORK_NS / 2);
    mu_thread_clock_close(&clock);
    CHECK(mu_thread_clock_read(&clock, &last) && !last.has_delay);
}

/* Two threads that work on one core: each has to wait for the other. */
static void test_waiting_for_a_core_is_delay(void) {
    cpu_set_t all, one;
    CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    struct mu_thread_clock clock;
    struct mu_thread_times before, after;
    mu_thread_clock_open(&clock);
    CHECK(mu_thread_clock_read(&clock, &before));
    if (before.has_delay) {
        pthread_t other;
        CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
        CHECK(pthread_create(&other, NULL, work_for_long, &one) == 0);
        work(WORK_NS * UINT64_C(4));
        CHECK(mu_thread_clock_read(&clock, &after));
        CHECK(pthread_join(other, NULL) == 0);
        CHECK(sched_setaffinity(0, sizeof(all), &all) == 0);
        uint64_t wall = after.wall_ns - before.wall_ns, cpu = after.cpu_ns - before.cpu_ns;
        uint64_t delay = after.delay_ns - before.delay_ns;
        CHECK(delay >= WORK_NS);
        CHECK(delay <= wall - cpu + WORK_NS / 10);
    }
    mu_thread_clock_close(&clock);
}

int main(void) {
    test_work_is_on_a_core_and_sleep_is_not();
    test_waiting_for_a_core_is_delay();
    return check_report();
}
