/* A thread of the engine takes no signals but those of its own faults, and ends its wait when it is
 * to stop. */
#include "base/thread.h"

#include <signal.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "tests/check.h"

enum { STACK_BYTES = 256 * 1024 };

static const int64_t soon_ns = 1000000, late_ns = 60 * INT64_C(1000000000);

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
    sigset_t blocked;
    _Atomic bool waits;
    bool went_on;
};

static void init(struct waiter *waiter) {
    *waiter = (struct waiter){.went_on = true};
    pthread_mutex_init(&waiter->lock, NULL);
    mu_cond_init(&waiter->wake);
}

static void reset(struct waiter *waiter) {
    pthread_cond_destroy(&waiter->wake);
    pthread_mutex_destroy(&waiter->lock);
}

static void *wait_for_stop(void *argument) {
    struct waiter *waiter = argument;
    pthread_sigmask(SIG_BLOCK, NULL, &waiter->blocked);
    int64_t then_ns = mu_clock_monotonic_ns() + late_ns;
    atomic_store(&waiter->waits, true);
    waiter->went_on = mu_wait_until(&waiter->lock, &waiter->wake, &waiter->stop, then_ns);
    return NULL;
}

static void stop(struct waiter *waiter) {
    pthread_mutex_lock(&waiter->lock);
    waiter->stop = true;
    pthread_cond_signal(&waiter->wake);
    pthread_mutex_unlock(&waiter->lock);
}

static void test_a_thread_ends_when_it_is_to_stop(void) {
    struct waiter waiter;
    pthread_t thread;
    sigset_t before, after;
    init(&waiter);
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    int64_t began_ns = mu_clock_monotonic_ns();
    if (!CHECK(mu_thread_start(&thread, STACK_BYTES, wait_for_stop, &waiter))) {
        return;
    }
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    while (!atomic_load(&waiter.waits)) {
        sched_yield();
    }
    stop(&waiter);
    CHECK_INT(pthread_join(thread, NULL), 0);
    CHECK(!waiter.went_on);
    CHECK(mu_clock_monotonic_ns() - began_ns < late_ns);
    CHECK_INT(sigismember(&waiter.blocked, SIGTERM), 1);
    CHECK_INT(sigismember(&waiter.blocked, SIGUSR1), 1);
    CHECK_INT(sigismember(&waiter.blocked, SIGBUS), 0);
    CHECK_INT(sigismember(&waiter.blocked, SIGSEGV), 0);
    CHECK_INT(sigismember(&after, SIGTERM), sigismember(&before, SIGTERM));
    reset(&waiter);
}

static void test_a_wait_ends_at_its_time(void) {
    struct waiter waiter;
    init(&waiter);
    int64_t then_ns = mu_clock_monotonic_ns() + soon_ns;
    CHECK(mu_wait_until(&waiter.lock, &waiter.wake, &waiter.stop, then_ns));
    CHECK(mu_clock_monotonic_ns() >= then_ns);
    stop(&waiter);
    CHECK(!mu_wait_until(&waiter.lock, &waiter.wake, &waiter.stop, then_ns));
    reset(&waiter);
}

static void *say_so(void *argument) {
    atomic_store((_Atomic bool *)argument, true);
    return NULL;
}

static void test_a_detached_thread_runs(void) {
    static _Atomic bool ran; /* it may still run when this function returns */
    CHECK(mu_thread_start(NULL, STACK_BYTES, say_so, &ran));
    int64_t until_ns = mu_clock_monotonic_ns() + late_ns;
    while (!atomic_load(&ran) && mu_clock_monotonic_ns() < until_ns) {
        sched_yield();
    }
    CHECK(atomic_load(&ran));
}

int main(void) {
    test_a_thread_ends_when_it_is_to_stop();
    test_a_wait_ends_at_its_time();
    test_a_detached_thread_runs();
    return check_report();
}
