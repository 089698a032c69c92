/* Local times are libc's, and a child that is forked while another thread asks for one can ask too.
 */
#include "base/local_time.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/check.h"

enum { FORKS = 300, HANGS_S = 60 };

static atomic_bool stop;

static void *ask(void *unused) {
    char text[32];
    for (int64_t second = 0; !atomic_load(&stop); second += 3600) {
        mu_local_time_text(second % 2000000000, "%H:%M:%S", text, sizeof(text));
    }
    return unused;
}

/* Whether the child's own call of libc returns. */
static int child_asks(void) {
    pid_t child = fork();
    if (child == 0) {
        time_t now = 1750000000;
        struct tm local;
        alarm(HANGS_S);
        _exit(localtime_r(&now, &local) == NULL);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return status == 0;
}

static void test_forks(void) {
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, ask, NULL), 0);
    for (int i = 0; i < FORKS; i++) {
        CHECK(child_asks());
    }
    atomic_store(&stop, true);
    CHECK_INT(pthread_join(thread, NULL), 0);
}

static void test_same_as_libc(void) {
    setenv("TZ", "Asia/Kolkata", 1);
    tzset();
    for (int64_t second = -100000; second < 2000000000; second += 12345679) {
        time_t time = (time_t)second;
        struct tm local;
        char expected[32], found[32];
        CHECK(localtime_r(&time, &local) != NULL);
        size_t length = strftime(expected, sizeof(expected), "%Y-%m-%d %H:%M:%S", &local);
        CHECK_INT(mu_local_time_text(second, "%Y-%m-%d %H:%M:%S", found, sizeof(found)), length);
        CHECK(strcmp(found, expected) == 0);
    }
    char text[8];
    CHECK_INT(mu_local_time_text(INT64_MAX, "%Y", text, sizeof(text)), 4);
    CHECK(strcmp(text, "1900") == 0);
    CHECK_INT(mu_local_time_text(0, "%Y-%m-%d", text, sizeof(text)), 0);
}

int main(void) {
    test_same_as_libc();
    test_forks();
    return check_report();
}
