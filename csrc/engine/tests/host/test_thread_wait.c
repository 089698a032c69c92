/* What threads wait for, of threads that do. */
#include "host/thread_wait.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/check.h"

static const int64_t longest_ns = 10000000000;

struct helper {
    void (*work)(struct helper *);
    _Atomic pid_t tid;
    _Atomic bool stop;
    pthread_mutex_t lock;
    int pipe[2];
};

static void *helper_main(void *argument) {
    struct helper *helper = argument;
    atomic_store(&helper->tid, (pid_t)syscall(SYS_gettid));
    helper->work(helper);
    return NULL;
}

static void wants_lock(struct helper *helper) {
    pthread_mutex_lock(&helper->lock);
    pthread_mutex_unlock(&helper->lock);
}

static void reads_pipe(struct helper *helper) {
    char byte;
    CHECK_INT(read(helper->pipe[0], &byte, 1), 1);
}

static void runs(struct helper *helper) {
    while (!atomic_load(&helper->stop)) {
    }
}

/* Whether the thread is seen in that state before long. */
static bool is_seen(struct mu_watched_thread *thread, enum mu_wait expected) {
    enum mu_wait wait = MU_WAIT_KINDS;
    for (int64_t end = mu_clock_monotonic_ns() + longest_ns; mu_clock_monotonic_ns() < end;) {
        if (mu_watched_thread_read(thread, &wait) && wait == expected) {
            return true;
        }
    }
    return false;
}

/* Whether it can be read no more before long: the kernel takes a thread out of /proc a moment after
 * it lets those go on that join it. */
static bool is_gone(const struct mu_watched_thread *thread) {
    enum mu_wait wait;
    for (int64_t end = mu_clock_monotonic_ns() + longest_ns; mu_clock_monotonic_ns() < end;) {
        if (!mu_watched_thread_read(thread, &wait)) {
            return true;
        }
    }
    return false;
}

static void check(void (*work)(struct helper *), enum mu_wait expected, bool watches_lock) {
    struct helper helper = {.work = work, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct mu_watched_thread thread;
    pthread_t id;
    CHECK_INT(pipe(helper.pipe), 0);
    pthread_mutex_lock(&helper.lock);
    CHECK_INT(pthread_create(&id, NULL, helper_main, &helper), 0);
    while (atomic_load(&helper.tid) == 0) {
    }
    if (CHECK(mu_watched_thread_open(&thread, 0, atomic_load(&helper.tid)))) {
        if (watches_lock) {
            thread.lock.begin = (uint64_t)(uintptr_t)&helper.lock;
            thread.lock.end = thread.lock.begin + sizeof(helper.lock);
        }
        CHECK(is_seen(&thread, expected));
    }
    atomic_store(&helper.stop, true);
    CHECK_INT(write(helper.pipe[1], "x", 1), 1);
    pthread_mutex_unlock(&helper.lock);
    CHECK_INT(pthread_join(id, NULL), 0);
    CHECK(is_gone(&thread));
    mu_watched_thread_close(&thread);
    close(helper.pipe[0]);
    close(helper.pipe[1]);
}

static void test_who_is_not_there(void) {
    struct mu_watched_thread thread;
    CHECK(!mu_watched_thread_open(&thread, 0, 1));
    CHECK_INT(thread.call.fd, -1);
    CHECK_INT(thread.state.fd, -1);
}

/* `calls-of-the-emulator`: the kernel shows those, with the numbers of its own processor. */
int main(int argc, char **argv) {
    bool calls_are_own = argc < 2 || strcmp(argv[1], "calls-of-the-emulator") != 0;
    if (calls_are_own) {
        check(wants_lock, MU_WAIT_LOCK, true);
    }
    check(wants_lock, MU_WAIT_OTHER, false);
    check(reads_pipe, MU_WAIT_OTHER, true);
    check(runs, MU_WAIT_NONE, true);
    test_who_is_not_there();
    return check_report();
}
