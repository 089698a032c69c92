#include "base/error.h"

#include <errno.h>

#include "tests/check.h"

static void test_set(void) {
    struct mu_error err = {.sys_errno = EIO};
    CHECK_INT(mu_error_set(&err, MU_ERR_FORMAT, "line %d: %s", 7, "no comma"), MU_ERR_FORMAT);
    CHECK_INT(err.code, MU_ERR_FORMAT);
    CHECK_INT(err.sys_errno, 0);
    CHECK_STR(err.message, "line 7: no comma");
}

static void test_set_cuts_long_message(void) {
    struct mu_error err;
    char text[2 * MU_ERROR_MESSAGE_MAX];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    mu_error_set(&err, MU_ERR_LIMIT, "%s", text);
    CHECK_INT(strlen(err.message), MU_ERROR_MESSAGE_MAX - 1);
    CHECK_BYTES(err.message, text, MU_ERROR_MESSAGE_MAX - 1);
}

static void test_null_error(void) {
    CHECK_INT(mu_error_set(NULL, MU_ERR_STATE, "%d", 1), MU_ERR_STATE);
    errno = ENOENT;
    CHECK_INT(mu_error_sys(NULL, "open", "x"), MU_ERR_IO);
    CHECK_INT(mu_error_no_memory(NULL, "a ring"), MU_ERR_NO_MEMORY);
}

static void test_sys(void) {
    struct mu_error err;
    errno = ENOENT;
    CHECK_INT(mu_error_sys(&err, "open", "/nowhere"), MU_ERR_IO);
    CHECK_INT(err.sys_errno, ENOENT);
    CHECK_INT(errno, ENOENT);
    CHECK_STR(err.message, "open /nowhere: No such file or directory");
    errno = EBADF;
    mu_error_sys(&err, "fsync", NULL);
    CHECK_STR(err.message, "fsync: Bad file descriptor");
}

static void test_no_memory(void) {
    struct mu_error err;
    CHECK_INT(mu_error_no_memory(&err, "a ring"), MU_ERR_NO_MEMORY);
    CHECK_STR(err.message, "out of memory: a ring");
    errno = ENOMEM;
    CHECK_INT(mu_error_sys(&err, "mmap", NULL), MU_ERR_NO_MEMORY);
    CHECK_INT(err.sys_errno, ENOMEM);
}

int main(void) {
    test_set();
    test_set_cuts_long_message();
    test_null_error();
    test_sys();
    test_no_memory();
    return check_report();
}
