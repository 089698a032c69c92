/* What a thread waits for at a moment, as /proc says it: the call of the kernel that it is in.
 */
#ifndef MU_THREAD_WAIT_H
#define MU_THREAD_WAIT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "host/proc_text.h"

enum mu_wait {
    MU_WAIT_NONE,    /* it runs, or is ready to */
    MU_WAIT_LOCK,    /* for the lock that is watched */
    MU_WAIT_STORAGE, /* in a call that works on a file */
    MU_WAIT_PAGE,    /* for a page of its memory, in no call */
    MU_WAIT_STOPPED, /* a signal or a debugger has stopped it */
    MU_WAIT_OTHER,   /* in any other call */
    MU_WAIT_KINDS,
};

/* Addresses; none where begin is end. */
struct mu_wait_lock {
    uint64_t begin, end;
};

/* A thread that is watched. Not thread-safe. */
struct mu_watched_thread {
    pid_t process;                   /* 0: the own one */
    struct mu_proc_file call, state; /* its `syscall` and `stat` */
    struct mu_wait_lock lock;        /* a futex there is the lock that is watched */
};

/* process: 0 for a thread of the own process. False where the kernel does not say what it waits
 * for, or refuses to; nothing is open then. Closed by mu_watched_thread_close. */
bool mu_watched_thread_open(struct mu_watched_thread *thread, pid_t process, pid_t tid);
void mu_watched_thread_close(struct mu_watched_thread *thread);

/* Two or three system calls, some microseconds; it asks no file system but /proc, so it never waits
 * for one. False where the thread has ended. */
bool mu_watched_thread_read(const struct mu_watched_thread *thread, enum mu_wait *out);

#endif
