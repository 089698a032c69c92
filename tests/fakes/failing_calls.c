/* Lets one call fail that comes from _core, the n-th: files, memory and locks. Or the process is
 * killed before that call, or after it. Preloaded in front of libc. fail_begin says which call and
 * how; without it, calls are as ever and are not counted. A kill can wait until other threads have
 * got on.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { SHORT_WRITE = -1, KILL_BEFORE = -2, KILL_AFTER = -3, CALLS_MAX = 65536 };
enum { STEPS_MORE = 3, WAITS_MAX = 200 };

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);

static _Atomic int counts, made;
static int fails_at, fails_with;
static const _Atomic uint64_t *counter;
static char kinds[CALLS_MAX];
static _Thread_local int dies; /* when the call that it makes has returned */

/* Where the caller keeps the others from recording, the counter stands still. */
static void die(void) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    uint64_t enough = counter == NULL ? 0 : atomic_load(counter) + STEPS_MORE;
    for (int i = 0; i < WAITS_MAX && counter != NULL && atomic_load(counter) < enough; i++) {
        nanosleep(&pause, NULL);
    }
    (void)kill(getpid(), SIGKILL);
}

/* Counts calls from here on; the n-th, from 1, fails with the errno, writes half, or kills. With -n
 * all calls for memory fail from the n-th call on. Before
 * a kill the counter of other threads' work rises by STEPS_MORE, if it rises; NULL: none is. */
void fail_begin(int n, int with, const _Atomic uint64_t *of_work) {
    fails_at = n;
    fails_with = with;
    counter = of_work;
    atomic_store(&made, 0);
    atomic_store(&counts, 1);
}

/* Calls are as ever again. Returns how many there were; their kinds are m(emory), w(rites),
 * u(nlink) and o(thers). */
int fail_end(const char **of_calls) {
    atomic_store(&counts, 0);
    *of_calls = kinds;
    return atomic_load(&made);
}

static int is_from_core(const void *caller) {
    Dl_info info;
    if (dladdr(caller, &info) == 0 || info.dli_fname == NULL) {
        return 0;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    return slash != NULL && strncmp(slash, "/_core.", 7) == 0;
}

static int fails(const void *caller, char kind) {
    if (!atomic_load(&counts) || !is_from_core(caller)) {
        return 0;
    }
    int n = atomic_fetch_add(&made, 1) + 1;
    if (n <= CALLS_MAX) {
        kinds[n - 1] = kind;
    }
    int is_it = fails_at >= 0 ? n == fails_at : n >= -fails_at && kind == 'm';
    if (!is_it || (fails_with == SHORT_WRITE && kind != 'w')) {
        return 0;
    }
    if (fails_with == KILL_BEFORE) {
        die();
    }
    dies = fails_with == KILL_AFTER;
    if (dies) {
        return 0;
    }
    errno = fails_with == SHORT_WRITE ? 0 : fails_with;
    return 1;
}

#define FAILS(kind) fails(__builtin_return_address(0), kind)

static long kernel(long number, long a, long b, long c, long d, long e, long f) {
    static long (*real)(long, ...);
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "syscall");
    }
    long result = real(number, a, b, c, d, e, f);
    if (dies) {
        die();
    }
    return result;
}

#define KERNEL(number, a, b, c, d)                                                                 \
    kernel(number, (long)(intptr_t)(a), (long)(intptr_t)(b), (long)(c), (long)(d), 0, 0)

long syscall(long number, ...) {
    long given[6];
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++) {
        given[i] = va_arg(args, long);
    }
    va_end(args);
    if ((number == SYS_fallocate || number == SYS_renameat2) && FAILS('o')) {
        return -1;
    }
    return kernel(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;                    \
        va_end(args);                                                                              \
        return FAILS('o') ? -1 : (int)KERNEL(SYS_openat, AT_FDCWD, path, flags, mode);             \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                               \
    int name(int folder, const char *path, int flags, ...) {                                       \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;                    \
        va_end(args);                                                                              \
        return FAILS('o') ? -1 : (int)KERNEL(SYS_openat, folder, path, flags, mode);               \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *bytes, size_t length) {
    if (FAILS('w')) {
        if (errno != 0) {
            return -1;
        }
        length = (length + 1) / 2;
    }
    return KERNEL(SYS_write, fd, bytes, length, 0);
}

#define PWRITE(name)                                                                               \
    ssize_t name(int fd, const void *bytes, size_t length, off_t at) {                             \
        if (FAILS('w')) {                                                                          \
            if (errno != 0) {                                                                      \
                return -1;                                                                         \
            }                                                                                      \
            length = (length + 1) / 2;                                                             \
        }                                                                                          \
        return KERNEL(SYS_pwrite64, fd, bytes, length, at);                                        \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

int fsync(int fd) {
    return FAILS('o') ? -1 : (int)KERNEL(SYS_fsync, fd, 0, 0, 0);
}

int fdatasync(int fd) {
    return FAILS('o') ? -1 : (int)KERNEL(SYS_fdatasync, fd, 0, 0, 0);
}

#define MMAP(name)                                                                                 \
    void *name(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {          \
        if (FAILS('o')) {                                                                          \
            return MAP_FAILED;                                                                     \
        }                                                                                          \
        return (void *)kernel(SYS_mmap, (long)at, (long)bytes, protection, flags, fd, offset);     \
    }
MMAP(mmap)
MMAP(mmap64)

int madvise(void *at, size_t bytes, int advice) {
    return FAILS('o') ? -1 : (int)KERNEL(SYS_madvise, at, bytes, advice, 0);
}

int rename(const char *from, const char *to) {
    return FAILS('o') ? -1 : (int)KERNEL(SYS_rename, from, to, 0, 0);
}

int renameat2(int folder, const char *from, int other, const char *to, unsigned flags) {
    if (FAILS('o')) {
        return -1;
    }
    return (int)kernel(SYS_renameat2, folder, (long)from, other, (long)to, (long)flags, 0);
}

int link(const char *from, const char *to) {
    return FAILS('o') ? -1 : (int)KERNEL(SYS_link, from, to, 0, 0);
}

int unlink(const char *path) {
    return FAILS('u') ? -1 : (int)KERNEL(SYS_unlink, path, 0, 0, 0);
}

int flock(int fd, int how) {
    return FAILS('o') ? -1 : (int)KERNEL(SYS_flock, fd, how, 0, 0);
}

#define FCNTL(name)                                                                                \
    int name(int fd, int command, ...) {                                                           \
        va_list args;                                                                              \
        va_start(args, command);                                                                   \
        long value = va_arg(args, long);                                                           \
        va_end(args);                                                                              \
        int locks = command == F_SETLK || command == F_OFD_SETLK;                                  \
        return locks && FAILS('o') ? -1 : (int)KERNEL(SYS_fcntl, fd, command, value, 0);           \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

#define FTRUNCATE(name)                                                                            \
    int name(int fd, off_t length) {                                                               \
        return FAILS('o') ? -1 : (int)KERNEL(SYS_ftruncate, fd, length, 0, 0);                     \
    }
FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)

void *malloc(size_t bytes) {
    return FAILS('m') ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
    return FAILS('m') ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes) {
    return FAILS('m') ? NULL : __libc_realloc(memory, bytes);
}
