/* A sandbox without MADV_WIPEONFORK: with NO_WIPE=refused it is an error, as in gVisor, else it is
 * taken and nothing is done, as by qemu. Preloaded in front of libc. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int madvise(void *address, size_t bytes, int advice) {
    const char *how = getenv("NO_WIPE");
    if (advice != MADV_WIPEONFORK) {
        return (int)syscall(SYS_madvise, address, bytes, advice);
    }
    if (how != NULL && strcmp(how, "refused") == 0) {
        errno = EINVAL;
        return -1;
    }
    return 0;
}
