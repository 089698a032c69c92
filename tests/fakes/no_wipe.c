/* A sandbox without MADV_WIPEONFORK: with NO_WIPE=refused it is an error, and with "all refused" so
 * is any other advice, as in gVisor; else it is taken and nothing is done, as by qemu. Preloaded in
 * front of libc. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int madvise(void *address, size_t bytes, int advice) {
    const char *how = getenv("NO_WIPE");
    if (how == NULL) {
        how = "ignored";
    }
    bool refused = strcmp(how, "all refused") == 0 ||
                   (advice == MADV_WIPEONFORK && strcmp(how, "refused") == 0);
    if (refused) {
        errno = EINVAL;
        return -1;
    }
    return advice == MADV_WIPEONFORK ? 0 : (int)syscall(SYS_madvise, address, bytes, advice);
}
