/* The recorder end to end: stages into a journal, rows into a CSV, forks, moves, adoption. */
#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "journal/journal_reader.h"
#include "stages/drain.h"
#include "stages/drain_thread.h"
#include "stages/frame_order.h"
#include "stages/output_state.h"
#include "tests/stages/recorder_fixture.h"

/* The n-th line that holds `part`, without its time columns; the caller frees it. */
static char *row_after_machine(const char *csv, const char *part) {
    const char *at = strstr(csv, part);
    while (at != NULL && at > csv && at[-1] != '\n') {
        at--;
    }
    const char *machine = at == NULL ? NULL : strstr(at, ",host-a,");
    const char *end = machine == NULL ? NULL : strchr(machine, '\n');
    return end == NULL ? strdup("") : strndup(machine + 1, (size_t)(end - machine - 1));
}

static void check_row(const char *csv, const char *part, const char *format, ...) {
    char wanted[512];
    va_list args;
    va_start(args, format);
    vsnprintf(wanted, sizeof(wanted), format, args);
    va_end(args);
    char *row = row_after_machine(csv, part);
    CHECK_STR(row, wanted);
    free(row);
}

static void test_nested_stages_become_rows(void) {
    struct fixture fixture;
    struct mu_timer timer;
    fixture_start(&fixture);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "train", NULL), MU_OK);
    fixture_open(&fixture);
    atomic_store(&timer.step, 7);
    stage_start(&timer, "iter");
    stage_start(&timer, "forward, \"x\"");
    CHECK_INT(stage_stop(&timer, "forward, \"x\""), MU_STOP_OK);
    CHECK_INT(stage_stop(&timer, "iter"), MU_STOP_OK);
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    char *csv = fixture_csv(&fixture);
    int tid = (int)gettid();
    check_row(csv, "iter,START", "host-a,7,iter,START,,\"node_id=1,parent_id=0,tid=%d,tag=train\"",
              tid);
    check_row(csv, "x\"\"\",START",
              "host-a,7,\"forward, \"\"x\"\"\",START,,\"node_id=2,parent_id=1,tid=%d,tag=train\"",
              tid);
    CHECK_INT(count_of(csv, ",END,"), 2);
    const char *order[] = {"iter,START", "\"\",START", "\"\",END", "iter,END"};
    const char *at = csv;
    for (int i = 0; i < 4 && at != NULL; i++) {
        at = strstr(at, order[i]);
        CHECK(at != NULL);
    }
    free(csv);
    mu_timer_release(&timer);
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    fixture_end(&fixture);
}

/* Names of one hash: what tells them apart is each of their bytes. */
static void test_names_are_compared_whole(void) {
    enum { LENGTH_MAX = 20, HASH = 7 };
    struct fixture fixture;
    struct mu_timer timer;
    fixture_start(&fixture);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
    struct mu_thread_buffer *buffer = mu_timer_thread_buffer(&timer);
    const char *name = "abcdefghijklmnopqrst";
    for (size_t length = 1; length <= LENGTH_MAX; length++) {
        mu_thread_buffer_start(buffer, name, length, HASH);
        for (size_t at = 0; at < length; at++) {
            char other[LENGTH_MAX];
            memcpy(other, name, LENGTH_MAX);
            other[at] = '-';
            CHECK_INT(mu_thread_buffer_stop(buffer, other, length, HASH), MU_STOP_NOT_OPEN);
        }
        CHECK_INT(mu_thread_buffer_stop(buffer, name, length, HASH), MU_STOP_OK);
    }
    mu_timer_release(&timer);
    fixture_end(&fixture);
}

static void test_rows_before_open_are_replayed(void) {
    struct fixture fixture;
    struct mu_timer timer;
    fixture_start(&fixture);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
    stage_start(&timer, "early");
    stage_start(&timer, "inner");
    stage_stop(&timer, "inner");
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    fixture_open(&fixture);
    stage_stop(&timer, "early");
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    char *csv = fixture_csv(&fixture);
    CHECK_INT(count_of(csv, "early,START"), 2);
    CHECK_INT(count_of(csv, ",host-a,0,early,START"), 1); /* once more, beside its END */
    CHECK_INT(count_of(csv, ",repeated=1"), 1);
    CHECK_INT(count_of(csv, "early,END"), 1);
    CHECK_INT(count_of(csv, "inner,START"), 1);
    CHECK_INT(count_of(csv, "inner,END"), 1);
    free(csv);
    mu_timer_release(&timer);
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    fixture_end(&fixture);
}

static void test_open_stage_is_written_once(void) {
    struct fixture fixture;
    struct mu_timer timer;
    fixture_start(&fixture);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
    fixture_open(&fixture);
    stage_start(&timer, "outer");
    for (int i = 0; i < 3; i++) {
        stage_start(&timer, "inner");
        stage_stop(&timer, "inner");
        mu_recorder_drain(fixture.recorder, drain_wait_ns);
    }
    char *csv = fixture_csv(&fixture);
    CHECK_INT(count_of(csv, "outer,START"), 1);
    CHECK_INT(count_of(csv, "outer,END"), 0);
    CHECK_INT(count_of(csv, "inner,END"), 3);
    free(csv);
    stage_stop(&timer, "outer");
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    csv = fixture_csv(&fixture);
    CHECK_INT(count_of(csv, "outer,START"), 1);
    CHECK_INT(count_of(csv, "outer,END"), 1);
    free(csv);
    mu_timer_release(&timer);
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    fixture_end(&fixture);
}

/* A thread buffer publishes the record of a stage and closes the stage after it; drains that fall
 * in between see a stage that is open and has ended. */
static void test_stage_that_ended_but_still_stands_as_open(void) {
    struct fixture fixture;
    struct mu_timer timer;
    fixture_start(&fixture);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
    fixture_open(&fixture);
    stage_start(&timer, "outer");
    stage_start(&timer, "inner");
    stage_stop(&timer, "inner");
    struct mu_chunk_header *chunk = mu_timer_thread_buffer(&timer)->chunk;
    for (int i = 0; i < 3; i++) {
        atomic_store(&chunk->depth, 2);
        mu_recorder_drain(fixture.recorder, drain_wait_ns);
    }
    struct mu_journal_image image;
    struct mu_csv_writer writer;
    struct mu_recovered recovered;
    mu_csv_writer_init(&writer);
    CHECK_INT(mu_journal_image_read(&image, fixture.report.journal_path, NULL), MU_OK);
    CHECK_INT(mu_journal_image_rows(&image, &writer, &recovered, NULL), MU_OK);
    CHECK_INT(recovered.rows, 0);
    CHECK_INT(recovered.open_stages, 1);
    mu_csv_writer_free(&writer);
    mu_journal_image_close(&image);
    atomic_store(&chunk->depth, 1);
    stage_stop(&timer, "outer");
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    char *csv = fixture_csv(&fixture);
    CHECK_INT(count_of(csv, "inner,START"), 1);
    CHECK_INT(count_of(csv, "inner,END"), 1);
    CHECK_INT(count_of(csv, "outer,START"), 1);
    CHECK_INT(count_of(csv, "outer,END"), 1);
    free(csv);
    mu_timer_release(&timer);
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    fixture_end(&fixture);
}

static void test_misuse(void) {
    struct fixture fixture;
    struct mu_timer timer;
    fixture_start(&fixture);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
    fixture_open(&fixture);
    CHECK_INT(stage_stop(&timer, "never"), MU_STOP_NOT_OPEN);
    stage_start(&timer, "a");
    stage_start(&timer, "b");
    CHECK_INT(stage_stop(&timer, "a"), MU_STOP_CLOSED_INNER);
    CHECK_INT(mu_thread_buffer_set_step(mu_timer_thread_buffer(&timer)), 0);
    stage_start(&timer, "left");
    CHECK_INT(mu_thread_buffer_set_step(mu_timer_thread_buffer(&timer)), 1);
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    char *csv = fixture_csv(&fixture);
    CHECK_INT(count_of(csv, "closed=out_of_order"), 1);
    CHECK_INT(count_of(csv, "closed=step"), 1);
    free(csv);
    mu_timer_release(&timer);
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    fixture_end(&fixture);
}

static bool calls_nobody(const void *frame) {
    (void)frame;
    return false;
}

/* Of one flow, which is named by a letter. */
static struct mu_stage_owner owner_of(const char *handle, const char *flow) {
    return (struct mu_stage_owner){.handle = handle, .frame = handle, .context = flow};
}

static void enter(struct mu_timer *timer, const char *name, const char *flow) {
    struct mu_stage_owner owner = owner_of(name, flow);
    struct mu_thread_buffer *buffer = mu_timer_thread_buffer(timer);
    if (!mu_frames_parent_is_top(buffer, &owner)) {
        mu_frames_choose_parent(buffer, &owner, calls_nobody);
    }
    stage_start(timer, name);
    mu_frames_own(buffer, &owner);
}

static enum mu_stop_result leave(struct mu_timer *timer, const char *name, const char *flow) {
    struct mu_stage_owner owner = owner_of(name, flow);
    return mu_thread_buffer_stop_owned(mu_timer_thread_buffer(timer), &owner);
}

/* Two flows take turns. A slot of the chunk is used again, and readers look at few. */
static void test_stages_out_of_order(void) {
    static const char flow_a[] = "A", flow_b[] = "B", outer[] = "outer", other[] = "other",
                      inner[] = "inner", third[] = "third";
    struct fixture fixture;
    struct mu_timer timer;
    fixture_start(&fixture);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
    fixture_open(&fixture);
    struct mu_thread_buffer *buffer = mu_timer_thread_buffer(&timer);
    enter(&timer, outer, flow_a);
    enter(&timer, other, flow_b);
    enter(&timer, inner, flow_a);
    CHECK_INT(buffer->frames[1].parent, 0);
    CHECK_INT(buffer->frames[2].parent, buffer->frames[0].node);
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    CHECK_INT(leave(&timer, other, flow_b), MU_STOP_OK);
    CHECK_INT(atomic_load(&buffer->chunk->depth), 3);
    enter(&timer, third, flow_b);
    CHECK_INT(buffer->frames[2].slot, 1);
    CHECK_INT(buffer->depth, 3);
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    CHECK_INT(leave(&timer, outer, flow_a), MU_STOP_OK);
    CHECK_INT(leave(&timer, outer, flow_a), MU_STOP_NOT_OPEN);
    CHECK_INT(mu_thread_buffer_set_step(buffer), 0);
    CHECK_INT(leave(&timer, inner, flow_a), MU_STOP_OK);
    CHECK_INT(leave(&timer, third, flow_b), MU_STOP_OK);
    CHECK_INT(buffer->depth, 0);
    CHECK(mu_frames_in_order(buffer));
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    char *csv = fixture_csv(&fixture);
    CHECK_INT(count_of(csv, ",START,,\"node_id="), 4);
    CHECK_INT(count_of(csv, ",END,"), 4);
    CHECK_INT(count_of(csv, "closed="), 0);
    free(csv);
    mu_timer_release(&timer);
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    fixture_end(&fixture);
}

static void test_deep_stages(void) {
    enum { DEPTH = 300 };
    struct fixture fixture;
    struct mu_timer timer;
    fixture_start(&fixture);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
    fixture_open(&fixture);
    for (int i = 0; i < DEPTH; i++) {
        stage_start(&timer, "recursive");
    }
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    for (int i = 0; i < DEPTH; i++) {
        stage_stop(&timer, "recursive");
    }
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    char *csv = fixture_csv(&fixture);
    CHECK_INT(count_of(csv, "recursive,START"), DEPTH);
    CHECK_INT(count_of(csv, "recursive,END"), DEPTH);
    free(csv);
    mu_timer_release(&timer);
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    fixture_end(&fixture);
}

static void test_names_beyond_the_table(void) {
    enum { NAMES = 6000 };
    struct fixture fixture;
    struct mu_timer timer;
    char name[32];
    fixture_start(&fixture);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
    fixture_open(&fixture);
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof(name), "name-%d", i);
        stage_start(&timer, name);
        CHECK_INT(stage_stop(&timer, name), MU_STOP_OK);
        if (i % 500 == 0) {
            mu_recorder_drain(fixture.recorder, drain_wait_ns);
        }
    }
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    char *csv = fixture_csv(&fixture);
    CHECK_INT(count_of(csv, ",END,"), NAMES);
    CHECK_INT(count_of(csv, "name-5999,END"), 1);
    struct mu_aggregate other;
    mu_aggregate_init(&other);
    mu_timer_aggregate(&timer, MU_PATH_OTHER, &other);
    CHECK(atomic_load(&other.count) >= NAMES - MU_STRINGS_MAX);
    free(csv);
    mu_timer_release(&timer);
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    fixture_end(&fixture);
}

static void test_events(void) {
    struct fixture fixture;
    struct mu_timer timer;
    fixture_start(&fixture);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
    fixture_open(&fixture);
    struct mu_event event = {.type = 4,
                             .name = "loss",
                             .name_length = 4,
                             .metadata = "value=0.5",
                             .metadata_length = 9,
                             .has_time = true,
                             .real_ns = 1750000000123456789,
                             .step = 3};
    CHECK(mu_thread_buffer_event(mu_timer_thread_buffer(&timer), &event));
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    char *csv = fixture_csv(&fixture);
    check_row(csv, "loss,START", "host-a,3,loss,START,,\"opens=COUNTER\"");
    check_row(csv, "loss,COUNTER", "host-a,3,loss,COUNTER,,\"tid=%d,value=0.5\"", (int)gettid());
    CHECK_INT(count_of(csv, "1750000000.123456789,"), 2);
    char *large = malloc(100000);
    memset(large, 'x', 100000);
    event.metadata = large;
    event.metadata_length = 100000;
    CHECK(!mu_thread_buffer_event(mu_timer_thread_buffer(&timer), &event));
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    free(csv);
    csv = fixture_csv(&fixture);
    CHECK_INT(count_of(csv, "loss,COUNTER"), 2);
    free(csv);
    free(large);
    mu_timer_release(&timer);
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    fixture_end(&fixture);
}

static void test_full_ring_drops_and_counts(void) {
    struct fixture fixture;
    struct mu_timer timer;
    fixture_start(&fixture);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
    pthread_mutex_lock(&fixture.recorder->drain_lock);
    for (int i = 0; i < MU_RING_SLOTS + 100; i++) {
        stage_start(&timer, "s");
        stage_stop(&timer, "s");
    }
    pthread_mutex_unlock(&fixture.recorder->drain_lock);
    CHECK_INT(atomic_load(&fixture.recorder->troubles.dropped_records), 100);
    fixture_open(&fixture);
    char *csv = fixture_csv(&fixture);
    CHECK_INT(count_of(csv, "s,END"), MU_RING_SLOTS);
    CHECK_INT(count_of(csv, "count=100,reason=ring_full"), 1);
    free(csv);
    struct mu_aggregate all;
    mu_aggregate_init(&all);
    mu_timer_aggregate(&timer, 2, &all);
    CHECK_INT(atomic_load(&all.count), MU_RING_SLOTS + 100);
    mu_timer_release(&timer);
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    fixture_end(&fixture);
}

static void test_forked_child_has_files_of_its_own(void) {
    struct fixture fixture;
    struct mu_timer timer;
    fixture_start(&fixture);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
    fixture_open(&fixture);
    stage_start(&timer, "parent");
    pid_t child = fork();
    if (child == 0) {
        stage_start(&timer, "child");
        stage_stop(&timer, "child");
        CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
        _exit(strstr(fixture.recorder->opened.label, ".w1") == NULL);
    }
    int status = -1;
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
    stage_stop(&timer, "parent");
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    char *csv = fixture_csv(&fixture);
    CHECK_INT(count_of(csv, "parent,END"), 1);
    CHECK_INT(count_of(csv, "child"), 0);
    free(csv);
    char path[128];
    snprintf(path, sizeof(path), "%s/profile_rank_0.w1.csv", fixture.directory);
    csv = read_text(path);
    CHECK_INT(count_of(csv, "child,END"), 1);
    CHECK_INT(count_of(csv, "parent,"), 0);
    free(csv);
    mu_timer_release(&timer);
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    fixture_end(&fixture);
}

static void test_dead_journal_is_adopted(void) {
    struct fixture fixture;
    fixture_directory(&fixture);
    pid_t child = fork();
    if (child == 0) {
        struct mu_timer timer;
        CHECK_INT(mu_recorder_create(&fixture.recorder, NULL), MU_OK);
        CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
        fixture_open(&fixture);
        stage_start(&timer, "open");
        stage_start(&timer, "drained");
        stage_stop(&timer, "drained");
        mu_recorder_drain(fixture.recorder, drain_wait_ns);
        stage_start(&timer, "lost?");
        stage_stop(&timer, "lost?");
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_INT(status, 0);
    CHECK_INT(mu_recorder_create(&fixture.recorder, NULL), MU_OK);
    fixture_open(&fixture);
    CHECK_INT(fixture.report.adopted_journals, 1);
    CHECK_INT(fixture.report.adopted_rows, 2);
    CHECK_INT(fixture.report.attempt, 2);
    char *csv = fixture_csv(&fixture);
    CHECK_INT(count_of(csv, "lost?,START"), 1);
    CHECK_INT(count_of(csv, "lost?,END"), 1);
    CHECK_INT(count_of(csv, "drained,END"), 1);
    CHECK_INT(count_of(csv, "open,START"), 1);
    free(csv);
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    fixture_end(&fixture);
}

static void test_rotation_keeps_the_newest(void) {
    struct fixture fixture;
    struct mu_timer timer;
    fixture_start(&fixture);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
    struct mu_output_config config = fixture_config(&fixture);
    config.max_csv_bytes = 4096;
    config.keep_csv_bytes = 16384;
    CHECK_INT(mu_recorder_open(fixture.recorder, &config, &fixture.report, NULL), MU_OK);
    for (int i = 0; i < 1000; i++) {
        stage_start(&timer, "s");
        stage_stop(&timer, "s");
        if (i % 10 == 0) {
            mu_recorder_drain(fixture.recorder, drain_wait_ns);
        }
    }
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    char path[128];
    snprintf(path, sizeof(path), "%s/profile_rank_0.part0001.csv", fixture.directory);
    struct stat status;
    CHECK(stat(path, &status) != 0);
    CHECK(atomic_load(&fixture.recorder->troubles.removed_parts) > 0);
    char *csv = fixture_csv(&fixture);
    CHECK_INT(count_of(csv, "my_utils.process,INSTANT"), 1);
    free(csv);
    fixture_end(&fixture);
}

/* Stops a drain in its middle: it reads a protected page of a ring, and waits in the handler of
 * that fault until another thread has recorded. Ends of pipes: a handler may read and write
 * them. */
static struct {
    struct mu_recorder *recorder;
    void *page;
    size_t page_bytes;
    int reached[2], go_on[2];
} hold;

static void post(const int ends[2]) {
    while (write(ends[1], "", 1) < 0 && errno == EINTR) {
    }
}

static void wait_for(const int ends[2]) {
    char token;
    while (read(ends[0], &token, 1) < 0 && errno == EINTR) {
    }
}

static void hold_reader(int number) {
    (void)number;
    mprotect(hold.page, hold.page_bytes, PROT_READ | PROT_WRITE);
    post(hold.reached);
    wait_for(hold.go_on);
}

/* From now on who reads the ring of the first chunk is held, once. */
static void hold_next_reader(void) {
    struct sigaction action = {.sa_handler = hold_reader};
    CHECK_INT(sigaction(SIGSEGV, &action, NULL), 0);
    hold.page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t ring = (uintptr_t)mu_chunk_ring(mu_journal_chunk(&hold.recorder->journal, 0));
    hold.page = (void *)((ring + hold.page_bytes - 1) / hold.page_bytes * hold.page_bytes);
    CHECK_INT(mprotect(hold.page, hold.page_bytes, PROT_NONE), 0);
}

static void *record_one(void *timer) {
    stage_start(timer, "old");
    stage_stop(timer, "old");
    return NULL;
}

/* A tag, a name of a thread and names of stages that nobody has used before. */
static void *record_new_names(void *timer) {
    wait_for(hold.reached);
    struct mu_thread_buffer *buffer = mu_timer_thread_buffer(timer);
    mu_recorder_set_thread_name(hold.recorder, buffer, "new-thread");
    stage_start(timer, "new-outer");
    stage_start(timer, "new-inner");
    stage_stop(timer, "new-inner");
    post(hold.go_on);
    wait_for(hold.reached); /* the thread lives until its rows were checked */
    return NULL;
}

static void check_new_names(void) {
    char *csv = NULL;
    size_t length;
    CHECK_INT(mu_recorder_copy_memory(hold.recorder, drain_wait_ns, &csv, &length, NULL), MU_OK);
    CHECK_INT(count_of(csv, "new-outer,START"), 1);
    CHECK_INT(count_of(csv, "new-inner,START"), 1);
    CHECK_INT(count_of(csv, "new-inner,END"), 1);
    CHECK_INT(count_of(csv, "tag=new-tag"), 4); /* of three rows and of the thread's */
    CHECK_INT(count_of(csv, "thread_name=new-thread"), 1);
    CHECK_INT(count_of(csv, ",,START"), 0);
    CHECK_INT(count_of(csv, ",,END"), 0);
    free(csv);
}

/* In memory, where nobody drains but the test. */
static void test_names_that_are_new_in_the_middle_of_a_drain(void) {
    enum { BACKLOG = 3000 }; /* more than one round takes, and too few to call the drain thread */
    struct fixture fixture;
    struct mu_timer timer, other;
    pthread_t thread;
    fixture_start(&fixture);
    hold.recorder = fixture.recorder;
    CHECK(pipe(hold.reached) == 0 && pipe(hold.go_on) == 0);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
    CHECK_INT(mu_timer_init(&other, fixture.recorder, "new-tag", NULL), MU_OK);
    stage_start(&timer, "open");
    CHECK_INT(pthread_create(&thread, NULL, record_one, &timer), 0);
    pthread_join(thread, NULL);
    mu_recorder_drain(fixture.recorder, drain_wait_ns); /* the second chunk is free for others */
    for (int i = 0; i < BACKLOG; i++) {
        stage_start(&timer, "old");
        stage_stop(&timer, "old");
    }
    CHECK_INT(pthread_create(&thread, NULL, record_new_names, &other), 0);
    hold_next_reader();
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    signal(SIGSEGV, SIG_DFL);
    check_new_names();
    post(hold.reached);
    pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++) {
        close(hold.reached[i]);
        close(hold.go_on[i]);
    }
    mu_timer_release(&other);
    mu_timer_release(&timer);
    fixture_end(&fixture);
}

static void test_names_that_are_new_to_an_image_of_the_own_journal(void) {
    struct fixture fixture;
    struct mu_timer timer;
    struct mu_journal_image image;
    struct mu_seen_thread seen;
    fixture_start(&fixture);
    const uint8_t *base = fixture.recorder->journal.base;
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "new-tag", NULL), MU_OK);
    stage_start(&timer, "old");
    CHECK_INT(mu_journal_image_open(&image, base, MU_JOURNAL_BYTES, NULL), MU_OK);
    stage_start(&timer, "new-outer");
    stage_start(&timer, "new-inner");
    stage_stop(&timer, "new-inner");
    CHECK(mu_journal_image_thread(&image, 0, &seen));
    CHECK_INT(seen.depth, 2);
    CHECK(seen.open[1].name != NULL && strncmp(seen.open[1].name, "new-outer", 9) == 0);
    CHECK_INT(seen.last_count, 1);
    CHECK(seen.last[0].name != NULL && strncmp(seen.last[0].name, "new-inner", 9) == 0);
    mu_timer_release(&timer);
    fixture_end(&fixture);
}

enum { THREADS = 8, STAGES = 20000 };

static void *record_many(void *argument) {
    struct mu_timer *timer = argument;
    for (int i = 0; i < STAGES; i++) {
        stage_start(timer, "outer");
        stage_start(timer, "inner");
        stage_stop(timer, "inner");
        stage_stop(timer, "outer");
        if (i % 500 == 499) {
            mu_recorder_drain(timer->recorder, drain_wait_ns);
        }
    }
    return NULL;
}

static void test_eight_threads_lose_nothing(void) {
    struct fixture fixture;
    struct mu_timer timer;
    pthread_t threads[THREADS];
    fixture_start(&fixture);
    CHECK_INT(mu_timer_init(&timer, fixture.recorder, "", NULL), MU_OK);
    fixture_open(&fixture);
    for (int i = 0; i < THREADS; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, record_many, &timer), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    CHECK_INT(atomic_load(&fixture.recorder->troubles.dropped_records), 0);
    char *csv = fixture_csv(&fixture);
    CHECK_INT(count_of(csv, "inner,START"), THREADS * STAGES);
    CHECK_INT(count_of(csv, "inner,END"), THREADS * STAGES);
    CHECK_INT(count_of(csv, "outer,START"), THREADS * STAGES);
    CHECK_INT(count_of(csv, "outer,END"), THREADS * STAGES);
    free(csv);
    mu_timer_release(&timer);
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    fixture_end(&fixture);
}

enum { ENDING_THREADS = 4, GENERATIONS = 60, MOVES = 25, STAGES_OF_ONE = 5 };

/* As the binding's: who records has the interpreter's lock, who ends or reads has none. */
struct moving {
    struct fixture fixture;
    struct mu_timer timer;
    pthread_mutex_t interpreter;
    atomic_bool moved;
};

static void take_interpreter(void *moving) {
    pthread_mutex_lock(&((struct moving *)moving)->interpreter);
}

static void leave_interpreter(void *moving) {
    pthread_mutex_unlock(&((struct moving *)moving)->interpreter);
}

static void *record_and_end(void *argument) {
    struct moving *moving = argument;
    take_interpreter(moving);
    for (int i = 0; i < STAGES_OF_ONE; i++) {
        stage_start(&moving->timer, "outer");
        stage_stop(&moving->timer, "outer");
    }
    leave_interpreter(moving);
    mu_recorder_drain(moving->timer.recorder, drain_wait_ns);
    return NULL;
}

static void *start_threads_that_end(void *argument) {
    struct moving *moving = argument;
    pthread_t threads[ENDING_THREADS];
    for (int generation = 0; generation < GENERATIONS; generation++) {
        for (int i = 0; i < ENDING_THREADS; i++) {
            CHECK_INT(pthread_create(&threads[i], NULL, record_and_end, moving), 0);
        }
        for (int i = 0; i < ENDING_THREADS; i++) {
            pthread_join(threads[i], NULL);
        }
    }
    return NULL;
}

static void *read_state(void *argument) {
    struct moving *moving = argument;
    struct mu_output_state state;
    while (!atomic_load(&moving->moved)) {
        mu_recorder_output_state(moving->timer.recorder, &state);
        bool file = state.csv_path[0] != '\0';
        CHECK(!file || strstr(state.csv_path, "/profile_rank_0") != NULL);
        CHECK(!file || strstr(state.csv_path, ".csv") != NULL);
    }
    return NULL;
}

static void move_to_and_fro(struct moving *moving, const char *other) {
    const struct mu_alone gil = {take_interpreter, leave_interpreter, moving};
    struct mu_output_config config = fixture_config(&moving->fixture);
    for (int i = 0; i < MOVES; i++) {
        config.max_csv_bytes = 4096;
        snprintf(config.log_dir, sizeof(config.log_dir), "%s",
                 i % 2 == 0 ? other : moving->fixture.directory);
        CHECK_INT(mu_recorder_open_with(moving->fixture.recorder, &config, &gil,
                                        &moving->fixture.report, NULL),
                  MU_OK);
    }
    CHECK_INT(mu_recorder_close_with(moving->fixture.recorder, &gil, NULL), MU_OK);
}

/* Files move, threads end and others ask where rows go, all at once: nothing is lost, and under
 * TSan nothing races. */
static void test_threads_end_while_files_move(void) {
    struct moving moving = {.interpreter = PTHREAD_MUTEX_INITIALIZER};
    struct fixture other;
    pthread_t starter, reader;
    fixture_start(&moving.fixture);
    fixture_directory(&other);
    CHECK_INT(mu_timer_init(&moving.timer, moving.fixture.recorder, "", NULL), MU_OK);
    CHECK_INT(pthread_create(&reader, NULL, read_state, &moving), 0);
    CHECK_INT(pthread_create(&starter, NULL, start_threads_that_end, &moving), 0);
    move_to_and_fro(&moving, other.directory);
    pthread_join(starter, NULL);
    fixture_open(&moving.fixture);
    CHECK_INT(mu_recorder_close(moving.fixture.recorder, NULL), MU_OK);
    atomic_store(&moving.moved, true);
    pthread_join(reader, NULL);
    CHECK_INT(atomic_load(&moving.fixture.recorder->troubles.dropped_records), 0);
    CHECK_INT(count_in_csvs(moving.fixture.directory, "outer,END") +
                  count_in_csvs(other.directory, "outer,END"),
              ENDING_THREADS * GENERATIONS * STAGES_OF_ONE);
    mu_timer_release(&moving.timer);
    fixture_remove(&other);
    fixture_end(&moving.fixture);
}

enum { RETIRING_THREADS = 50, A_GROUP = 10, RETIRING_MOVES = 8 };

struct retiring {
    struct fixture fixture;
    struct mu_timer timer;
    sem_t recorded, may_end;
    int let_go; /* threads that may end */
};

static void *record_and_wait(void *argument) {
    struct retiring *retiring = argument;
    stage_start(&retiring->timer, "outer");
    stage_stop(&retiring->timer, "outer");
    sem_post(&retiring->recorded);
    sem_wait(&retiring->may_end);
    return NULL;
}

/* Called when nobody may record from here on: some threads end now. */
static void let_threads_end(void *argument) {
    struct retiring *retiring = argument;
    for (int i = 0; i < A_GROUP && retiring->let_go < RETIRING_THREADS; i++) {
        retiring->let_go++;
        sem_post(&retiring->may_end);
    }
}

static void let_no_more_end(void *argument) {
    (void)argument;
}

static void move_while_threads_end(struct retiring *retiring, const char *directory) {
    const struct mu_alone gil = {let_threads_end, let_no_more_end, retiring};
    struct mu_output_config config = fixture_config(&retiring->fixture);
    pthread_t threads[RETIRING_THREADS];
    for (int i = 0; i < RETIRING_THREADS; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, record_and_wait, retiring), 0);
    }
    for (int i = 0; i < RETIRING_THREADS; i++) {
        sem_wait(&retiring->recorded);
    }
    retiring->let_go = 0;
    snprintf(config.log_dir, sizeof(config.log_dir), "%s", directory);
    CHECK_INT(mu_recorder_open_with(retiring->fixture.recorder, &config, &gil,
                                    &retiring->fixture.report, NULL),
              MU_OK);
    while (retiring->let_go < RETIRING_THREADS) {
        let_threads_end(retiring);
    }
    for (int i = 0; i < RETIRING_THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    mu_recorder_drain(retiring->fixture.recorder, drain_wait_ns);
}

static int owned_chunks(const struct mu_recorder *recorder) {
    int owned = 0;
    uint32_t count = atomic_load(&mu_journal_header(&recorder->journal)->chunk_count);
    for (uint32_t i = 0; i < count; i++) {
        owned += atomic_load(&mu_journal_chunk(&recorder->journal, i)->state) == MU_CHUNK_OWNED;
    }
    return owned;
}

/* A thread gives its chunk back while the journal is copied: the copy has the mark, too. Else the
 * chunk would have an owner for ever, and after 64 of them nobody could record. */
static void test_chunks_are_given_back_while_the_journal_moves(void) {
    struct retiring retiring;
    struct fixture other;
    fixture_start(&retiring.fixture);
    fixture_directory(&other);
    sem_init(&retiring.recorded, 0, 0);
    sem_init(&retiring.may_end, 0, 0);
    CHECK_INT(mu_timer_init(&retiring.timer, retiring.fixture.recorder, "", NULL), MU_OK);
    for (int i = 0; i < RETIRING_MOVES; i++) {
        move_while_threads_end(&retiring,
                               i % 2 == 0 ? other.directory : retiring.fixture.directory);
        CHECK_INT(owned_chunks(retiring.fixture.recorder), 0);
    }
    CHECK_INT(mu_recorder_close(retiring.fixture.recorder, NULL), MU_OK);
    CHECK_INT(atomic_load(&retiring.fixture.recorder->troubles.dropped_buffers), 0);
    CHECK_INT(count_in_csvs(retiring.fixture.directory, "outer,END") +
                  count_in_csvs(other.directory, "outer,END"),
              RETIRING_THREADS * RETIRING_MOVES);
    mu_timer_release(&retiring.timer);
    sem_destroy(&retiring.recorded);
    sem_destroy(&retiring.may_end);
    fixture_remove(&other);
    fixture_end(&retiring.fixture);
}

enum { ENDED_RECORDERS = 100 };

struct one_thread {
    struct mu_timer *timer;
    pthread_barrier_t turns;
    bool stays; /* and records once more after the second turn */
    pid_t tid;
};

static void *record_in_turns(void *argument) {
    struct one_thread *thread = argument;
    thread->tid = (pid_t)syscall(SYS_gettid);
    stage_start(thread->timer, "outer");
    stage_stop(thread->timer, "outer");
    pthread_barrier_wait(&thread->turns);
    pthread_barrier_wait(&thread->turns);
    if (thread->stays) { /* the timer is another recorder's by now */
        stage_start(thread->timer, "outer");
        stage_stop(thread->timer, "outer");
    }
    return NULL;
}

static bool sleeps(pid_t tid) {
    char path[64], state = 'R';
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)tid);
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        CHECK_INT(fscanf(file, "%*d (%*[^)]) %c", &state), 1);
        fclose(file);
    }
    return state == 'S';
}

/* As an interpreter whose thread has left it, and is not yet gone, when it ends: the thread stands
 * at the lock, in the destructor of its key, when the recorder goes. */
static void test_threads_end_while_their_recorder_does(void) {
    for (int i = 0; i < ENDED_RECORDERS; i++) {
        struct mu_recorder *recorder;
        struct mu_timer timer;
        struct one_thread one = {.timer = &timer};
        pthread_t thread;
        pthread_barrier_init(&one.turns, NULL, 2);
        CHECK_INT(mu_recorder_create(&recorder, NULL), MU_OK);
        CHECK_INT(mu_timer_init(&timer, recorder, "", NULL), MU_OK);
        CHECK_INT(pthread_create(&thread, NULL, record_in_turns, &one), 0);
        pthread_mutex_t *lock = &recorder->registry_lock;
        pthread_barrier_wait(&one.turns); /* it has recorded */
        pthread_mutex_lock(lock);
        pthread_barrier_wait(&one.turns);
        while (!sleeps(one.tid)) {
            sched_yield();
        }
        pthread_mutex_unlock(lock);
        mu_timer_release(&timer);
        mu_recorder_destroy(recorder);
        pthread_join(thread, NULL);
        pthread_barrier_destroy(&one.turns);
    }
}

static void test_a_thread_outlives_its_recorder(void) {
    struct mu_recorder *first, *second;
    struct mu_timer timer, other;
    struct mu_totals totals;
    pthread_t thread;
    struct one_thread one = {.timer = &timer, .stays = true};
    pthread_barrier_init(&one.turns, NULL, 2);
    CHECK_INT(mu_recorder_create(&first, NULL), MU_OK);
    CHECK_INT(mu_recorder_create(&second, NULL), MU_OK);
    CHECK_INT(mu_timer_init(&timer, first, "", NULL), MU_OK);
    CHECK_INT(mu_timer_init(&other, second, "", NULL), MU_OK);
    CHECK_INT(pthread_create(&thread, NULL, record_in_turns, &one), 0);
    pthread_barrier_wait(&one.turns);
    mu_timer_release(&timer);
    mu_recorder_destroy(first);
    one.timer = &other;
    pthread_barrier_wait(&one.turns);
    pthread_join(thread, NULL);
    mu_timer_totals(&other, MU_PATH_OTHER + 1, &totals);
    CHECK_INT(totals.count, 1);
    mu_timer_release(&other);
    mu_recorder_destroy(second);
    pthread_barrier_destroy(&one.turns);
}

/* As it is where there was no memory for a journal. */
static void test_a_recorder_without_memory_begins_later(void) {
    struct mu_recorder *recorder = mu_recorder_reserve();
    struct mu_timer timer;
    struct mu_error err = {0};
    struct mu_totals totals;
    mu_recorder_start(recorder);
    mu_journal_release(&recorder->journal);
    mu_drain_free(recorder->drain);
    recorder->drain = NULL;
    recorder->broken = true;
    CHECK_INT(mu_timer_init(&timer, recorder, "", NULL), MU_OK);
    CHECK(mu_timer_thread_buffer(&timer) == NULL);
    CHECK_INT(atomic_load(&recorder->troubles.no_memory), 1);
    CHECK(mu_recorder_set_time_offset(recorder, 5));
    char *text;
    size_t length;
    CHECK_INT(mu_recorder_copy_memory(recorder, drain_wait_ns, &text, &length, &err), MU_OK);
    CHECK_INT(length, 0);
    free(text);
    mu_recorder_try_again(recorder);
    stage_start(&timer, "later");
    CHECK_INT(stage_stop(&timer, "later"), MU_STOP_OK);
    mu_timer_totals(&timer, 2, &totals);
    CHECK_INT(totals.count, 1);
    CHECK_INT(recorder->user_offset_ns, 5);
    mu_timer_release(&timer);
    mu_recorder_destroy(recorder);
}

static bool thread_runs(struct mu_recorder *recorder) {
    pthread_mutex_lock(&recorder->thread_lock);
    bool runs = recorder->thread_runs;
    pthread_mutex_unlock(&recorder->thread_lock);
    return runs;
}

static void wait_until_call_is_taken(struct mu_recorder *recorder) {
    while (atomic_load(&recorder->thread_called)) {
        sched_yield();
    }
}

/* Whether it has drained since the epoch `before`; then its lock is the caller's. */
static bool lock_after(struct mu_recorder *recorder, uint64_t before) {
    if (pthread_mutex_trylock(&recorder->drain_lock) != 0) {
        return false;
    }
    if (recorder->epoch == before) {
        pthread_mutex_unlock(&recorder->drain_lock);
        return false;
    }
    return true;
}

/* A call that comes while the drain thread writes its last rows finds a thread, which takes no more
 * calls. The next call starts another one. */
static void test_a_late_call_of_the_drain_thread_is_not_the_last(void) {
    struct mu_recorder *recorder;
    CHECK_INT(mu_recorder_create(&recorder, NULL), MU_OK);
    pthread_mutex_lock(&recorder->drain_lock);
    uint64_t before = recorder->epoch;
    mu_drain_thread_call(recorder);
    wait_until_call_is_taken(recorder); /* it stands at the drain's lock */
    CHECK(!mu_drain_thread_stop(recorder, 0));
    mu_drain_thread_call(recorder);
    pthread_mutex_lock(&recorder->thread_lock);
    pthread_mutex_unlock(&recorder->drain_lock);
    while (!lock_after(recorder, before)) {
        sched_yield();
    }
    pthread_mutex_unlock(&recorder->thread_lock);
    wait_until_call_is_taken(recorder); /* it stands at the drain's lock for the last time */
    mu_drain_thread_call(recorder);
    pthread_mutex_unlock(&recorder->drain_lock);
    while (thread_runs(recorder)) {
        sched_yield();
    }
    mu_drain_thread_call(recorder);
    CHECK(thread_runs(recorder));
    mu_recorder_destroy(recorder);
}

int main(int argc, char **argv) {
    test_nested_stages_become_rows();
    test_names_are_compared_whole();
    test_rows_before_open_are_replayed();
    test_open_stage_is_written_once();
    test_stage_that_ended_but_still_stands_as_open();
    test_misuse();
    test_stages_out_of_order();
    test_a_recorder_without_memory_begins_later();
    test_deep_stages();
    test_names_beyond_the_table();
    test_events();
    test_full_ring_drops_and_counts();
    if (children_have_threads(argc, argv)) {
        test_forked_child_has_files_of_its_own();
    }
    test_dead_journal_is_adopted();
    test_rotation_keeps_the_newest();
    test_names_that_are_new_in_the_middle_of_a_drain();
    test_names_that_are_new_to_an_image_of_the_own_journal();
    test_eight_threads_lose_nothing();
    test_threads_end_while_files_move();
    test_chunks_are_given_back_while_the_journal_moves();
    test_threads_end_while_their_recorder_does();
    test_a_thread_outlives_its_recorder();
    test_a_late_call_of_the_drain_thread_is_not_the_last();
    return check_report();
}
