/* The files of a process's rows, when others have files of their own in the same directory. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

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
    CHECK_INT(mu_output_rotate(&output, &err), MU_ERR_IO);
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
    CHECK_INT(mu_output_rotate(&output, &err), MU_ERR_IO);
    limit_files(RLIM_INFINITY);
    CHECK_INT(mu_output_write(&output, "b\n", 2, &err), MU_OK);
    CHECK(has("profile_rank_0.csv", csv("a\nb\n")));
    CHECK(mu_output_is_in_place(&output));
    CHECK_INT(mu_output_rotate(&output, &err), MU_OK);
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

int main(void) {
    test_a_part_of_another_process_is_not_replaced();
    test_a_rotation_that_finds_no_room_is_undone();
    test_what_is_no_csv_stays();
    test_a_torn_header_is_written_anew();
    return check_report();
}
