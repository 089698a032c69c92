/* The sampler: what its thread sees of one that waits, and of a process that was stopped. */
#include "host/sampler.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/check.h"

static const int64_t period_ns = 2000000;

static struct mu_sampler *start(void) {
    const struct mu_sampler_options options = {
        .tid = (pid_t)syscall(SYS_gettid),
        .period_ns = period_ns,
    };
    return mu_sampler_start(&options);
}

static void rest(int64_t ns) {
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}

static void test_a_wait_is_counted(void) {
    int64_t began = mu_clock_monotonic_ns();
    struct mu_sampler *sampler = start();
    struct mu_sampled before, after;
    uint64_t waited;
    if (!CHECK(sampler != NULL)) {
        return;
    }
    mu_sampler_read(sampler, &before);
    do { /* a busy machine may not let the sampler in for long */
        rest(200000000);
        mu_sampler_read(sampler, &after);
        waited = after.waited_ns[MU_WAIT_OTHER] - before.waited_ns[MU_WAIT_OTHER];
    } while (waited < 100000000 && mu_clock_monotonic_ns() - began < 10000000000);
    CHECK(after.has_waits && after.has_stopped && !after.has_lock);
    CHECK(waited >= 100000000);
    CHECK(waited <= (uint64_t)(mu_clock_monotonic_ns() - began));
    CHECK_INT(after.waited_ns[MU_WAIT_STORAGE], 0);
    mu_sampler_stop(sampler);
}

enum { STOPS_MAX = 10 };
static const uint64_t stop_ns = 300000000;

/* The child samples itself, and says by its status whether it saw that it was stopped. */
static int stopped_child(int ready) {
    int64_t began = mu_clock_monotonic_ns();
    struct mu_sampler *sampler = start();
    struct mu_sampled seen = {0};
    if (sampler == NULL) {
        return 2;
    }
    while (!seen.has_stopped) { /* a stop before its thread has begun is not its to count */
        rest(1000000);
        mu_sampler_read(sampler, &seen);
    }
    if (write(ready, "x", 1) != 1) {
        return 3;
    }
    while (seen.stopped_ns < stop_ns / 2) {
        rest(10000000);
        mu_sampler_read(sampler, &seen);
    }
    mu_sampler_stop(sampler);
    return seen.stopped_ns <= (uint64_t)(mu_clock_monotonic_ns() - began) ? 0 : 1;
}

/* A stop that meets the sampler at work is not counted, so a second may be needed. */
static void test_a_stop_is_counted(void) {
    int ready[2], status = -1;
    char byte;
    pid_t ended = 0;
    CHECK_INT(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        _exit(stopped_child(ready[1]));
    }
    CHECK_INT(read(ready[0], &byte, 1), 1);
    for (int i = 0; i < STOPS_MAX && ended == 0; i++) {
        CHECK_INT(kill(child, SIGSTOP), 0);
        rest((int64_t)stop_ns);
        CHECK_INT(kill(child, SIGCONT), 0);
        rest((int64_t)stop_ns); /* for the child to end */
        ended = waitpid(child, &status, WNOHANG);
    }
    if (!CHECK_INT(ended, child)) {
        (void)kill(child, SIGKILL);
        (void)waitpid(child, &status, 0);
    }
    CHECK_INT(status, 0);
    close(ready[0]);
    close(ready[1]);
}

static void test_a_forked_child_lets_go(void) {
    struct mu_sampler *sampler = start();
    int status = -1;
    if (!CHECK(sampler != NULL)) {
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        mu_sampler_stop(sampler); /* would wait for ever for a thread that is not there */
        _exit(0);
    }
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
    mu_sampler_stop(sampler);
    mu_sampler_stop(NULL);
}

/* Workers that run, and one that has ended before it could be read. */
static void test_workers(void) {
    struct mu_sampler *sampler = start();
    pid_t gone = fork();
    if (gone == 0) {
        _exit(0);
    }
    CHECK_INT(waitpid(gone, NULL, 0), gone);
    pid_t worker = fork();
    if (worker == 0) {
        while (getppid() != 1) {
        }
        _exit(0);
    }
    struct mu_sampled_worker found[MU_SAMPLER_WORKERS_MAX] = {{0}};
    int places[MU_SAMPLER_WORKERS_MAX];
    const pid_t processes[] = {gone, worker};
    if (CHECK(sampler != NULL)) {
        mu_sampler_set_workers(sampler, processes, 2);
        for (int i = 0; i < 1000 && found[0].ran_ns == 0; i++) {
            rest(10000000);
            CHECK_INT(mu_sampler_workers(sampler, found, places), 1);
        }
        CHECK_INT(places[0], 1);
        CHECK_INT(found[0].process, worker);
        CHECK(found[0].ran_ns > 0);
        CHECK_INT(found[0].storage_ns, 0);
    }
    CHECK_INT(kill(worker, SIGKILL), 0);
    CHECK_INT(waitpid(worker, NULL, 0), worker);
    mu_sampler_stop(sampler);
}

/* Of two that want the same core, each waits for it about half of the time. */
static void test_a_worker_that_waits_for_a_core(void) {
    struct mu_sampler *sampler = start();
    pid_t rivals[4];
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(sched_getcpu(), &core);
    for (int i = 0; i < 4; i++) {
        rivals[i] = fork();
        if (rivals[i] == 0) {
            (void)sched_setaffinity(0, sizeof(core), &core);
            while (getppid() != 1) {
            }
            _exit(0);
        }
    }
    struct mu_sampled_worker found[MU_SAMPLER_WORKERS_MAX] = {{0}};
    int places[MU_SAMPLER_WORKERS_MAX];
    if (CHECK(sampler != NULL)) {
        mu_sampler_set_workers(sampler, rivals, 1);
        for (int i = 0; i < 1000 && found[0].delay_ns < 200000000; i++) {
            rest(10000000);
            (void)mu_sampler_workers(sampler, found, places);
        }
        CHECK(found[0].has_delay);
        CHECK(found[0].delay_ns > found[0].ran_ns);
        CHECK_INT(found[0].storage_ns, 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK_INT(kill(rivals[i], SIGKILL), 0);
        CHECK_INT(waitpid(rivals[i], NULL, 0), rivals[i]);
    }
    mu_sampler_stop(sampler);
}

/* The worker writes a file, drops it from memory, and reads it again and again. */
static void read_a_file(const char *path) {
    enum { FILE_BYTES = 1 << 20, PART = 4096 };
    char part[PART] = {1};
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    for (int i = 0; i < FILE_BYTES / PART; i++) {
        (void)(write(file, part, PART) == PART);
    }
    (void)fsync(file);
    while (getppid() != 1) {
        (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        for (int i = 0; i < FILE_BYTES / PART; i++) {
            (void)(pread(file, part, PART, (off_t)i * PART) == PART);
        }
    }
    _exit(0);
}

static void test_what_a_worker_reads(void) {
    char path[] = "mu_sampler_XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0);
    struct mu_sampler *sampler = start();
    pid_t worker = fork();
    if (worker == 0) {
        read_a_file(path);
    }
    struct mu_sampled_worker found[MU_SAMPLER_WORKERS_MAX] = {{0}};
    int places[MU_SAMPLER_WORKERS_MAX];
    if (CHECK(sampler != NULL)) {
        mu_sampler_set_workers(sampler, &worker, 1);
        for (int i = 0; i < 3000 && found[0].read_bytes == 0; i++) {
            rest(10000000);
            (void)mu_sampler_workers(sampler, found, places);
        }
        CHECK(found[0].io_readings > 0);
        CHECK(found[0].read_bytes > 0);
    }
    CHECK_INT(kill(worker, SIGKILL), 0);
    CHECK_INT(waitpid(worker, NULL, 0), worker);
    CHECK_INT(unlink(path), 0);
    close(file);
    mu_sampler_stop(sampler);
}

int main(void) {
    test_what_a_worker_reads();
    test_a_worker_that_waits_for_a_core();
    test_a_wait_is_counted();
    test_a_stop_is_counted();
    test_a_forked_child_lets_go();
    test_workers();
    return check_report();
}
