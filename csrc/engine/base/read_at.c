#include "base/read_at.h"

#include <errno.h>
#include <unistd.h>

ssize_t mu_read_at(int fd, void *to, size_t bytes, uint64_t offset) {
    size_t have = 0;
    while (have < bytes) {
        ssize_t got = pread(fd, (char *)to + have, bytes - have, (off_t)(offset + have));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return -1;
        }
        if (got == 0) {
            break;
        }
        have += (size_t)got;
    }
    return (ssize_t)have;
}
