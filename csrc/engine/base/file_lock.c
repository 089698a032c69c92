#include "base/file_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/file.h>

static int flock_uninterrupted(int fd, int operation) {
    int rc;
    do {
        rc = flock(fd, operation);
    } while (rc != 0 && errno == EINTR);
    return rc;
}

static enum mu_file_lock lock_description(int fd, short type, bool take) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET};
    if (fcntl(fd, take ? F_OFD_SETLK : F_OFD_GETLK, &lock) != 0) {
        return errno == EAGAIN || errno == EACCES ? MU_LOCK_HELD : MU_LOCK_UNKNOWN;
    }
    return take || lock.l_type == F_UNLCK ? MU_LOCK_TAKEN : MU_LOCK_HELD;
}

enum mu_file_lock mu_file_lock_take(int fd) {
    if (flock_uninterrupted(fd, LOCK_EX | LOCK_NB) == 0) {
        return MU_LOCK_TAKEN;
    }
    return errno == EWOULDBLOCK ? MU_LOCK_HELD : lock_description(fd, F_WRLCK, true);
}

enum mu_file_lock mu_file_lock_state(int fd) {
    if (flock_uninterrupted(fd, LOCK_SH | LOCK_NB) == 0) {
        flock_uninterrupted(fd, LOCK_UN);
        return MU_LOCK_TAKEN;
    }
    return errno == EWOULDBLOCK ? MU_LOCK_HELD : lock_description(fd, F_RDLCK, false);
}
