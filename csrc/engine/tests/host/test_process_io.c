/* What a process has read from storage, by files written by hand. */
#include "host/process_io.h"

#include <fcntl.h>

#include "host/proc_text.h"
#include "tests/check.h"
#include "tests/host/tree.h"

static int opened(const char *text) {
    char path[TREE_TEXT_BYTES];
    tree_write("io", text);
    snprintf(path, sizeof(path), "%s/io", tree_folder);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static void test_what_was_read(void) {
    uint64_t bytes = 7;
    int file = opened("rchar: 99\nwchar: 5\nsyscr: 3\nsyscw: 1\nread_bytes: 4096\nwrite_bytes: 8\n"
                      "cancelled_write_bytes: 0\n");
    CHECK(mu_process_io_read_bytes(file, &bytes));
    CHECK_INT(bytes, 4096);
    mu_proc_close(file);
}

/* Without the kernel's accounting of storage only the first four lines are there. */
static void test_what_is_not_there_is_not_measured(void) {
    uint64_t bytes = 7;
    int file = opened("rchar: 99\nwchar: 5\nsyscr: 3\nsyscw: 1\n");
    CHECK(!mu_process_io_read_bytes(file, &bytes));
    mu_proc_close(file);
    CHECK(!mu_process_io_read_bytes(-1, &bytes));
    CHECK_INT(bytes, 7);
    CHECK_INT(mu_proc_open(-1, "io"), -1);
}

int main(void) {
    tree_make();
    test_what_was_read();
    test_what_is_not_there_is_not_measured();
    tree_remove();
    return check_report();
}
