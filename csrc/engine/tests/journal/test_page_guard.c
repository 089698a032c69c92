/* Mapped files that are cut while the process writes, and the table's places. */
#include "journal/page_guard.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

enum { PAGES = 4, FILLED_WITH = 0x5A };

struct mapped {
    char path[64];
    int fd;
    uint8_t *base;
    size_t bytes;
};

static void map(struct mapped *mapped) {
    snprintf(mapped->path, sizeof(mapped->path), "/tmp/mu-test-XXXXXX");
    mapped->fd = mkstemp(mapped->path);
    mapped->bytes = PAGES * (size_t)sysconf(_SC_PAGESIZE);
    CHECK(mapped->fd >= 0 && ftruncate(mapped->fd, (off_t)mapped->bytes) == 0);
    mapped->base = mmap(NULL, mapped->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, mapped->fd, 0);
    CHECK(mapped->base != MAP_FAILED);
}

static void unmap(struct mapped *mapped) {
    munmap(mapped->base, mapped->bytes);
    close(mapped->fd);
    unlink(mapped->path);
}

static void fill(const void *owner, size_t offset, uint8_t *page, size_t bytes) {
    (void)owner, (void)offset;
    memset(page, FILLED_WITH, bytes);
}

static int guard(const struct mapped *mapped, int *index) {
    const struct mu_guarded guarded = {mapped->base, mapped->bytes, mapped->fd,
                                       mapped->path, fill,          NULL};
    return mu_page_guard_add(&guarded, index, NULL);
}

static void test_a_cut_file(void) {
    struct mapped mapped;
    int index;
    map(&mapped);
    CHECK_INT(guard(&mapped, &index), MU_OK);
    mapped.base[0] = 1;
    CHECK_INT(mu_page_guard_replaced(index), 0);
    CHECK_INT(ftruncate(mapped.fd, 0), 0);
    mapped.base[mapped.bytes - 1] = 2;
    CHECK_INT(mu_page_guard_replaced(index), 1);
    CHECK_INT(mapped.base[mapped.bytes - 1], 2);
    CHECK_INT(mapped.base[mapped.bytes - 2], FILLED_WITH);
    CHECK_INT(access(mapped.path, F_OK), -1);
    mu_page_guard_remove(index);
    unmap(&mapped);
}

/* A place that is free again is given to the next one. */
static void test_more_than_there_are_places(void) {
    struct mapped mapped;
    map(&mapped);
    for (int i = 0; i <= MU_GUARDED_MAX; i++) {
        int index;
        CHECK_INT(guard(&mapped, &index), MU_OK);
        mu_page_guard_remove(index);
    }
    mu_page_guard_remove(MU_GUARD_NONE);
    CHECK_INT(mu_page_guard_replaced(MU_GUARD_NONE), 0);
    unmap(&mapped);
}

/* What is not in the table any more ends the process, as it does without a guard. */
static void test_after_it(void) {
    struct mapped mapped;
    int index, status = 0;
    map(&mapped);
    CHECK_INT(guard(&mapped, &index), MU_OK);
    mu_page_guard_remove(index);
    pid_t child = fork();
    if (child == 0) {
        _exit(ftruncate(mapped.fd, 0) == 0 ? *(volatile uint8_t *)mapped.base : 1);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
    unmap(&mapped);
}

int main(void) {
    test_a_cut_file();
    test_more_than_there_are_places();
    test_after_it();
    return check_report();
}
