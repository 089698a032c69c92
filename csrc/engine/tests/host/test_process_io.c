/* What a process has read from storage, by files written by hand. */
#include "host/process_io.h"

#include <fcntl.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/host/tree.h"

static struct mu_proc_file opened(const char *text) {
    char path[TREE_TEXT_BYTES];
    tree_write("io", text);
    snprintf(path, sizeof(path), "%s/io", tree_folder);
    return mu_proc_open(path);
}

static void test_what_was_read(void) {
    uint64_t bytes = 7;
    struct mu_proc_file file =
        opened("rchar: 99\nwchar: 5\nsyscr: 3\nsyscw: 1\nread_bytes: 4096\nwrite_bytes: 8\n"
               "cancelled_write_bytes: 0\n");
    CHECK(mu_process_io_read_bytes(&file, &bytes));
    CHECK_INT(bytes, 4096);
    mu_proc_close(&file);
    CHECK(!mu_process_io_read_bytes(&file, &bytes));
}

/* Without the kernel's accounting of storage only the first four lines are there. */
static void test_what_is_not_there_is_not_measured(void) {
    uint64_t bytes = 7;
    struct mu_proc_file file = opened("rchar: 99\nwchar: 5\nsyscr: 3\nsyscw: 1\n");
    CHECK(!mu_process_io_read_bytes(&file, &bytes));
    mu_proc_close(&file);
    file = mu_proc_open_of(-1, "io");
    CHECK_INT(file.fd, -1);
    CHECK(!mu_process_io_read_bytes(&file, &bytes));
    CHECK_INT(bytes, 7);
    mu_proc_close(&file);
}

static bool is_open(int fd) {
    return fcntl(fd, F_GETFD) != -1;
}

/* As a program does that closes all descriptors and opens files of its own. */
static void test_another_file_under_the_number_is_left_alone(void) {
    struct mu_proc_file file = opened("read_bytes: 1\n");
    int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK_INT(dup2(other, file.fd), file.fd);
    int number = file.fd;
    mu_proc_close(&file);
    CHECK_INT(file.fd, -1);
    CHECK(is_open(number));
    close(number);
    close(other);
}

static void test_no_file_is_under_the_number_of_a_closed_stream(void) {
    int kept = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 10);
    close(STDIN_FILENO);
    struct mu_proc_file file = opened("read_bytes: 1\n");
    CHECK(file.fd > STDERR_FILENO);
    CHECK(!is_open(STDIN_FILENO));
    mu_proc_close(&file);
    if (kept >= 0) {
        CHECK_INT(dup2(kept, STDIN_FILENO), STDIN_FILENO);
        close(kept);
    }
}

int main(void) {
    tree_make();
    test_what_was_read();
    test_what_is_not_there_is_not_measured();
    test_another_file_under_the_number_is_left_alone();
    test_no_file_is_under_the_number_of_a_closed_stream();
    tree_remove();
    return check_report();
}
