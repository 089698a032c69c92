#include "base/own_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PROBE_PATH_BYTES = 1152 };

/* A file system without nameless files, as NFS, gets one with a name. */
static int open_probe(const char *directory) {
    int fd = open(directory, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) {
        return fd;
    }
    char path[PROBE_PATH_BYTES];
    int length = snprintf(path, sizeof(path), "%s/.my_utils.%d.owner", directory, (int)getpid());
    if (length < 0 || (size_t)length >= sizeof(path)) {
        return -1;
    }
    fd = mu_open_instead(path, 0600);
    if (fd >= 0) {
        unlink(path);
    }
    return fd;
}

uid_t mu_own_user(const char *directory) {
    struct stat made;
    int fd = open_probe(directory);
    if (fd < 0) {
        return geteuid();
    }
    uid_t user = fstat(fd, &made) == 0 ? made.st_uid : geteuid();
    close(fd);
    return user;
}

int mu_above_streams(int fd) {
    if (fd < 0 || fd > STDERR_FILENO) {
        return fd;
    }
    int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int reason = errno;
    close(fd);
    errno = reason;
    return above;
}

struct mu_file_id mu_file_id(int fd) {
    struct stat found = {0};
    int rc = fstat(fd, &found);
    (void)rc; /* a descriptor that is not open is not a file, and never the same one */
    return (struct mu_file_id){.device = found.st_dev, .inode = found.st_ino};
}

bool mu_is_file(int fd, struct mu_file_id file) {
    struct stat found;
    if (fstat(fd, &found) != 0) {
        return false;
    }
    errno = EBADF;
    return found.st_dev == file.device && found.st_ino == file.inode;
}

void mu_close_file(int fd, struct mu_file_id file) {
    if (mu_is_file(fd, file)) {
        close(fd);
    }
}

static int refuse(int fd, int reason) {
    close(fd);
    errno = reason;
    return -1;
}

static int open_regular(const char *path, int flags, mode_t mode, struct stat *found) {
    int fd =
        mu_above_streams(open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode));
    if (fd < 0) {
        return fd;
    }
    if (fstat(fd, found) != 0) {
        return refuse(fd, errno);
    }
    return S_ISREG(found->st_mode) ? fd : refuse(fd, EINVAL);
}

int mu_open_regular(const char *path, int flags, mode_t mode) {
    struct stat found;
    return open_regular(path, flags, mode, &found);
}

int mu_open_own(const char *path, int flags, mode_t mode, uid_t user) {
    struct stat found;
    int fd = open_regular(path, flags, mode, &found);
    if (fd < 0 || (found.st_uid == user && found.st_nlink <= 1)) {
        return fd;
    }
    return refuse(fd, EPERM);
}

bool mu_is_of_others(int open_errno) {
    return open_errno == ELOOP || open_errno == EINVAL || open_errno == EPERM ||
           open_errno == ENXIO || open_errno == EISDIR;
}

int mu_open_instead(const char *path, mode_t mode) {
    if (unlink(path) != 0 && errno != ENOENT) {
        return -1;
    }
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
}
