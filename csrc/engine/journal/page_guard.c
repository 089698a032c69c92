#include "journal/page_guard.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum { HANDLERS_MAX = 8, PAGES_A_WORD = 64 };

struct entry {
    _Atomic(uint8_t *) base; /* NULL: the entry is free */
    size_t page;             /* bytes */
    struct mu_guarded mapping;
    pid_t pid; /* a forked child has not the mapping */
    _Atomic size_t used;
    _Atomic uint64_t replaced;
    uint64_t *done; /* owned: a bit for each page that was replaced */
};

/* All under the lock. The handler takes it too: its holder touches no mapping of the table and lets
 * no signal in, so that the wait is short. */
static _Atomic pid_t lock_holder; /* the process; a forked child takes it from its parent */
static struct entry entries[MU_GUARDED_MAX];
static struct sigaction before[HANDLERS_MAX]; /* the last one is the next to be asked */
static int before_count;
static void *passed_on; /* the address of the last fault that was not ours */

static void lock(sigset_t *mask) {
    sigset_t all;
    pid_t own = getpid(), holder = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, mask);
    while (!atomic_compare_exchange_strong(&lock_holder, &holder, own)) {
        if (holder == own) {
            holder = 0;
            sched_yield();
        }
    }
}

static void unlock(const sigset_t *mask) {
    atomic_store(&lock_holder, 0);
    pthread_sigmask(SIG_SETMASK, mask, NULL);
}

static void read_page(const struct entry *entry, size_t offset, uint8_t *bytes) {
    const struct mu_guarded *mapping = &entry->mapping;
    size_t have = 0;
    while (have < entry->page) {
        ssize_t got = pread(mapping->fd, bytes + have, entry->page - have, (off_t)(offset + have));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        have += (size_t)got;
    }
    if (have == 0) {
        mapping->fill(mapping->owner, offset, bytes, entry->page);
    }
}

MU_MUST_CHECK static bool replace_locked(struct entry *entry, size_t offset) {
    size_t number = offset / entry->page;
    uint64_t bit = UINT64_C(1) << number % PAGES_A_WORD;
    if (entry->done[number / PAGES_A_WORD] & bit) {
        return true; /* by another thread, since this one faulted */
    }
    void *fresh =
        mmap(NULL, entry->page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) {
        return false;
    }
    read_page(entry, offset, fresh);
    void *place = atomic_load(&entry->base) + offset;
    if (mremap(fresh, entry->page, entry->page, MREMAP_MAYMOVE | MREMAP_FIXED, place) ==
        MAP_FAILED) {
        munmap(fresh, entry->page);
        return false;
    }
    madvise(place, entry->page, MADV_DONTFORK);
    entry->done[number / PAGES_A_WORD] |= bit;
    if (atomic_fetch_add(&entry->replaced, 1) == 0) {
        unlink(entry->mapping.path);
    }
    return true;
}

MU_MUST_CHECK static bool replace_address_locked(const void *address) {
    for (int i = 0; i < MU_GUARDED_MAX; i++) {
        const uint8_t *base = atomic_load(&entries[i].base);
        size_t offset = (size_t)((const uint8_t *)address - base);
        if (base != NULL && (const uint8_t *)address >= base && offset < entries[i].mapping.bytes &&
            entries[i].pid == getpid()) {
            return replace_locked(&entries[i], offset / entries[i].page * entries[i].page);
        }
    }
    return false;
}

/* Whether a store into the page would end in SIGBUS. */
static bool is_missing(const struct entry *entry, size_t offset) {
    struct stat status;
    if (madvise(atomic_load(&entry->base) + offset, entry->page, MADV_POPULATE_WRITE) == 0) {
        return false;
    }
    return errno == EFAULT ||
           (fstat(entry->mapping.fd, &status) == 0 && (size_t)status.st_size <= offset);
}

/* A handler that came later and knows none but the plain end, such as faulthandler's, puts this one
 * back and sends the signal again, without the address. Replaces all pages that a store would find
 * missing; returns whether there were any. */
MU_MUST_CHECK static bool replace_missing_locked(void) {
    bool any = false;
    for (int i = 0; i < MU_GUARDED_MAX; i++) {
        if (atomic_load(&entries[i].base) == NULL || entries[i].pid != getpid()) {
            continue;
        }
        size_t used = atomic_load(&entries[i].used);
        for (size_t offset = 0; offset < used; offset += entries[i].page) {
            any = (is_missing(&entries[i], offset) && replace_locked(&entries[i], offset)) || any;
        }
    }
    return any;
}

/* Puts the handler back that was there before. The same fault twice means that it returned and
 * changed nothing, as one that is disabled does: then the process ends by the signal. */
static void pass_on_locked(const siginfo_t *info) {
    struct sigaction next = {.sa_handler = SIG_DFL};
    bool fault = info->si_code > 0;
    bool again = fault && info->si_addr == passed_on;
    if (before_count > 0 && !again) {
        next = before[--before_count];
    }
    passed_on = fault ? info->si_addr : NULL;
    sigaction(SIGBUS, &next, NULL);
    if (!fault) { /* no instruction repeats it; it comes when this handler returns */
        syscall(SYS_rt_tgsigqueueinfo, getpid(), (pid_t)syscall(SYS_gettid), SIGBUS, info);
    }
}

static void handle(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    int saved = errno;
    sigset_t mask;
    lock(&mask);
    bool ours = info->si_code > 0 ? replace_address_locked(info->si_addr)
                                  : info->si_pid == getpid() && replace_missing_locked();
    if (!ours) {
        pass_on_locked(info);
    }
    unlock(&mask);
    errno = saved;
}

static void put_first_locked(void) {
    struct sigaction now, own = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    own.sa_sigaction = handle;
    sigfillset(&own.sa_mask);
    if (sigaction(SIGBUS, NULL, &now) != 0 ||
        ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == handle)) {
        return;
    }
    if (before_count == HANDLERS_MAX) { /* the oldest is the least likely to be wanted */
        memmove(before, before + 1, (HANDLERS_MAX - 1) * sizeof(before[0]));
        before_count--;
    }
    before[before_count++] = now;
    sigaction(SIGBUS, &own, NULL);
}

static bool any_locked(void) {
    for (int i = 0; i < MU_GUARDED_MAX; i++) {
        if (atomic_load(&entries[i].base) != NULL) {
            return true;
        }
    }
    return false;
}

void mu_page_guard_put_first(void) {
    struct sigaction now;
    sigset_t mask;
    if (sigaction(SIGBUS, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) &&
        now.sa_sigaction == handle) {
        return;
    }
    lock(&mask);
    if (any_locked()) {
        put_first_locked();
    }
    unlock(&mask);
}

static int free_entry_locked(void) {
    for (int i = 0; i < MU_GUARDED_MAX; i++) {
        if (atomic_load(&entries[i].base) == NULL || entries[i].pid != getpid()) {
            return i;
        }
    }
    return MU_GUARD_NONE;
}

int mu_page_guard_add(const struct mu_guarded *mapping, int *index, struct mu_error *err) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint64_t *done = calloc(mapping->bytes / page / PAGES_A_WORD + 1, sizeof(*done));
    if (done == NULL) {
        return mu_error_no_memory(err, "table of a journal's pages");
    }
    sigset_t mask;
    lock(&mask);
    *index = free_entry_locked();
    if (*index != MU_GUARD_NONE) {
        struct entry *entry = &entries[*index];
        entry->mapping = *mapping;
        entry->page = page;
        entry->pid = getpid();
        entry->done = done;
        atomic_store(&entry->used, mapping->bytes);
        atomic_store(&entry->replaced, 0);
        atomic_store(&entry->base, mapping->base);
        put_first_locked();
    }
    unlock(&mask);
    if (*index == MU_GUARD_NONE) {
        free(done);
        return mu_error_set(err, MU_ERR_LIMIT, "%d journals are open in this process",
                            MU_GUARDED_MAX);
    }
    return MU_OK;
}

void mu_page_guard_move(int index, uint8_t *base) {
    atomic_store(&entries[index].base, base);
}

void mu_page_guard_use(int index, size_t bytes) {
    atomic_store(&entries[index].used, bytes);
}

uint64_t mu_page_guard_replaced(int index) {
    return index == MU_GUARD_NONE ? 0 : atomic_load(&entries[index].replaced);
}

void mu_page_guard_remove(int index) {
    if (index == MU_GUARD_NONE) {
        return;
    }
    sigset_t mask;
    lock(&mask);
    uint64_t *done = entries[index].done;
    entries[index].done = NULL;
    atomic_store(&entries[index].base, NULL);
    unlock(&mask);
    free(done);
}
