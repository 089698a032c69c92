/* The files of a process's rows, when others have files of their own in the same directory. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "csv/csv_writer.h"
#include "profile_files/output.h"
#include "tests/stages/recorder_fixture.h"

static struct fixture fixture;

static void path_of(const char *name, char path[128]) {
    snprintf(path, 128, "%s/%s", fixture.directory, name);
}

static void put(const char *name, const char *text) {
    char path[128];
    path_of(name, path);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0);
    fclose(file);
}

static bool has(const char *name, const char *text) {
    char path[128], found[256];
    path_of(name, path);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return false;
    }
    size_t length = fread(found, 1, sizeof(found) - 1, file);
    fclose(file);
    found[length] = '\0';
    return strcmp(found, text) == 0;
}

/* What the system does here, in place of libc's functions of these names. */
static struct {
    bool refuses_flags;   /* of a renaming, as NFS does */
    bool another_is_fast; /* takes the name of a CSV that is renamed away */
    int anothers_csv;     /* the file of that process, locked; -1 before */
    bool hides_opened;    /* the second fstat of a file that was opened fails, and so on */
    int asked;            /* calls of fstat since */
} disk = {.anothers_csv = -1};

enum { ASKED_MAX = 1000 };

static void name_is_free(void) {
    char path[128];
    path_of("profile_rank_0.csv", path);
    if (disk.another_is_fast && disk.anothers_csv < 0) {
        disk.anothers_csv = open(path, O_RDWR | O_CREAT | O_EXCL, 0644);
        CHECK(disk.anothers_csv >= 0 && write(disk.anothers_csv, "another's", 9) == 9);
        CHECK_INT(flock(disk.anothers_csv, LOCK_EX | LOCK_NB), 0);
    }
}

long syscall(long number, ...) {
    va_list given;
    va_start(given, number);
    int from_folder = va_arg(given, int);
    const char *from = va_arg(given, const char *);
    int to_folder = va_arg(given, int);
    const char *to = va_arg(given, const char *);
    unsigned flags = va_arg(given, unsigned);
    va_end(given);
    CHECK_INT(number, SYS_renameat2); /* the only one that these files make */
    if (disk.refuses_flags) {
        errno = EINVAL;
        return -1;
    }
    int rc = renameat2(from_folder, from, to_folder, to, flags);
    if (rc == 0) {
        name_is_free();
    }
    return rc;
}

int unlink(const char *path) {
    int rc = unlinkat(AT_FDCWD, path, 0);
    if (rc == 0 && disk.refuses_flags) {
        name_is_free();
    }
    return rc;
}

int fstat(int fd, struct stat *status) {
    int rc = fstatat(fd, "", status, AT_EMPTY_PATH);
    if (rc == 0 && disk.hides_opened && status->st_nlink > 0 && disk.asked++ % 2 == 1 &&
        disk.asked < ASKED_MAX) {
        errno = EIO;
        rc = -1;
    }
    return rc;
}

static void end(struct mu_output *output) {
    mu_output_free(output);
    fixture_remove(&fixture);
}

static int take(struct mu_output *output, struct mu_error *err) {
    int worker;
    mu_output_init(output);
    output->kind = MU_OUTPUT_FILE;
    output->max_csv_bytes = 1;
    return mu_output_take_csv(output, fixture.directory, 0, &worker, err);
}

/* The header, then `rows`. */
static const char *csv(const char *rows) {
    static char text[256];
    snprintf(text, sizeof(text), "%.*s%s", (int)mu_csv_header_length, mu_csv_header, rows);
    return text;
}

static void test_a_part_of_another_process_is_not_replaced(void) {
    struct mu_output output;
    struct mu_error err = {0};
    fixture_directory(&fixture);
    CHECK_INT(take(&output, &err), MU_OK);
    CHECK_INT(mu_output_write(&output, "a\n", 2, &err), MU_OK);
    put("profile_rank_0.part0001.csv", "another's");
    CHECK_INT(mu_output_rotate(&output, "", 0, &err), MU_ERR_IO);
    CHECK_INT(err.sys_errno, EEXIST);
    CHECK_INT(mu_output_write(&output, "b\n", 2, &err), MU_OK);
    CHECK(has("profile_rank_0.part0001.csv", "another's"));
    CHECK(has("profile_rank_0.csv", csv("a\nb\n")));
    end(&output);
}

static void limit_files(rlim_t bytes) {
    struct rlimit limit;
    CHECK_INT(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void test_a_rotation_that_finds_no_room_is_undone(void) {
    struct mu_output output;
    struct mu_error err = {0};
    signal(SIGXFSZ, SIG_IGN);
    fixture_directory(&fixture);
    CHECK_INT(take(&output, &err), MU_OK);
    CHECK_INT(mu_output_write(&output, "a\n", 2, &err), MU_OK);
    limit_files(0);
    CHECK_INT(mu_output_rotate(&output, "", 0, &err), MU_ERR_IO);
    limit_files(RLIM_INFINITY);
    CHECK_INT(mu_output_write(&output, "b\n", 2, &err), MU_OK);
    CHECK(has("profile_rank_0.csv", csv("a\nb\n")));
    CHECK(mu_output_is_in_place(&output));
    CHECK_INT(mu_output_rotate(&output, "", 0, &err), MU_OK);
    CHECK(has("profile_rank_0.part0001.csv", csv("a\nb\n")));
    CHECK(has("profile_rank_0.csv", csv("")));
    end(&output);
}

static void test_what_is_no_csv_stays(void) {
    static const char *const texts[] = {"of mine, without a line end", "of mine\n", "of mine\nx"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        struct mu_output output;
        struct mu_error err = {0};
        fixture_directory(&fixture);
        put("profile_rank_0.csv", texts[i]);
        CHECK_INT(take(&output, &err), MU_ERR_FORMAT);
        CHECK(has("profile_rank_0.csv", texts[i]));
        end(&output);
    }
}

static void test_a_torn_header_is_written_anew(void) {
    struct mu_output output;
    struct mu_error err = {0};
    char torn[16] = "";
    fixture_directory(&fixture);
    memcpy(torn, mu_csv_header, sizeof(torn) - 1);
    put("profile_rank_0.csv", torn);
    CHECK_INT(take(&output, &err), MU_OK);
    CHECK(has("profile_rank_0.csv", csv("")));
    end(&output);
}

/* Another process has the name before the next CSV is made: the rotation fails, and what it renamed
 * may not go back over that process's file. */
static void check_that_a_taken_name_is_not_taken_back(bool refuses_flags) {
    struct mu_output output;
    struct mu_error err = {0};
    fixture_directory(&fixture);
    CHECK_INT(take(&output, &err), MU_OK);
    CHECK_INT(mu_output_write(&output, "a\n", 2, &err), MU_OK);
    disk.refuses_flags = refuses_flags;
    disk.another_is_fast = true;
    CHECK_INT(mu_output_rotate(&output, "", 0, &err), MU_ERR_STATE);
    CHECK(disk.anothers_csv >= 0);
    CHECK(has("profile_rank_0.csv", "another's"));
    CHECK_INT(mu_output_write(&output, "b\n", 2, &err), MU_OK);
    CHECK(has("profile_rank_0.part0001.csv", csv("a\nb\n")));
    CHECK(has("profile_rank_0.csv", "another's"));
    CHECK(mu_output_is_in_place(&output));
    CHECK(!mu_output_is_full(&output)); /* it has a name of a part, and stays the last one */
    disk.refuses_flags = disk.another_is_fast = false;
    close(disk.anothers_csv);
    disk.anothers_csv = -1;
    end(&output);
}

static void test_a_name_that_another_process_took_is_not_taken_back(void) {
    check_that_a_taken_name_is_not_taken_back(false);
    check_that_a_taken_name_is_not_taken_back(true);
}

/* A process that finds the name free between the renaming and the next CSV gives it back. */
static void test_a_name_in_rotation_is_left_to_its_process(void) {
    struct mu_output output, child;
    struct mu_error err = {0};
    int worker;
    char path[128], part[128];
    fixture_directory(&fixture);
    CHECK_INT(take(&output, &err), MU_OK);
    path_of("profile_rank_0.csv", path);
    path_of("profile_rank_0.part0001.csv", part);
    CHECK_INT(rename(path, part), 0);
    mu_output_init(&child);
    CHECK_INT(mu_output_take_csv(&child, fixture.directory, 0, &worker, &err), MU_OK);
    CHECK_INT(worker, 1);
    CHECK(has("profile_rank_0.csv", ""));
    CHECK(has("profile_rank_0.w1.csv", csv("")));
    mu_output_free(&child);
    end(&output);
}

enum { ROTATIONS = 300 };

/* Opens and closes the same directory until it is killed. */
static void take_for_ever(void) {
    struct mu_output output;
    struct mu_error err = {0};
    for (;;) {
        mu_error_kept(take(&output, &err));
        mu_output_free(&output);
    }
}

static void test_every_rotation_beside_one_that_takes_names_succeeds(void) {
    struct mu_output output;
    struct mu_error err = {0};
    fixture_directory(&fixture);
    CHECK_INT(take(&output, &err), MU_OK);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        take_for_ever();
    }
    for (int i = 0; i < ROTATIONS; i++) {
        CHECK_INT(mu_output_write(&output, "a\n", 2, &err), MU_OK);
        if (!CHECK_INT(mu_output_rotate(&output, "", 0, &err), MU_OK)) {
            fprintf(stderr, "%d: %s\n", i, err.message);
            break;
        }
    }
    CHECK_INT(kill(child, SIGKILL), 0);
    CHECK_INT(waitpid(child, NULL, 0), child);
    CHECK_INT(output.part, ROTATIONS);
    end(&output);
}

static void test_a_rotation_without_the_flags_of_a_renaming(void) {
    struct mu_output output;
    struct mu_error err = {0};
    fixture_directory(&fixture);
    CHECK_INT(take(&output, &err), MU_OK);
    CHECK_INT(mu_output_write(&output, "a\n", 2, &err), MU_OK);
    disk.refuses_flags = true;
    CHECK_INT(mu_output_rotate(&output, "", 0, &err), MU_OK);
    disk.refuses_flags = false;
    CHECK(has("profile_rank_0.part0001.csv", csv("a\n")));
    CHECK(has("profile_rank_0.csv", csv("")));
    end(&output);
}

static void test_a_csv_whose_name_cannot_be_checked_is_an_error(void) {
    struct mu_output output;
    struct mu_error err = {0};
    fixture_directory(&fixture);
    disk.hides_opened = true;
    CHECK_INT(take(&output, &err), MU_ERR_IO);
    CHECK_INT(disk.asked, 2);
    CHECK_INT(err.sys_errno, EIO);
    CHECK(strstr(err.message, "stat") != NULL);
    CHECK(strstr(err.message, "profile_rank_0.csv") != NULL);
    disk.hides_opened = false;
    end(&output);
}

int main(void) {
    test_a_part_of_another_process_is_not_replaced();
    test_a_name_that_another_process_took_is_not_taken_back();
    test_a_name_in_rotation_is_left_to_its_process();
    test_every_rotation_beside_one_that_takes_names_succeeds();
    test_a_rotation_without_the_flags_of_a_renaming();
    test_a_csv_whose_name_cannot_be_checked_is_an_error();
    test_a_rotation_that_finds_no_room_is_undone();
    test_what_is_no_csv_stays();
    test_a_torn_header_is_written_anew();
    return check_report();
}
