/* The first rotation of the process that preloads this takes long: after the CSV's renaming it
 * makes the file "renamed", and goes on when there is one named "go_on", or after ten seconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { WAITS_MAX = 10000 };

static void wait_for_others(void) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    static int waited;
    if (waited) {
        return;
    }
    waited = 1;
    close(open("renamed", O_WRONLY | O_CREAT, 0644));
    for (int i = 0; i < WAITS_MAX && access("go_on", F_OK) != 0; i++) {
        nanosleep(&pause, NULL);
    }
}

long syscall(long number, ...) {
    long (*real)(long, ...);
    long given[6];
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++) {
        given[i] = va_arg(args, long);
    }
    va_end(args);
    *(void **)&real = dlsym(RTLD_NEXT, "syscall");
    long result = real(number, given[0], given[1], given[2], given[3], given[4], given[5]);
    if (number == SYS_renameat2) {
        wait_for_others();
    }
    return result;
}
