/* The control file: what is read, when, and what is refused. */
#include "capture/control.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/check.h"

struct place {
    char directory[64];
    char path[128];
    struct mu_control control;
};

static void start(struct place *place) {
    snprintf(place->directory, sizeof(place->directory), "/tmp/mu-test-XXXXXX");
    CHECK(mkdtemp(place->directory) != NULL);
    snprintf(place->path, sizeof(place->path), "%s/" MU_CONTROL_NAME, place->directory);
    memset(&place->control, 0, sizeof(place->control));
    mu_control_init(&place->control);
}

static void end(struct place *place) {
    mu_control_release(&place->control);
    unlink(place->path);
    CHECK_INT(rmdir(place->directory), 0);
}

/* Replaces the file, so that it has another inode. */
static void write_file(const struct place *place, const char *text) {
    char temporary[160];
    snprintf(temporary, sizeof(temporary), "%s.tmp", place->path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL, 0644);
    CHECK_INT(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    CHECK_INT(rename(temporary, place->path), 0);
}

static void check_taken(struct place *place, const char *wanted, bool at_start) {
    struct mu_control_text text = {0};
    CHECK(mu_control_calls(&place->control));
    if (CHECK(mu_control_take(&place->control, &text))) {
        CHECK_INT(text.trouble, MU_CONTROL_FINE);
        CHECK_INT(text.length, strlen(wanted));
        CHECK_BYTES(text.bytes, wanted, strlen(wanted));
        CHECK_INT(text.at_start, at_start);
    }
    free(text.bytes);
}

static void check_nothing(struct place *place) {
    struct mu_control_text text;
    CHECK(!mu_control_calls(&place->control));
    CHECK(!mu_control_take(&place->control, &text));
}

static void check_trouble(struct place *place, enum mu_control_trouble trouble) {
    struct mu_control_text text = {0};
    mu_control_poll(&place->control);
    CHECK(mu_control_take(&place->control, &text));
    CHECK_INT(text.trouble, trouble);
    CHECK(text.bytes == NULL);
    mu_control_poll(&place->control); /* said once */
    check_nothing(place);
}

static void test_a_file_is_read_when_it_changes(void) {
    struct place place;
    start(&place);
    mu_control_listen(&place.control, true);
    mu_control_begin(&place.control, place.directory);
    check_nothing(&place);
    write_file(&place, "one");
    check_nothing(&place);
    mu_control_poll(&place.control);
    check_taken(&place, "one", false);
    mu_control_poll(&place.control);
    check_nothing(&place);
    write_file(&place, "two");
    mu_control_poll(&place.control);
    write_file(&place, "three");
    mu_control_poll(&place.control);
    check_taken(&place, "three", false);
    check_nothing(&place);
    end(&place);
}

static void test_what_was_there_first_is_told_apart(void) {
    struct place place;
    start(&place);
    write_file(&place, "old");
    mu_control_begin(&place.control, place.directory);
    check_nothing(&place); /* nobody listens */
    mu_control_listen(&place.control, true);
    write_file(&place, "new");
    mu_control_poll(&place.control);
    check_taken(&place, "old", true);
    check_taken(&place, "new", false);
    check_nothing(&place);
    mu_control_begin(&place.control, "");
    write_file(&place, "newer");
    mu_control_poll(&place.control);
    check_nothing(&place);
    mu_control_begin(&place.control, place.directory);
    check_taken(&place, "newer", true);
    end(&place);
}

/* As when the drain thread comes between a move and its poll. */
static void test_whoever_polls_first_finds_what_was_there(void) {
    struct place place;
    start(&place);
    write_file(&place, "old");
    mu_control_listen(&place.control, true);
    snprintf(place.control.directory, sizeof(place.control.directory), "%s", place.directory);
    place.control.user = geteuid();
    place.control.polled = false;
    mu_control_poll(&place.control);
    mu_control_poll(&place.control);
    check_taken(&place, "old", true);
    check_nothing(&place);
    end(&place);
}

static void test_only_files_of_ours_are_read(void) {
    struct place place;
    start(&place);
    mu_control_listen(&place.control, true);
    mu_control_begin(&place.control, place.directory);
    CHECK_INT(mkfifo(place.path, 0644), 0);
    check_trouble(&place, MU_CONTROL_NOT_A_FILE);
    unlink(place.path);
    CHECK_INT(symlink("/etc/passwd", place.path), 0);
    check_trouble(&place, MU_CONTROL_NOT_A_FILE);
    unlink(place.path);
    write_file(&place, "");
    CHECK_INT(truncate(place.path, MU_CONTROL_BYTES_MAX + 1), 0);
    check_trouble(&place, MU_CONTROL_TOO_LARGE);
    CHECK_INT(truncate(place.path, MU_CONTROL_BYTES_MAX), 0);
    struct mu_control_text text = {0};
    mu_control_poll(&place.control);
    CHECK(mu_control_take(&place.control, &text));
    CHECK_INT(text.length, MU_CONTROL_BYTES_MAX);
    free(text.bytes);
    CHECK_INT(chmod(place.path, 0620), 0);
    check_trouble(&place, MU_CONTROL_WRITABLE);
    CHECK_INT(chmod(place.path, 0602), 0);
    check_trouble(&place, MU_CONTROL_WRITABLE);
    if (geteuid() == 0) {
        CHECK_INT(chown(place.path, 12345, 12345), 0);
        check_trouble(&place, MU_CONTROL_STRANGER);
    } else {
        printf("(not root: no file of another user) ");
    }
    end(&place);
}

static void test_steps_are_watched_apart(void) {
    struct place place;
    start(&place);
    mu_control_listen(&place.control, true);
    mu_control_begin(&place.control, place.directory);
    mu_control_watch_steps(&place.control, true);
    CHECK(mu_control_calls(&place.control));
    write_file(&place, "one");
    mu_control_poll(&place.control);
    mu_control_watch_steps(&place.control, false);
    check_taken(&place, "one", false);
    check_nothing(&place);
    end(&place);
}

/* Is done with what begins with "done". */
static bool take_done(void *context, const struct mu_control_text *text) {
    ++*(int *)context;
    return text->length >= 4 && memcmp(text->bytes, "done", 4) == 0;
}

static void test_what_the_listener_is_done_with_holds_up_no_step(void) {
    struct place place;
    int heard = 0;
    start(&place);
    mu_control_set_listener(&place.control, take_done, &heard);
    mu_control_listen(&place.control, true);
    write_file(&place, "done 1");
    mu_control_begin(&place.control, place.directory);
    CHECK(!mu_control_calls(&place.control));
    write_file(&place, "new");
    mu_control_poll(&place.control);
    CHECK(mu_control_calls(&place.control));
    write_file(&place, "done 22");
    mu_control_poll(&place.control);
    CHECK_INT(heard, 3);
    check_taken(&place, "new", false);
    check_nothing(&place);
    end(&place);
}

static void *poll_often(void *argument) {
    for (int i = 0; i < 300; i++) {
        mu_control_poll(argument);
    }
    return NULL;
}

static void test_threads(void) {
    struct place place;
    pthread_t poller;
    start(&place);
    mu_control_listen(&place.control, true);
    mu_control_begin(&place.control, place.directory);
    CHECK_INT(pthread_create(&poller, NULL, poll_often, &place.control), 0);
    for (int i = 0; i < 100; i++) {
        struct mu_control_text text = {0};
        write_file(&place, i % 2 == 0 ? "even" : "odd");
        if (mu_control_calls(&place.control) && mu_control_take(&place.control, &text)) {
            free(text.bytes);
        }
        if (i % 10 == 9) {
            mu_control_begin(&place.control, place.directory);
        }
    }
    pthread_join(poller, NULL);
    end(&place);
}

int main(void) {
    test_a_file_is_read_when_it_changes();
    test_what_was_there_first_is_told_apart();
    test_whoever_polls_first_finds_what_was_there();
    test_only_files_of_ours_are_read();
    test_steps_are_watched_apart();
    test_what_the_listener_is_done_with_holds_up_no_step();
    test_threads();
    return check_report();
}
