/* Pages of a parent and of its child, with the kernel's wiping and without. */
#include "base/wiped_page.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

#ifndef MADV_KEEPONFORK
#define MADV_KEEPONFORK 19
#endif

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

static int is_full_of(const void *page, int byte) {
    const unsigned char *bytes = page;
    for (int i = 0; i < MU_WIPED_PAGE_BYTES; i++) {
        if (bytes[i] != byte) {
            return 0;
        }
    }
    return 1;
}

/* Whether a child finds the page full of the byte; it ends by a signal where it has no page. */
static int child_finds(const void *page, int byte) {
    pid_t child = fork();
    if (child == 0) {
        _exit(is_full_of(page, byte) ? 0 : 1);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return status == 0;
}

static void test_one(int advice) {
    void *page = mu_wiped_page_map();
    CHECK(page != NULL);
    CHECK(is_full_of(page, 0));
    if (advice != 0) {
        CHECK_INT(madvise(page, MU_WIPED_PAGE_BYTES, advice), 0);
    }
    memset(page, 7, MU_WIPED_PAGE_BYTES);
    CHECK(child_finds(page, 0));
    CHECK(is_full_of(page, 7));
    mu_wiped_page_unmap(page);
}

/* A page that was given back is not touched, whatever lies there now. */
static void test_given_back(void) {
    void *page = mu_wiped_page_map();
    mu_wiped_page_unmap(page);
    void *other = mmap(page, MU_WIPED_PAGE_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(other == page);
    memset(other, 9, MU_WIPED_PAGE_BYTES);
    CHECK(child_finds(other, 9));
    munmap(other, MU_WIPED_PAGE_BYTES);
    mu_wiped_page_unmap(NULL);
}

/* Whether the kernel does it; qemu takes the advice for a process of another processor and does not
 * follow it. */
static int kernel_wipes(void) {
    void *page =
        mmap(NULL, MU_WIPED_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    int taken = madvise(page, MU_WIPED_PAGE_BYTES, MADV_WIPEONFORK) == 0;
    memset(page, 7, MU_WIPED_PAGE_BYTES);
    int wipes = taken && child_finds(page, 0);
    munmap(page, MU_WIPED_PAGE_BYTES);
    return wipes;
}

/* Pages beyond the table are left to the kernel. */
static void test_many(void) {
    static void *pages[MU_WIPED_PAGES_MAX + 1];
    for (int i = 0; i <= MU_WIPED_PAGES_MAX; i++) {
        pages[i] = mu_wiped_page_map();
        CHECK(pages[i] != NULL);
    }
    memset(pages[MU_WIPED_PAGES_MAX], 7, MU_WIPED_PAGE_BYTES);
    CHECK_INT(child_finds(pages[MU_WIPED_PAGES_MAX], 0), kernel_wipes());
    for (int i = 0; i <= MU_WIPED_PAGES_MAX; i++) {
        mu_wiped_page_unmap(pages[i]);
    }
    test_one(MADV_KEEPONFORK); /* there is room again */
}

int main(void) {
    test_one(0);
    test_one(MADV_KEEPONFORK);
    test_given_back();
    test_many();
    return check_report();
}
