/* Work that may be split, in a process without torch: the caller does all of it, once, in a forked
 * child and in threads too. tests/tensors/test_parallel.py does the same with torch's pool. */
#include "base/parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

struct tally {
    atomic_int *seen; /* owned elsewhere: how often each element came */
    int64_t count;
    atomic_int calls;
};

static void count_part(int64_t begin, int64_t end, void *context) {
    struct tally *tally = context;
    CHECK(0 <= begin && begin <= end && end <= tally->count);
    atomic_fetch_add(&tally->calls, 1);
    for (int64_t i = begin; i < end; i++) {
        atomic_fetch_add(&tally->seen[i], 1);
    }
}

static int run(int64_t count, int64_t grain) {
    struct tally tally = {.seen = calloc((size_t)count + 1, sizeof(atomic_int)), .count = count};
    mu_parallel_for(count, grain, count_part, &tally);
    int64_t once = 0;
    for (int64_t i = 0; i < count; i++) {
        once += atomic_load(&tally.seen[i]) == 1;
    }
    CHECK_INT(once, count);
    free(tally.seen);
    return atomic_load(&tally.calls);
}

static void test_serial(void) {
    CHECK_INT(mu_parallel_threads(), 1);
    CHECK_INT(run(1, 1), 1);
    CHECK_INT(run(1000, 1), 1);
    CHECK_INT(run(1000, 1000), 1);
    CHECK_INT(run(1000, 5000), 1);
    run(0, 1);
}

static void test_forked_child(void) {
    pid_t child = fork();
    if (child == 0) {
        int calls = run(1000, 10);
        _exit(calls == 1 && mu_parallel_threads() == 1 ? 0 : 1);
    }
    int status = 1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
}

static void *in_thread(void *unused) {
    (void)unused;
    for (int i = 0; i < 200; i++) {
        run(100, 1 + i % 7);
    }
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, in_thread, NULL), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
}

int main(void) {
    test_serial(); /* before the library stored the process id, too */
    mu_parallel_load();
    test_serial();
    test_forked_child();
    test_threads();
    return check_report();
}
