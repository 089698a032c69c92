/* A process is killed while its journal becomes one in the next directory: before the new file is a
 * journal, and before the old one is none any more. Whoever takes over first, nothing is lost and
 * nothing stands twice. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "journal/journal_reader.h"
#include "tests/stages/recorder_fixture.h"

enum moment {
    BEFORE_THE_NEW_MAGIC,
    BETWEEN_THE_MAGICS,
    MOMENTS,
};

static struct fixture left, next;
static struct mu_timer timer;
static struct mu_recorder *victim; /* NULL in who is not to be killed */
static enum moment moment;
static bool alone;
static _Atomic int *finished; /* shared with the victim */

/* In place of libc's: the last that is called before the new file becomes a journal. A page that
 * cannot be written ends the process at the store that makes the old file none. */
pid_t getpid(void) {
    pid_t pid = (pid_t)syscall(SYS_getpid);
    if (victim != NULL && alone && moment == BEFORE_THE_NEW_MAGIC) {
        kill(pid, SIGKILL);
    } else if (victim != NULL && alone) {
        signal(SIGSEGV, SIG_DFL);
        CHECK_INT(mprotect(victim->journal.base, MU_JOURNAL_HEADER_BYTES, PROT_READ), 0);
    }
    return pid;
}

static void record_one(void) {
    atomic_store(&timer.step, atomic_load(finished));
    stage_start(&timer, "alive");
    stage_stop(&timer, "alive");
    atomic_fetch_add(finished, 1);
}

/* Records that come after the last drain in the old directory. */
static void begin_alone(void *owner) {
    (void)owner;
    record_one();
    alone = true;
}

static void end_alone(void *owner) {
    (void)owner;
    alone = false;
}

static void die_in_a_move(void) {
    const struct mu_alone gil = {begin_alone, end_alone, NULL};
    struct mu_recorder *recorder;
    CHECK_INT(mu_recorder_create(&recorder, NULL), MU_OK);
    CHECK_INT(mu_timer_init(&timer, recorder, "", NULL), MU_OK);
    left.recorder = next.recorder = recorder;
    fixture_open(&left);
    record_one();
    victim = recorder;
    struct mu_output_config config = fixture_config(&next);
    mu_error_kept(mu_recorder_open_with(recorder, &config, &gil, &next.report, NULL));
    _exit(0);
}

static int killed_moves(void) {
    pid_t child = fork();
    if (child == 0) {
        die_in_a_move();
    }
    int status;
    CHECK_INT(waitpid(child, &status, 0), child);
    return CHECK(WIFSIGNALED(status));
}

/* The name of the only journal of the directory; empty when there is none. */
static void find_journal(const struct fixture *fixture, char path[MU_PATH_BYTES]) {
    DIR *directory = opendir(fixture->directory);
    path[0] = '\0';
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        if (strstr(entry->d_name, ".journal") != NULL) {
            CHECK_STR(path, "");
            snprintf(path, MU_PATH_BYTES, "%s/%s", fixture->directory, entry->d_name);
        }
    }
    closedir(directory);
}

static bool is_readable(const struct fixture *fixture) {
    struct mu_journal_image image;
    char path[MU_PATH_BYTES];
    find_journal(fixture, path);
    bool readable = mu_journal_image_read(&image, path, NULL) == MU_OK;
    if (readable) {
        mu_journal_image_close(&image);
    }
    return readable;
}

static void take_over(struct fixture *fixture) {
    char path[MU_PATH_BYTES];
    CHECK_INT(mu_recorder_create(&fixture->recorder, NULL), MU_OK);
    fixture_open(fixture);
    CHECK_INT(mu_recorder_close(fixture->recorder, NULL), MU_OK);
    mu_recorder_destroy(fixture->recorder);
    find_journal(fixture, path);
    CHECK_STR(path, "");
}

static void check_rows(void) {
    char *before = fixture_csv(&left), *after = fixture_csv(&next);
    CHECK(atomic_load(finished) > 2);
    for (int step = 0; step < atomic_load(finished); step++) {
        char row[64];
        snprintf(row, sizeof(row), ",host-a,%d,alive,END,", step);
        CHECK_INT(count_of(before, row) + count_of(after, row), 1);
    }
    free(before);
    free(after);
}

static void test_a_kill(enum moment at, bool new_first) {
    fixture_directory(&left);
    fixture_directory(&next);
    atomic_store(finished, 0);
    moment = at;
    if (killed_moves()) {
        CHECK_INT(is_readable(&left), at == BEFORE_THE_NEW_MAGIC);
        CHECK_INT(is_readable(&next), at == BETWEEN_THE_MAGICS);
        take_over(new_first ? &next : &left);
        take_over(new_first ? &left : &next);
        check_rows();
    }
    fixture_remove(&left);
    fixture_remove(&next);
}

int main(void) {
    finished =
        mmap(NULL, sizeof(*finished), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!CHECK(finished != MAP_FAILED)) {
        return check_report();
    }
    for (int at = 0; at < MOMENTS; at++) {
        test_a_kill((enum moment)at, false);
        test_a_kill((enum moment)at, true);
    }
    return check_report();
}
