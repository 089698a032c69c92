/* Writes to profile CSVs hang while the file that HANG_WHILE names exists, as on a dead mount. The
 * first that does makes a file of that name with ".reached". Preloaded in front of libc. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static int is_profile_csv(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof(path) - 1);
    if (length < 4) {
        return 0;
    }
    path[length] = '\0';
    return strcmp(path + length - 4, ".csv") == 0;
}

static void say_that_one_hangs(const char *flag) {
    char path[4096];
    snprintf(path, sizeof(path), "%s.reached", flag);
    close(open(path, O_WRONLY | O_CREAT, 0644));
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    const char *flag = getenv("HANG_WHILE");
    while (flag != NULL && access(flag, F_OK) == 0 && is_profile_csv(fd)) {
        say_that_one_hangs(flag);
        usleep(1000);
    }
    return syscall(SYS_pwrite64, fd, bytes, length, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t offset) {
    return pwrite(fd, bytes, length, offset);
}
