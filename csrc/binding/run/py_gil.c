#define Py_BUILD_CORE 1
#include "run/py_gil.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x03100000
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#endif

#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

static const int64_t longest_ns = 100000000;
static const int64_t pause_ns = 200000;

/* --- its place ---------------------------------------------------------------------------- */

/* From 3.12 on there is one an interpreter, before that one. */
static bool place_of_gil(struct mu_wait_lock *out) {
#ifdef Py_GIL_DISABLED
    const char *gil = NULL;
#elif PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x03100000
    const struct _gil_runtime_state *gil = PyInterpreterState_Get()->ceval.gil;
#elif PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
    const struct _gil_runtime_state *gil = &_PyRuntime.ceval.gil;
#else
    const char *gil = NULL;
#endif
    if (gil == NULL || PyInterpreterState_Get() != PyInterpreterState_Main()) {
        return false;
    }
    out->begin = (uint64_t)(uintptr_t)gil;
    out->end = out->begin + sizeof(*gil);
    return true;
}

/* --- the check ---------------------------------------------------------------------------- */

static void *want_gil(void *argument) {
    _Atomic pid_t *tid = argument;
    atomic_store(tid, (pid_t)syscall(SYS_gettid));
    PyGILState_Release(PyGILState_Ensure());
    return NULL;
}

static void pause_once(void) {
    nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
}

/* Whether a thread that cannot get the GIL is seen to wait there. */
static bool is_seen(pid_t tid, const struct mu_wait_lock *lock, int64_t until_ns) {
    struct mu_watched_thread thread;
    enum mu_wait wait = MU_WAIT_NONE;
    if (!mu_watched_thread_open(&thread, 0, tid)) {
        return false;
    }
    thread.lock = *lock;
    bool reads = true;
    while (reads && wait != MU_WAIT_LOCK && mu_clock_monotonic_ns() < until_ns) {
        pause_once();
        reads = mu_watched_thread_read(&thread, &wait);
    }
    mu_watched_thread_close(&thread);
    return wait == MU_WAIT_LOCK;
}

bool mu_py_gil_find(struct mu_wait_lock *out) {
    pthread_t thread;
    _Atomic pid_t tid = 0;
    if (!place_of_gil(out) || pthread_create(&thread, NULL, want_gil, &tid) != 0) {
        return false;
    }
    int64_t until_ns = mu_clock_monotonic_ns() + longest_ns;
    while (atomic_load(&tid) == 0 && mu_clock_monotonic_ns() < until_ns) {
        pause_once();
    }
    bool seen = atomic_load(&tid) != 0 && is_seen(atomic_load(&tid), out, until_ns);
    Py_BEGIN_ALLOW_THREADS;
    pthread_join(thread, NULL); /* it lives in this frame */
    Py_END_ALLOW_THREADS;
    return seen;
}
