#include "base/wiped_page.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* Linux 4.14 */
#endif

/* Of the whole process, for the handler is one and gets no argument. */
static _Atomic(void *) pages[MU_WIPED_PAGES_MAX];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool handler_is_set;

static void wipe_all(void) {
    for (int i = 0; i < MU_WIPED_PAGES_MAX; i++) {
        void *page = atomic_load_explicit(&pages[i], memory_order_relaxed);
        if (page != NULL) {
            memset(page, 0, MU_WIPED_PAGE_BYTES);
        }
    }
}

static void set_handler(void) {
    handler_is_set = pthread_atfork(NULL, NULL, wipe_all) == 0;
}

/* False: the handler will not know the page. */
static bool enlist(void *page) {
    pthread_once(&once, set_handler);
    for (int i = 0; handler_is_set && i < MU_WIPED_PAGES_MAX; i++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong(&pages[i], &none, page)) {
            return true;
        }
    }
    return false;
}

static void strike_off(void *page) {
    for (int i = 0; i < MU_WIPED_PAGES_MAX; i++) {
        void *listed = page;
        if (atomic_compare_exchange_strong(&pages[i], &listed, NULL)) {
            return;
        }
    }
}

void *mu_wiped_page_map(void) {
    void *page =
        mmap(NULL, MU_WIPED_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return NULL;
    }
    bool kernel_wipes = madvise(page, MU_WIPED_PAGE_BYTES, MADV_WIPEONFORK) == 0;
    if (!enlist(page) && !kernel_wipes) {
        munmap(page, MU_WIPED_PAGE_BYTES);
        errno = ENOMEM;
        return NULL;
    }
    return page;
}

/* A child that is forked between the two calls still has the page, which nobody uses any more. */
void mu_wiped_page_unmap(void *page) {
    if (page != NULL) {
        strike_off(page);
        munmap(page, MU_WIPED_PAGE_BYTES);
    }
}
