#include "host/thread_wait.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TEXT_BYTES = 512, PATH_BYTES = 96, NO_CALL = -1 };

/* Calls that work on the file of the descriptor that is their first argument. */
static const long of_descriptor[] = {
    SYS_read,      SYS_pread64,    SYS_readv,           SYS_preadv,          SYS_write,
    SYS_pwrite64,  SYS_fsync,      SYS_fdatasync,       SYS_sync_file_range, SYS_ftruncate,
    SYS_fallocate, SYS_getdents64, SYS_fstat,           SYS_writev,          SYS_pwritev,
    SYS_syncfs,    SYS_readahead,  SYS_copy_file_range,
#ifdef SYS_preadv2
    SYS_preadv2,   SYS_pwritev2,
#endif
};

/* Calls that look a path up. */
static const long of_path[] = {
    SYS_openat,     SYS_newfstatat, SYS_statx,    SYS_faccessat, SYS_unlinkat, SYS_renameat2,
    SYS_mkdirat,    SYS_readlinkat, SYS_statfs,   SYS_truncate,  SYS_sync,     SYS_msync,
#ifdef SYS_open
    SYS_open,       SYS_stat,       SYS_lstat,    SYS_access,    SYS_unlink,   SYS_rename,
    SYS_mkdir,      SYS_rmdir,      SYS_readlink,
#endif
#ifdef SYS_faccessat2
    SYS_faccessat2,
#endif
#ifdef SYS_openat2
    SYS_openat2,
#endif
};

static bool is_among(long call, const long *calls, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (calls[i] == call) {
            return true;
        }
    }
    return false;
}

/* --- files of /proc ----------------------------------------------------------------------- */

static struct mu_proc_file open_file(pid_t process, pid_t tid, const char *name) {
    char path[PATH_BYTES];
    if (process == 0) {
        snprintf(path, sizeof(path), "/proc/self/task/%d/%s", (int)tid, name);
    } else {
        snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", (int)process, (int)tid, name);
    }
    return mu_proc_open(path);
}

/* The link of /proc is read and not followed, so a file system that hangs is not asked. */
static bool is_file(pid_t process, uint64_t descriptor) {
    char path[PATH_BYTES], target[PATH_MAX];
    if (process == 0) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", (int)descriptor);
    } else {
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)process, (int)descriptor);
    }
    ssize_t length = readlink(path, target, sizeof(target) - 1);
    target[length > 0 ? length : 0] = '\0';
    return target[0] == '/' && strncmp(target, "/dev/", strlen("/dev/")) != 0;
}

/* The state is the letter after the name in parentheses. */
static bool is_stopped(const struct mu_proc_file *file) {
    char text[TEXT_BYTES];
    const char *end = mu_proc_text(file, text, sizeof(text)) ? strrchr(text, ')') : NULL;
    return end != NULL && end[1] == ' ' && (end[2] == 'T' || end[2] == 't');
}

/* --- the thread --------------------------------------------------------------------------- */

bool mu_watched_thread_open(struct mu_watched_thread *thread, pid_t process, pid_t tid) {
    enum mu_wait wait;
    *thread = (struct mu_watched_thread){.process = process};
    thread->call = open_file(process, tid, "syscall");
    thread->state = open_file(process, tid, "stat");
    if (thread->state.fd >= 0 && mu_watched_thread_read(thread, &wait)) {
        return true;
    }
    mu_watched_thread_close(thread);
    return false;
}

void mu_watched_thread_close(struct mu_watched_thread *thread) {
    mu_proc_close(&thread->call);
    mu_proc_close(&thread->state);
}

static enum mu_wait wait_of(const struct mu_watched_thread *thread, long call, uint64_t argument) {
    const struct mu_wait_lock *lock = &thread->lock;
    if (call == NO_CALL) {
        return is_stopped(&thread->state) ? MU_WAIT_STOPPED : MU_WAIT_PAGE;
    }
    if (call == SYS_futex && argument >= lock->begin && argument < lock->end) {
        return MU_WAIT_LOCK;
    }
    if (is_among(call, of_descriptor, sizeof(of_descriptor) / sizeof(of_descriptor[0])) &&
        is_file(thread->process, argument)) {
        return MU_WAIT_STORAGE;
    }
    return is_among(call, of_path, sizeof(of_path) / sizeof(of_path[0])) ? MU_WAIT_STORAGE
                                                                         : MU_WAIT_OTHER;
}

/* The file has "running", or the number of the call and its arguments, or -1 in no call. */
bool mu_watched_thread_read(const struct mu_watched_thread *thread, enum mu_wait *out) {
    char text[TEXT_BYTES];
    if (!mu_proc_text(&thread->call, text, sizeof(text))) {
        return false;
    }
    char *rest, *end;
    long call = strtol(text, &rest, 10);
    if (rest == text) {
        *out = MU_WAIT_NONE;
        return strncmp(text, "running", strlen("running")) == 0;
    }
    *out = wait_of(thread, call, strtoull(rest, &end, 16));
    return true;
}
