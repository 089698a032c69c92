/* The directory for journals on this machine, among names that other users have taken. */
#include <stdlib.h>
#include <sys/vfs.h>

#include "profile_files/placement.h"
#include "tests/host/tree.h"

enum { ANOTHER = 12345 };

/* In place of libc's: only the folder of the test is on a local file system, and not /dev/shm. */
int statfs(const char *path, struct statfs *status) {
    *status = (struct statfs){.f_type = strcmp(path, tree_folder) == 0 ? 0xEF53 : 0x6969};
    return 0;
}

static void path_of(const char *number, char *path, size_t size) {
    snprintf(path, size, "%s/my_utils-%u%s", tree_folder, (unsigned)geteuid(), number);
}

static void check_directory(const char *number) {
    char path[128], want[128];
    struct mu_error err;
    struct stat status;
    path_of(number, want, sizeof(want));
    CHECK_INT(mu_placement_local_directory(path, sizeof(path), &err), MU_OK);
    CHECK_STR(path, want);
    CHECK(lstat(path, &status) == 0 && S_ISDIR(status.st_mode));
    CHECK_INT(status.st_mode & 0777, 0700);
    CHECK(status.st_uid == geteuid());
}

static void make_directory(const char *number, mode_t mode) {
    char path[128];
    path_of(number, path, sizeof(path));
    CHECK(mkdir(path, 0700) == 0 && chmod(path, mode) == 0);
}

static void test_what_is_not_ours_is_left_alone(void) {
    char first[128], link[128], others[128];
    path_of("", first, sizeof(first));
    path_of("-1", link, sizeof(link));
    path_of("-3", others, sizeof(others));
    tree_write(first + strlen(tree_folder) + 1, "a file\n");
    check_directory("-1");
    CHECK(rmdir(link) == 0 && symlink("/tmp", link) == 0);
    check_directory("-2");
    make_directory("-3", 0700);
    if (geteuid() == 0) {
        path_of("-2", link, sizeof(link));
        CHECK(chown(link, ANOTHER, ANOTHER) == 0 && chown(others, ANOTHER, ANOTHER) == 0);
        check_directory("-4");
    }
}

static void test_a_directory_of_ours_is_used_again(void) {
    make_directory("", 0770);
    make_directory("-1", 0702);
    check_directory("-2");
    check_directory("-2");
}

int main(void) {
    void (*const tests[])(void) = {
        test_what_is_not_ours_is_left_alone,
        test_a_directory_of_ours_is_used_again,
    };
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        tree_make();
        setenv("TMPDIR", tree_folder, 1);
        tests[i]();
        tree_remove();
    }
    return check_report();
}
