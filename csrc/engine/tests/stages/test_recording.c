/* Threads record without any interpreter's lock while files are opened, moved and closed. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "stages/drain_thread.h"
#include "stages/recording.h"
#include "stages/thread_buffers.h"
#include "tests/stages/recorder_fixture.h"

enum { THREADS = 4, MOVES = 60, CLOSES = 100, BATCHES = 4, BATCH = 1000 };

struct recording {
    struct fixture fixture;
    struct mu_timer timer;
    atomic_bool moves, moved;
    atomic_int round;  /* of moves */
    atomic_int stages; /* that the threads recorded */
};

/* Says so before each call, as a binding without a GIL does. */
static void record_one(struct mu_timer *timer) {
    static const char name[] = "stage";
    struct mu_thread_buffer *buffer = mu_timer_thread_buffer(timer);
    mu_recording_begin(buffer);
    mu_thread_buffer_start(buffer, name, strlen(name), mu_name_hash(name, strlen(name)));
    mu_recording_end(buffer);
    mu_recording_begin(buffer);
    mu_thread_buffer_stop(buffer, name, strlen(name), mu_name_hash(name, strlen(name)));
    mu_recording_end(buffer);
}

/* So few in a round that the memory holds all rows, and in a batch that no ring is full before the
 * next drain. */
static void *record_until_moved(void *argument) {
    struct recording *recording = argument;
    int seen = 0;
    while (!atomic_load(&recording->moved)) {
        int round = atomic_load(&recording->round);
        for (int i = 0; round != seen && i < BATCHES * BATCH; i++) {
            record_one(&recording->timer);
            atomic_fetch_add(&recording->stages, 1);
            sched_yield(); /* to be still recording when the journal moves */
            if ((i + 1) % BATCH == 0) {
                mu_recorder_drain(recording->timer.recorder, drain_wait_ns);
            }
        }
        seen = round;
        sched_yield();
    }
    return NULL;
}

/* Every fifth time the journal goes to memory. */
static void move_to_and_fro(struct recording *recording, const char *other) {
    struct mu_output_config config = fixture_config(&recording->fixture);
    for (int i = 0; i < MOVES; i++) {
        atomic_fetch_add(&recording->round, 1);
        snprintf(config.log_dir, sizeof(config.log_dir), "%s",
                 i % 2 == 0 ? other : recording->fixture.directory);
        CHECK_INT(mu_recorder_open(recording->fixture.recorder, &config, &recording->fixture.report,
                                   NULL),
                  MU_OK);
        if (i % 5 == 0) {
            CHECK_INT(mu_recorder_close(recording->fixture.recorder, NULL), MU_OK);
        }
    }
}

static void check_nothing_is_lost(bool barrier_by_mover) {
    struct recording recording = {0};
    struct fixture other;
    pthread_t threads[THREADS];
    fixture_start(&recording.fixture);
    fixture_directory(&other);
    mu_recording_guard(recording.fixture.recorder);
    if (!barrier_by_mover) {
        atomic_store(&recording.fixture.recorder->moving, MU_BARRIER_BY_ALL);
    }
    CHECK_INT(mu_timer_init(&recording.timer, recording.fixture.recorder, "", NULL), MU_OK);
    for (int i = 0; i < THREADS; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, record_until_moved, &recording), 0);
    }
    move_to_and_fro(&recording, other.directory);
    atomic_store(&recording.moved, true);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    fixture_open(&recording.fixture);
    CHECK_INT(mu_recorder_close(recording.fixture.recorder, NULL), MU_OK);
    CHECK_INT(atomic_load(&recording.fixture.recorder->troubles.dropped_records), 0);
    CHECK_INT(atomic_load(&recording.fixture.recorder->troubles.lost_rows), 0);
    CHECK_INT(count_in_csvs(recording.fixture.directory, "stage,END") +
                  count_in_csvs(other.directory, "stage,END"),
              atomic_load(&recording.stages));
    mu_timer_release(&recording.timer);
    fixture_remove(&other);
    fixture_end(&recording.fixture);
}

static void test_nothing_is_lost_while_files_move(void) {
    check_nothing_is_lost(true);
}

/* As in a sandbox that does not know membarrier. */
static void test_nothing_is_lost_without_membarrier(void) {
    check_nothing_is_lost(false);
}

static void *call_until_moved(void *argument) {
    struct recording *recording = argument;
    while (!atomic_load(&recording->moved)) {
        mu_drain_thread_call(recording->fixture.recorder);
    }
    return NULL;
}

/* Each starts a drain thread anew, also between the end of the last one and the caller's look. */
static void test_calls_hold_up_no_close(void) {
    struct recording recording = {0};
    pthread_t threads[THREADS];
    fixture_start(&recording.fixture);
    for (int i = 0; i < THREADS; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, call_until_moved, &recording), 0);
    }
    for (int i = 0; i < CLOSES; i++) {
        fixture_open(&recording.fixture);
        CHECK_INT(mu_recorder_close(recording.fixture.recorder, NULL), MU_OK);
    }
    atomic_store(&recording.moved, true);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK_INT(mu_recorder_close(recording.fixture.recorder, NULL), MU_OK);
    fixture_end(&recording.fixture);
}

static void *move_until_moved(void *argument) {
    struct recording *recording = argument;
    mu_recording_pause(recording->fixture.recorder);
    atomic_store(&recording->moves, true);
    while (!atomic_load(&recording->moved)) {
        sched_yield();
    }
    mu_recording_resume(recording->fixture.recorder);
    return NULL;
}

static int record_in_child(struct recording *recording) {
    record_one(&recording->timer);
    fixture_open(&recording->fixture);
    record_one(&recording->timer);
    CHECK_INT(mu_recorder_close(recording->fixture.recorder, NULL), MU_OK);
    return count_in_csvs(recording->fixture.directory, "stage,END");
}

/* A child is born while another thread of its parent moves the journal: the child records on. */
static void test_child_of_a_mover_records(void) {
    struct recording recording = {0};
    pthread_t mover;
    int status = 0;
    fixture_start(&recording.fixture);
    mu_recording_guard(recording.fixture.recorder);
    CHECK_INT(mu_timer_init(&recording.timer, recording.fixture.recorder, "", NULL), MU_OK);
    record_one(&recording.timer);
    CHECK_INT(pthread_create(&mover, NULL, move_until_moved, &recording), 0);
    while (!atomic_load(&recording.moves)) {
        sched_yield();
    }
    pid_t child = fork();
    if (child == 0) {
        _exit(record_in_child(&recording));
    }
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    atomic_store(&recording.moved, true);
    pthread_join(mover, NULL);
    mu_timer_release(&recording.timer);
    fixture_end(&recording.fixture);
}

int main(int argc, char **argv) {
    test_nothing_is_lost_while_files_move();
    test_nothing_is_lost_without_membarrier();
    test_calls_hold_up_no_close();
    if (children_have_threads(argc, argv)) {
        test_child_of_a_mover_records();
    }
    return check_report();
}
