/* The journal as its writer leaves it, and readers that read it while it is written. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "journal/journal.h"
#include "journal/journal_reader.h"
#include "stages/drain.h"
#include "tests/stages/recorder_fixture.h"

static void journal_path(const struct fixture *fixture, char path[128]) {
    snprintf(path, 128, "%s/rank_0.1.2.journal", fixture->directory);
}

static void test_moves_keep_what_is_there(void) {
    struct fixture fixture;
    struct mu_journal journal;
    char path[128];
    uint32_t name, chunk;
    size_t length;
    fixture_directory(&fixture);
    journal_path(&fixture, path);
    CHECK_INT(mu_journal_init_memory(&journal, true, NULL), MU_OK);
    CHECK_INT(mu_journal_add_string(&journal, "forward", 7, &name, NULL), MU_OK);
    CHECK_INT(mu_journal_claim_chunk(&journal, &chunk, NULL), MU_OK);
    mu_chunk_ring(mu_journal_chunk(&journal, chunk))[5].node = 55;
    uint8_t *base = journal.base;
    CHECK_INT(mu_journal_attach(&journal, path, NULL), MU_OK);
    CHECK(journal.base == base);
    CHECK(mu_journal_is_held(path));
    for (int moves = 0; moves < 2; moves++) {
        CHECK_BYTES(mu_journal_string(&journal, name, &length), "forward", 7);
        CHECK_INT(length, 7);
        CHECK_INT(mu_chunk_ring(mu_journal_chunk(&journal, chunk))[5].node, 55);
        CHECK_INT(mu_journal_detach(&journal, NULL), MU_OK);
    }
    struct stat status;
    CHECK(stat(path, &status) != 0);
    mu_journal_release(&journal);
    fixture_remove(&fixture);
}

static void test_a_file_that_exists_is_left_alone(void) {
    struct fixture fixture;
    struct mu_journal journal;
    struct mu_error err = {0};
    char path[128];
    fixture_directory(&fixture);
    journal_path(&fixture, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && close(fd) == 0);
    CHECK_INT(mu_journal_init_memory(&journal, false, NULL), MU_OK);
    CHECK_INT(mu_journal_attach(&journal, path, &err), MU_ERR_IO);
    CHECK_INT(err.sys_errno, EEXIST);
    CHECK_INT(journal.fd, -1);
    CHECK_INT(access(path, F_OK), 0);
    mu_journal_release(&journal);
    fixture_remove(&fixture);
}

static void test_strings_up_to_the_limit(void) {
    struct mu_journal journal;
    struct mu_error err = {0};
    char text[MU_STRING_BYTES_MAX + 1];
    uint32_t index = 0;
    size_t length;
    memset(text, 'n', sizeof(text));
    CHECK_INT(mu_journal_init_memory(&journal, false, NULL), MU_OK);
    CHECK_INT(mu_journal_add_string(&journal, text, sizeof(text), &index, &err), MU_ERR_ARGUMENT);
    for (uint32_t i = 1; i < MU_STRINGS_MAX; i++) {
        CHECK_INT(mu_journal_add_string(&journal, text, MU_STRING_BYTES_MAX, &index, NULL), MU_OK);
        CHECK_INT(index, i);
    }
    CHECK_INT(mu_journal_add_string(&journal, text, 1, &index, &err), MU_ERR_LIMIT);
    CHECK_BYTES(mu_journal_string(&journal, MU_STRINGS_MAX - 1, &length), text,
                MU_STRING_BYTES_MAX);
    mu_journal_release(&journal);
}

static void test_chunks_are_given_out_again(void) {
    struct mu_journal journal;
    struct mu_error err = {0};
    uint32_t index;
    CHECK_INT(mu_journal_init_memory(&journal, false, NULL), MU_OK);
    for (uint32_t i = 0; i < MU_CHUNKS_MAX; i++) {
        CHECK_INT(mu_journal_claim_chunk(&journal, &index, NULL), MU_OK);
        CHECK_INT(index, i);
    }
    CHECK_INT(mu_journal_claim_chunk(&journal, &index, &err), MU_ERR_LIMIT);
    atomic_store(&mu_journal_chunk(&journal, 7)->state, MU_CHUNK_RETIRED);
    CHECK_INT(mu_journal_claim_chunk(&journal, &index, &err), MU_ERR_LIMIT);
    atomic_store(&mu_journal_chunk(&journal, 7)->state, MU_CHUNK_FREE);
    CHECK_INT(mu_journal_claim_chunk(&journal, &index, NULL), MU_OK);
    CHECK_INT(index, 7);
    mu_journal_release(&journal);
}

/* --- readers of a file that is written ------------------------------------------------------ */

static void *ask_who_holds_it(void *argument) {
    const char *path = ((void **)argument)[0];
    const atomic_bool *stop = ((void **)argument)[1];
    while (!atomic_load(stop)) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            flock(fd, LOCK_SH | LOCK_NB);
            close(fd);
        }
    }
    return NULL;
}

/* A reader's lock lasts a moment, and is no reason to go without a journal. */
static void test_readers_do_not_keep_a_journal_from_its_lock(void) {
    struct fixture fixture;
    struct mu_journal journal;
    pthread_t reader;
    atomic_bool stop = false;
    char path[128];
    fixture_directory(&fixture);
    journal_path(&fixture, path);
    void *argument[] = {path, &stop};
    CHECK_INT(pthread_create(&reader, NULL, ask_who_holds_it, argument), 0);
    CHECK_INT(mu_journal_init_memory(&journal, false, NULL), MU_OK);
    for (int i = 0; i < 100; i++) {
        CHECK_INT(mu_journal_attach(&journal, path, NULL), MU_OK);
        CHECK_INT(mu_journal_detach(&journal, NULL), MU_OK);
    }
    atomic_store(&stop, true);
    pthread_join(reader, NULL);
    mu_journal_release(&journal);
    fixture_remove(&fixture);
}

static atomic_bool reader_comes;

/* Takes the place of libc's for this program: the writer's lock comes after the reader's. */
int flock(int fd, int operation) {
    while ((operation & LOCK_EX) != 0 && atomic_load(&reader_comes)) {
        sched_yield();
    }
    return (int)syscall(SYS_flock, fd, operation);
}

static void *hold_for_long(void *path) {
    struct timespec pause = {.tv_nsec = 300000000};
    int fd = -1;
    while (fd < 0) {
        fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    CHECK_INT(flock(fd, LOCK_SH | LOCK_NB), 0);
    atomic_store(&reader_comes, false);
    nanosleep(&pause, NULL);
    close(fd);
    return NULL;
}

static void test_nor_does_one_that_is_kept_from_running(void) {
    struct fixture fixture;
    struct mu_journal journal;
    pthread_t reader;
    char path[128];
    fixture_directory(&fixture);
    journal_path(&fixture, path);
    atomic_store(&reader_comes, true);
    CHECK_INT(pthread_create(&reader, NULL, hold_for_long, path), 0);
    CHECK_INT(mu_journal_init_memory(&journal, false, NULL), MU_OK);
    CHECK_INT(mu_journal_attach(&journal, path, NULL), MU_OK);
    pthread_join(reader, NULL);
    CHECK_INT(mu_journal_detach(&journal, NULL), MU_OK);
    mu_journal_release(&journal);
    fixture_remove(&fixture);
}

enum { PAIRS = 20000, PAIRS_A_DRAIN = 7 };

/* Nodes 1, 2, 3, 4, ...: an odd one outside, an even one inside it. */
static void *write_pairs(void *argument) {
    struct mu_timer *timer = argument;
    struct timespec pause = {.tv_nsec = 20000};
    for (int i = 1; i <= PAIRS; i++) {
        stage_start(timer, "outer");
        stage_start(timer, "inner");
        stage_stop(timer, "inner");
        stage_stop(timer, "outer");
        if (i % PAIRS_A_DRAIN == 0) {
            mu_recorder_drain(timer->recorder, drain_wait_ns);
            nanosleep(&pause, NULL);
        }
    }
    return NULL;
}

struct replayed {
    uint64_t ends;       /* in order */
    uint64_t last_start; /* node */
    uint64_t open[2];    /* nodes of outer and inner, 0 for none */
    int wrong;
};

static void replay_row(struct replayed *replayed, const char *row, const char *end) {
    const char *node_text = memmem(row, (size_t)(end - row), "node_id=", 8);
    if (node_text == NULL) {
        return;
    }
    uint64_t node = strtoull(node_text + 8, NULL, 10);
    bool inner = node % 2 == 0;
    if (memmem(row, (size_t)(end - row), ",START,", 7) != NULL) {
        replayed->wrong += node != replayed->last_start + 1 || replayed->open[inner] != 0;
        replayed->last_start = node;
        replayed->open[inner] = node;
        return;
    }
    uint64_t wanted = replayed->ends % 2 == 0 ? replayed->ends + 2 : replayed->ends;
    replayed->wrong += node != wanted || replayed->open[inner] != node;
    replayed->open[inner] = 0;
    replayed->ends++;
}

static void replay(struct replayed *replayed, const char *text, size_t length) {
    for (const char *at = text, *stop = text + length; at < stop;) {
        const char *end = memchr(at, '\n', (size_t)(stop - at));
        if (end == NULL) {
            replayed->wrong++;
            return;
        }
        replay_row(replayed, at, end);
        at = end + 1;
    }
}

/* One snapshot: the committed part of the CSV and the image's rows are one faultless sequence.
 * Returns the stages that ended, 0 when the writer was too fast for it. */
static uint64_t poll_once(const char *journal) {
    struct mu_journal_image image;
    struct mu_recovered recovered;
    struct mu_csv_writer writer;
    struct replayed replayed = {0};
    char path[4096];
    uint64_t bytes = 0;
    if (!CHECK_INT(mu_journal_image_read(&image, journal, NULL), MU_OK)) {
        return 0;
    }
    mu_journal_image_csv_path(&image, journal, path, sizeof(path));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK_INT(mu_journal_image_csv_prefix(&image, fd, &bytes, NULL), MU_OK);
    char *csv = malloc(bytes);
    CHECK_INT(pread(fd, csv, bytes, 0), bytes);
    mu_csv_writer_init(&writer);
    int code = mu_journal_image_rows(&image, &writer, &recovered, NULL);
    if (code != MU_ERR_STATE) {
        CHECK_INT(code, MU_OK);
        replay(&replayed, csv, bytes);
        replay(&replayed, writer.buffer, writer.length);
        CHECK_INT(replayed.wrong, 0);
        CHECK_INT(recovered.bad_records, 0);
    }
    mu_csv_writer_free(&writer);
    mu_journal_image_close(&image);
    free(csv);
    close(fd);
    return replayed.ends;
}

static void test_a_reader_of_a_running_process_sees_a_moment(void) {
    struct fixture fixture;
    struct mu_timer timer;
    pthread_t writer;
    fixture_start(&fixture);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
    fixture_open(&fixture);
    CHECK_INT(pthread_create(&writer, NULL, write_pairs, &timer), 0);
    uint64_t last = 0;
    int stalled = 0;
    while (last < 2 * PAIRS && stalled < 1000) {
        uint64_t ends = poll_once(fixture.report.journal_path);
        CHECK(ends == 0 || ends >= last);
        stalled = ends > last ? 0 : stalled + 1;
        last = ends > last ? ends : last;
    }
    pthread_join(writer, NULL);
    CHECK_INT(poll_once(fixture.report.journal_path), 2 * PAIRS);
    mu_timer_release(&timer);
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    fixture_end(&fixture);
}

int main(void) {
    test_moves_keep_what_is_there();
    test_a_file_that_exists_is_left_alone();
    test_strings_up_to_the_limit();
    test_chunks_are_given_out_again();
    test_readers_do_not_keep_a_journal_from_its_lock();
    test_nor_does_one_that_is_kept_from_running();
    test_a_reader_of_a_running_process_sees_a_moment();
    return check_report();
}
