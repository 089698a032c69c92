/* Crashes: victims are killed at random moments while they record, drain, rotate or adopt, and what
 * they finished must be found once. They prove what they did through counters in shared memory.
 *
 *   test_faults [RUNS [SEED]]    the defaults are 200 and 1; a failure prints run and seed
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "journal/journal_reader.h"
#include "profile_files/adopt.h"
#include "tests/stages/recorder_fixture.h"

enum { THREADS_MAX = 8, OPS_A_LAP = 5, LAPS_MAX = 40000, OPS_MAX = LAPS_MAX * OPS_A_LAP };

/* What a lap of a victim's thread does, in this order. */
enum op { START_OUTER, START_INNER, MARK, STOP_INNER, STOP_OUTER };

/* Op number n is counted in `begun` before it is done and in `done` after. */
struct tally {
    _Atomic uint64_t begun, done;
    char pad[48];
};

struct proof {
    struct tally tallies[THREADS_MAX];
    _Atomic int opened;
};

struct scenario {
    int threads;
    int drain_every; /* laps */
    int io;          /* enum mu_io */
    uint64_t max_csv_bytes;
    bool offsets;       /* set_time_offset now and then */
    bool early;         /* the kill may fall into the opening of files */
    int adopters;       /* killed while they adopt */
    int64_t kill_us;    /* after the victim has opened, or after the fork when early */
    int64_t adopter_us; /* the same for adopters */
};

struct random_source {
    uint64_t state;
};

static uint64_t next_random(struct random_source *source) {
    source->state ^= source->state << 13;
    source->state ^= source->state >> 7;
    source->state ^= source->state << 17;
    return source->state * UINT64_C(2685821657736338717) >> 16;
}

static int64_t pick(struct random_source *source, int64_t low, int64_t high) {
    return low + (int64_t)(next_random(source) % (uint64_t)(high - low + 1));
}

/* Small times come up as often as large ones. */
static int64_t pick_us(struct random_source *source, int64_t most) {
    return pick(source, 0, pick(source, 1, pick(source, 2, most)));
}

static struct scenario make_scenario(struct random_source *source) {
    static const int every[] = {1, 3, 20, 200};
    struct scenario scenario = {
        .threads = (int)pick(source, 1, THREADS_MAX),
        .drain_every = every[pick(source, 0, 3)],
        .io = pick(source, 0, 3) == 0 ? MU_IO_BACKGROUND : MU_IO_INLINE,
        .max_csv_bytes = pick(source, 0, 2) == 0 ? (uint64_t)pick(source, 2000, 60000) : 0,
        .offsets = pick(source, 0, 3) == 0,
        .early = pick(source, 0, 9) == 0,
        .adopters = pick(source, 0, 2) == 0 ? (int)pick(source, 1, 2) : 0,
        .kill_us = pick_us(source, 6000),
        .adopter_us = pick_us(source, 3000),
    };
    return scenario;
}

/* --- the victim ---------------------------------------------------------------------------- */

struct victim_thread {
    struct mu_recorder *recorder;
    struct proof *proof;
    const struct scenario *scenario;
    int index;
};

static void begin_op(struct tally *tally) {
    atomic_fetch_add(&tally->begun, 1);
}

static void end_op(struct tally *tally) {
    atomic_fetch_add(&tally->done, 1);
}

static void record_mark(struct mu_timer *timer, int lap) {
    char metadata[200];
    int length = snprintf(metadata, sizeof(metadata), "lap=%d,fill=%.*s", lap, lap % 120,
                          "........................................................................"
                          "................................................");
    struct mu_event event = {.type = 3,
                             .name = "mark",
                             .name_length = 4,
                             .metadata = metadata,
                             .metadata_length = (size_t)length,
                             .step = lap};
    mu_thread_buffer_event(mu_timer_thread_buffer(timer), &event);
}

static void record_lap(struct mu_timer *timer, struct tally *tally, int lap) {
    atomic_store(&timer->step, lap);
    begin_op(tally);
    stage_start(timer, "outer");
    end_op(tally);
    begin_op(tally);
    stage_start(timer, "inner");
    end_op(tally);
    begin_op(tally);
    record_mark(timer, lap);
    end_op(tally);
    begin_op(tally);
    stage_stop(timer, "inner");
    end_op(tally);
    begin_op(tally);
    stage_stop(timer, "outer");
    end_op(tally);
}

/* A full ring drops records by design; that is not what is tested here. */
static void wait_for_room(struct mu_timer *timer) {
    struct mu_thread_buffer *buffer = mu_timer_thread_buffer(timer);
    while (buffer->head - atomic_load(&buffer->chunk->tail) > MU_RING_SLOTS / 2) {
        mu_recorder_drain(timer->recorder, drain_wait_ns);
        sched_yield();
    }
}

static void *victim_thread_main(void *argument) {
    const struct victim_thread *self = argument;
    struct tally *tally = &self->proof->tallies[self->index];
    struct mu_timer timer;
    char tag[8];
    snprintf(tag, sizeof(tag), "t%d", self->index);
    mu_error_kept(mu_timer_init(&timer, self->recorder, tag, NULL));
    for (int lap = 0; lap < LAPS_MAX; lap++) {
        record_lap(&timer, tally, lap);
        wait_for_room(&timer);
        if (lap % self->scenario->drain_every == 0) {
            mu_recorder_drain(self->recorder, drain_wait_ns);
        }
        if (self->scenario->offsets && self->index == 0 && lap % 50 == 49) {
            mu_recorder_set_time_offset(self->recorder, (int64_t)lap * 1000);
        }
    }
    pause();
    return NULL;
}

static struct mu_output_config scenario_config(const struct fixture *fixture,
                                               const struct scenario *scenario) {
    struct mu_output_config config = fixture_config(fixture);
    config.io = scenario->io;
    config.max_csv_bytes = scenario->max_csv_bytes;
    return config;
}

static void run_victim(const struct fixture *fixture, const struct scenario *scenario,
                       struct proof *proof) {
    struct mu_recorder *recorder;
    struct mu_open_report report;
    struct victim_thread threads[THREADS_MAX];
    struct mu_output_config config = scenario_config(fixture, scenario);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (mu_recorder_create(&recorder, NULL) != MU_OK ||
        mu_recorder_open(recorder, &config, &report, NULL) != MU_OK ||
        report.journal_path[0] == '\0') {
        _exit(1);
    }
    atomic_store(&proof->opened, 1);
    for (int i = 0; i < scenario->threads; i++) {
        pthread_t thread;
        threads[i] = (struct victim_thread){recorder, proof, scenario, i};
        if (pthread_create(&thread, NULL, victim_thread_main, &threads[i]) != 0) {
            _exit(2);
        }
    }
    for (;;) {
        pause();
    }
}

static void run_adopter(const struct fixture *fixture, const struct scenario *scenario,
                        struct proof *proof) {
    struct mu_recorder *recorder;
    struct mu_open_report report;
    struct mu_output_config config = scenario_config(fixture, scenario);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (mu_recorder_create(&recorder, NULL) != MU_OK) {
        _exit(1);
    }
    atomic_store(&proof->opened, 1);
    mu_error_kept(mu_recorder_open(recorder, &config, &report, NULL));
    for (;;) { /* the kill goes by the processor time */
        sched_yield();
    }
}

static void wait_us(int64_t us) {
    int64_t until = mu_clock_ns(CLOCK_MONOTONIC) + us * 1000;
    while (mu_clock_ns(CLOCK_MONOTONIC) < until) {
    }
}

/* Until the process has had so much of a processor: on a busy machine it would be killed before it
 * does anything, were it by the clock on the wall. One that sleeps is not waited for. */
static void wait_for_work(pid_t child, int64_t us) {
    clockid_t clock;
    if (!CHECK_INT(clock_getcpuclockid(child, &clock), 0)) {
        return;
    }
    int64_t until = mu_clock_ns(clock) + us * 1000;
    int64_t at_last = mu_clock_ns(CLOCK_MONOTONIC) + 1000000000;
    while (mu_clock_ns(clock) < until && mu_clock_ns(CLOCK_MONOTONIC) < at_last) {
        sched_yield();
    }
}

static void wait_for_open(const struct proof *proof) {
    while (!atomic_load(&proof->opened)) {
        sched_yield();
    }
}

typedef void (*role)(const struct fixture *, const struct scenario *, struct proof *);

static void kill_in_the_middle(role role, const struct fixture *fixture,
                               const struct scenario *scenario, struct proof *proof,
                               int64_t after_us, bool at_once) {
    int status = 0;
    atomic_store(&proof->opened, 0);
    pid_t child = fork();
    if (child == 0) {
        role(fixture, scenario, proof);
    }
    if (!at_once) {
        wait_for_open(proof);
    }
    wait_for_work(child, after_us);
    kill(child, SIGKILL);
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* --- what must be found -------------------------------------------------------------------- */

struct found {
    uint8_t *seen[THREADS_MAX];  /* owned: times that an op was found */
    uint64_t *node[THREADS_MAX]; /* owned: node id of the START, by lap and depth */
    int64_t last[THREADS_MAX];   /* op of the newest row */
    uint64_t torn;
    uint64_t out_of_order;
    uint64_t strange;
};

static void found_init(struct found *found) {
    memset(found, 0, sizeof(*found));
    for (int i = 0; i < THREADS_MAX; i++) {
        found->seen[i] = calloc(OPS_MAX, 1);
        found->node[i] = calloc((size_t)LAPS_MAX * 2, sizeof(uint64_t));
        found->last[i] = -1;
    }
}

static void found_free(struct found *found) {
    for (int i = 0; i < THREADS_MAX; i++) {
        free(found->seen[i]);
        free(found->node[i]);
    }
}

static bool is_time(const char *field) {
    int whole, nano, used = 0;
    return sscanf(field, "%d.%9d%n", &whole, &nano, &used) == 2 && field[used] == '\0' &&
           strlen(strchr(field, '.')) == 10;
}

/* Splits a row in place at the commas before the metadata. */
static bool split_row(char *row, char *fields[8]) {
    char *at = row;
    for (int i = 0; i < 7; i++) {
        fields[i] = at;
        at = strchr(at, ',');
        if (at == NULL) {
            return false;
        }
        *at++ = '\0';
    }
    fields[7] = at;
    size_t length = strlen(at);
    return is_time(fields[0]) && length >= 2 && at[0] == '"' && at[length - 1] == '"' &&
           memchr(at + 1, '"', length - 2) == NULL;
}

static int op_of(const char *name, const char *type) {
    bool start = strcmp(type, "START") == 0, end = strcmp(type, "END") == 0;
    if (strcmp(name, "outer") == 0 && (start || end)) {
        return start ? START_OUTER : STOP_OUTER;
    }
    if (strcmp(name, "inner") == 0 && (start || end)) {
        return start ? START_INNER : STOP_INNER;
    }
    return strcmp(name, "mark") == 0 && strcmp(type, "INSTANT") == 0 ? MARK : -1;
}

static void note_node(struct found *found, int thread, int64_t lap, int op, const char *metadata) {
    const char *text = strstr(metadata, "node_id=");
    uint64_t node = text == NULL ? 0 : strtoull(text + 8, NULL, 10);
    if (op == MARK) {
        return;
    }
    bool inner = op == START_INNER || op == STOP_INNER;
    uint64_t *known = &found->node[thread][lap * 2 + inner];
    if (op == START_OUTER || op == START_INNER) {
        *known = node;
    }
    found->strange += node == 0 || *known != node;
}

static void note_row(struct found *found, char *row) {
    char *fields[8];
    if (!split_row(row, fields)) {
        found->torn++;
        return;
    }
    if (strncmp(fields[4], "my_utils.", 9) == 0 || strncmp(fields[7], "\"opens=", 7) == 0 ||
        strstr(fields[7], ",repeated=1") != NULL) {
        return;
    }
    const char *tag = strstr(fields[7], "tag=t");
    int op = op_of(fields[4], fields[5]);
    int64_t lap = strtoll(fields[3], NULL, 10);
    int thread = tag == NULL ? -1 : tag[5] - '0';
    if (op < 0 || thread < 0 || thread >= THREADS_MAX || lap < 0 || lap >= LAPS_MAX) {
        found->strange++;
        return;
    }
    int64_t number = lap * OPS_A_LAP + op;
    found->seen[thread][number]++;
    found->out_of_order += number <= found->last[thread];
    found->last[thread] = number;
    note_node(found, thread, lap, op, fields[7]);
}

/* Destroys the text. */
static void note_rows(struct found *found, char *text, size_t length) {
    for (char *row = text, *end = text + length; row < end;) {
        char *newline = memchr(row, '\n', (size_t)(end - row));
        if (newline == NULL) {
            found->torn++;
            return;
        }
        *newline = '\0';
        if (strncmp(row, "timestamp_unix,", 15) != 0) {
            note_row(found, row);
        }
        row = newline + 1;
    }
}

/* The file up to `limit`. Returns false when there is none. */
static bool note_file(struct found *found, const char *path, uint64_t limit) {
    if (access(path, F_OK) != 0) {
        return false;
    }
    char *text = read_text(path);
    size_t length = strlen(text);
    CHECK(limit == UINT64_MAX || length >= limit);
    note_rows(found, text, length < limit ? length : limit);
    free(text);
    return true;
}

static void part_path(const struct fixture *fixture, uint64_t part, char path[128]) {
    snprintf(path, 128, "%s/profile_rank_0.part%04d.csv", fixture->directory, (int)part);
}

static bool check_found(const struct found *found, const struct proof *proof) {
    uint64_t lost = 0, doubled = 0, invented = 0;
    for (int i = 0; i < THREADS_MAX; i++) {
        uint64_t begun = atomic_load(&proof->tallies[i].begun);
        uint64_t done = atomic_load(&proof->tallies[i].done);
        for (uint64_t op = 0; op < OPS_MAX && (op <= begun || found->seen[i][op] > 0); op++) {
            lost += op < done && found->seen[i][op] == 0;
            doubled += found->seen[i][op] > 1;
            invented += op >= begun && found->seen[i][op] > 0;
        }
    }
    bool good = CHECK_INT(lost, 0);
    good = CHECK_INT(doubled, 0) && good;
    good = CHECK_INT(invented, 0) && good;
    good = CHECK_INT(found->torn, 0) && good;
    good = CHECK_INT(found->strange, 0) && good;
    return CHECK_INT(found->out_of_order, 0) && good;
}

/* --- the two ways to get it back ----------------------------------------------------------- */

static bool ends_with(const char *text, const char *suffix) {
    size_t length = strlen(text), tail = strlen(suffix);
    return length > tail && strcmp(text + length - tail, suffix) == 0;
}

static bool find_file(const struct fixture *fixture, const char *suffix, char path[128]) {
    DIR *directory = opendir(fixture->directory);
    bool found = false;
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        if (ends_with(entry->d_name, suffix)) {
            snprintf(path, 128, "%s/%.60s", fixture->directory, entry->d_name);
            found = true;
        }
    }
    closedir(directory);
    return found;
}

/* The path of the victim's journal; false when it was killed before it had one. */
static bool find_journal(const struct fixture *fixture, char path[128]) {
    return find_file(fixture, ".journal", path);
}

/* Without changing a file: the parts, the CSV as far as the commit says, the journal's rows.
 * `ahead` says whether the CSV had more. */
static bool check_by_reading(const struct fixture *fixture, const struct proof *proof,
                             bool *ahead) {
    struct mu_journal_image image;
    struct mu_csv_writer writer;
    struct mu_recovered recovered = {0};
    struct mu_error err = {0};
    struct found found;
    char journal[128], path[128], csv[256];
    if (!find_journal(fixture, journal) || mu_journal_image_read(&image, journal, &err) != MU_OK) {
        return CHECK_INT(atomic_load(&proof->tallies[0].begun), 0);
    }
    found_init(&found);
    mu_csv_writer_init(&writer);
    for (uint64_t part = 1; part <= image.csv_part; part++) {
        part_path(fixture, part, path);
        CHECK(note_file(&found, path, UINT64_MAX));
    }
    mu_journal_image_csv_path(&image, journal, csv, sizeof(csv));
    CHECK(note_file(&found, csv, image.csv_bytes));
    struct stat status;
    *ahead = stat(csv, &status) == 0 && (uint64_t)status.st_size > image.csv_bytes;
    CHECK_INT(mu_journal_image_rows(&image, &writer, &recovered, NULL), MU_OK);
    CHECK_INT(recovered.bad_records, 0);
    note_rows(&found, writer.buffer, writer.length);
    bool good = check_found(&found, proof);
    mu_csv_writer_free(&writer);
    mu_journal_image_close(&image);
    found_free(&found);
    return good;
}

/* A new process of the rank opens the same directory. */
static bool check_by_adoption(const struct fixture *fixture, const struct scenario *scenario,
                              const struct proof *proof) {
    struct mu_recorder *recorder;
    struct mu_open_report report;
    struct mu_error err = {0};
    struct found found;
    char path[128];
    struct mu_output_config config = scenario_config(fixture, scenario);
    CHECK_INT(mu_recorder_create(&recorder, NULL), MU_OK);
    if (!CHECK_INT(mu_recorder_open(recorder, &config, &report, &err), MU_OK)) {
        fprintf(stderr, "%s\n", err.message);
    }
    CHECK_INT(report.worker, 0);
    CHECK_INT(mu_recorder_close(recorder, NULL), MU_OK);
    mu_recorder_destroy(recorder);
    CHECK(!find_journal(fixture, path));
    found_init(&found);
    for (uint64_t part = 1; part_path(fixture, part, path), note_file(&found, path, UINT64_MAX);) {
        part++;
    }
    CHECK(note_file(&found, report.csv_path, UINT64_MAX));
    bool good = check_found(&found, proof);
    found_free(&found);
    return good;
}

struct totals {
    uint64_t ops;
    int ahead; /* victims that were killed between a write and its commit */
};

static bool run_once(struct random_source *source, struct proof *proof, struct totals *totals) {
    bool ahead = false;
    struct scenario scenario = make_scenario(source);
    struct fixture fixture;
    memset(proof, 0, sizeof(*proof));
    fixture_directory(&fixture);
    kill_in_the_middle(run_victim, &fixture, &scenario, proof, scenario.kill_us, scenario.early);
    bool good = check_by_reading(&fixture, proof, &ahead);
    totals->ahead += ahead;
    for (int i = 0; i < scenario.adopters; i++) {
        kill_in_the_middle(run_adopter, &fixture, &scenario, proof, scenario.adopter_us, false);
    }
    good = check_by_adoption(&fixture, &scenario, proof) && good;
    if (!good) {
        fprintf(stderr,
                "threads=%d drain_every=%d io=%d max_csv_bytes=%d offsets=%d early=%d adopters=%d "
                "kill_us=%d adopter_us=%d\n",
                scenario.threads, scenario.drain_every, scenario.io, (int)scenario.max_csv_bytes,
                scenario.offsets, scenario.early, scenario.adopters, (int)scenario.kill_us,
                (int)scenario.adopter_us);
    }
    for (int i = 0; i < THREADS_MAX; i++) {
        totals->ops += atomic_load(&proof->tallies[i].done);
    }
    fixture_remove(&fixture);
    return good;
}

static void test_kills(int runs, uint64_t seed) {
    struct proof *proof =
        mmap(NULL, sizeof(*proof), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!CHECK(proof != MAP_FAILED)) {
        return;
    }
    struct totals totals = {0};
    for (int run = 0; run < runs; run++) {
        struct random_source source = {
            (seed * 1000003 + (uint64_t)run) * UINT64_C(0x9E3779B97F4A7C15) + 1};
        if (!run_once(&source, proof, &totals)) {
            fprintf(stderr, "run %d of seed %d failed\n", run, (int)seed);
        }
    }
    printf("%d kills (seed %d, %d between a write and its commit), %" PRIu64 " ops, ", runs,
           (int)seed, totals.ahead, totals.ops);
    munmap(proof, sizeof(*proof));
}

/* --- writes that fail ---------------------------------------------------------------------- */

/* While a limit is set, files do not grow beyond it; what does fit is written. */
static void limit_files(uint64_t bytes) {
    struct rlimit limit;
    CHECK_INT(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes == 0 ? limit.rlim_max : bytes;
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void record_laps(struct mu_timer *timer, struct tally *tally, int from, int to) {
    for (int lap = from; lap < to; lap++) {
        record_lap(timer, tally, lap);
    }
}

static void test_full_disk_leaves_no_torn_row(void) {
    struct fixture fixture;
    struct mu_timer timer;
    struct tally tally = {0};
    struct found found;
    signal(SIGXFSZ, SIG_IGN);
    fixture_start(&fixture);
    mu_error_kept(mu_timer_init(&timer, fixture.recorder, "t0", NULL));
    fixture_open(&fixture);
    record_laps(&timer, &tally, 0, 10);
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    struct stat before;
    stat(fixture.report.csv_path, &before);
    limit_files((uint64_t)before.st_size + 5000);
    record_laps(&timer, &tally, 10, 110);
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    CHECK_INT(atomic_load(&fixture.recorder->troubles.failed_writes), 1);
    CHECK_INT(atomic_load(&fixture.recorder->troubles.lost_rows), 500);
    CHECK_INT(atomic_load(&fixture.recorder->troubles.last_errno), EFBIG);
    record_laps(&timer, &tally, 110, 112);
    mu_recorder_drain(fixture.recorder, drain_wait_ns);
    limit_files(0);
    found_init(&found);
    note_file(&found, fixture.report.csv_path, UINT64_MAX);
    CHECK_INT(found.torn, 0);
    for (int lap = 0; lap < 112; lap++) {
        CHECK_INT(found.seen[0][lap * OPS_A_LAP + STOP_OUTER], lap < 10 || lap >= 110);
    }
    found_free(&found);
    mu_timer_release(&timer);
    CHECK_INT(mu_recorder_close(fixture.recorder, NULL), MU_OK);
    fixture_end(&fixture);
}

/* --- adoption ------------------------------------------------------------------------------ */

/* In a forked child: a recorder with open files, for its timer. */
static struct mu_recorder *open_in_child(const struct fixture *fixture, struct mu_timer *timer) {
    struct mu_recorder *recorder;
    struct mu_open_report report;
    struct mu_output_config config = fixture_config(fixture);
    mu_error_kept(mu_recorder_create(&recorder, NULL));
    mu_error_kept(mu_timer_init(timer, recorder, "t0", NULL));
    mu_error_kept(mu_recorder_open(recorder, &config, &report, NULL));
    return recorder;
}

static void wait_for_end(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_INT(status, 0);
}

/* A process that records `laps`, drains half of them, and ends without a close. */
static void run_and_die(const struct fixture *fixture, int from, int laps) {
    pid_t child = fork();
    if (child == 0) {
        struct mu_timer timer;
        struct tally tally = {0};
        struct mu_recorder *recorder = open_in_child(fixture, &timer);
        record_laps(&timer, &tally, from, from + laps / 2);
        mu_recorder_drain(recorder, drain_wait_ns);
        record_laps(&timer, &tally, from + laps / 2, from + laps);
        _exit(0);
    }
    wait_for_end(child);
}

static void check_laps(const char *csv_path, int laps) {
    struct found found;
    found_init(&found);
    note_file(&found, csv_path, UINT64_MAX);
    CHECK_INT(found.torn, 0);
    for (int op = 0; op < laps * OPS_A_LAP; op++) {
        CHECK_INT(found.seen[0][op], 1);
    }
    found_free(&found);
}

static void test_late_adoption_keeps_what_came_after(void) {
    struct fixture fixture;
    char journal[128], hidden[160];
    fixture_directory(&fixture);
    run_and_die(&fixture, 0, 20);
    CHECK(find_journal(&fixture, journal));
    snprintf(hidden, sizeof(hidden), "%s.hidden", journal);
    CHECK_INT(rename(journal, hidden), 0);
    run_and_die(&fixture, 20, 20);
    mu_error_kept(mu_recorder_create(&fixture.recorder, NULL));
    fixture_open(&fixture);
    CHECK_INT(fixture.report.adopted_journals, 1);
    mu_error_kept(mu_recorder_close(fixture.recorder, NULL));
    mu_recorder_destroy(fixture.recorder);
    CHECK_INT(rename(hidden, journal), 0);
    mu_error_kept(mu_recorder_create(&fixture.recorder, NULL));
    fixture_open(&fixture);
    CHECK_INT(fixture.report.adopted_journals, 1);
    mu_error_kept(mu_recorder_close(fixture.recorder, NULL));
    check_laps(fixture.report.csv_path, 40);
    fixture_end(&fixture);
}

/* In a forked child: it dies before it removes a file that ends so. */
static const char *deadly_suffix;

/* Takes the place of libc's for this program. */
int unlink(const char *path) {
    if (deadly_suffix != NULL && ends_with(path, deadly_suffix)) {
        kill(getpid(), SIGKILL);
    }
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

/* A process that is killed while it adopts a journal, before it removes the file. */
static void adopt_and_die(const struct fixture *fixture, const char *suffix) {
    pid_t child = fork();
    if (child == 0) {
        struct mu_recorder *recorder;
        struct mu_open_report report;
        struct mu_output_config config = fixture_config(fixture);
        deadly_suffix = suffix;
        mu_error_kept(mu_recorder_create(&recorder, NULL));
        mu_error_kept(mu_recorder_open(recorder, &config, &report, NULL));
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* What stands between the rows that the victim wrote and those that are adopted. */
enum between { NOTHING, ROTATION, ANOTHER_PROCESS };

static void test_killed_adopter_leaves_no_double_rows(enum between between) {
    struct fixture fixture;
    struct found found;
    char journal[128], hidden[160], csv[128], part[128];
    fixture_directory(&fixture);
    run_and_die(&fixture, 0, 20);
    CHECK(find_journal(&fixture, journal));
    snprintf(csv, sizeof(csv), "%s/profile_rank_0.csv", fixture.directory);
    part_path(&fixture, 1, part);
    if (between == ROTATION) { /* the victim died in its middle */
        CHECK_INT(rename(csv, part), 0);
    }
    if (between == ANOTHER_PROCESS) {
        snprintf(hidden, sizeof(hidden), "%s.hidden", journal);
        CHECK_INT(rename(journal, hidden), 0);
        mu_error_kept(mu_recorder_create(&fixture.recorder, NULL));
        fixture_open(&fixture);
        mu_error_kept(mu_recorder_close(fixture.recorder, NULL));
        mu_recorder_destroy(fixture.recorder);
        CHECK_INT(rename(hidden, journal), 0);
    }
    adopt_and_die(&fixture, ".journal");
    adopt_and_die(&fixture, ".journal");
    mu_error_kept(mu_recorder_create(&fixture.recorder, NULL));
    fixture_open(&fixture);
    CHECK_INT(fixture.report.adopted_journals, 1);
    mu_error_kept(mu_recorder_close(fixture.recorder, NULL));
    found_init(&found);
    CHECK_INT(note_file(&found, part, UINT64_MAX), between == ROTATION);
    CHECK(note_file(&found, csv, UINT64_MAX));
    for (int op = 0; op < 20 * OPS_A_LAP; op++) {
        CHECK_INT(found.seen[0][op], 1);
    }
    CHECK_INT(found.out_of_order, 0);
    found_free(&found);
    fixture_end(&fixture);
}

struct mover {
    struct mu_timer timer;
    struct tally *tally; /* shared */
    int laps;
    int turns; /* of others, after which the process is killed */
};

/* Others record until the interpreter's lock is taken, while files move. */
static void record_before_alone(void *owner) {
    struct mover *mover = owner;
    record_laps(&mover->timer, mover->tally, mover->laps, mover->laps + 5);
    mover->laps += 5;
    if (--mover->turns == 0) {
        kill(getpid(), SIGKILL);
    }
}

static void not_alone(void *owner) {
    (void)owner;
}

/* A process that is killed while it moves to another directory. Returns false when it was done. */
static bool move_and_die(const struct fixture *from, const struct fixture *to, struct tally *tally,
                         int turns) {
    pid_t child = fork();
    if (child == 0) {
        struct mover mover = {.tally = tally, .turns = turns};
        const struct mu_alone alone = {record_before_alone, not_alone, &mover};
        struct mu_open_report report;
        struct mu_output_config config = fixture_config(to);
        struct mu_recorder *recorder = open_in_child(from, &mover.timer);
        mu_error_kept(mu_recorder_open_with(recorder, &config, &alone, &report, NULL));
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static bool a_killed_move_loses_nothing(int turns) {
    struct fixture from, to;
    struct found found;
    struct tally *tally =
        mmap(NULL, sizeof(*tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fixture_directory(&from);
    fixture_directory(&to);
    bool killed = move_and_die(&from, &to, tally, turns);
    found_init(&found);
    for (int i = 0; i < 2; i++) {
        struct fixture *fixture = i == 0 ? &from : &to;
        mu_error_kept(mu_recorder_create(&fixture->recorder, NULL));
        fixture_open(fixture);
        mu_error_kept(mu_recorder_close(fixture->recorder, NULL));
        CHECK(note_file(&found, fixture->report.csv_path, UINT64_MAX));
        fixture_end(fixture);
    }
    CHECK(atomic_load(&tally->done) > 0);
    for (uint64_t op = 0; op < atomic_load(&tally->done); op++) {
        CHECK_INT(found.seen[0][op], 1);
    }
    CHECK_INT(found.torn, 0);
    found_free(&found);
    munmap(tally, sizeof(*tally));
    return killed;
}

static void test_a_killed_move_loses_nothing(void) {
    int turns = 1;
    while (a_killed_move_loses_nothing(turns)) {
        turns++;
    }
    CHECK(turns > 4);
}

static bool find_pointer(const struct fixture *fixture, char path[128]) {
    return find_file(fixture, ".journal-ref", path);
}

/* The journal lies elsewhere, and its adopter is killed between the journal and its pointer. `here`
 * says whether the pointer names the directory as it is on this host. */
static void test_pointer_of_an_adopted_journal(bool here) {
    struct fixture fixture;
    char pointer[128], path[128], *text;
    fixture_directory(&fixture);
    snprintf(fixture.journals, sizeof(fixture.journals), "%.50s/elsewhere", fixture.directory);
    CHECK_INT(mkdir(fixture.journals, 0700), 0);
    run_and_die(&fixture, 0, 20);
    CHECK(find_pointer(&fixture, pointer));
    adopt_and_die(&fixture, ".journal-ref");
    CHECK(find_pointer(&fixture, pointer));
    if (!here) { /* as from a container that has another directory there */
        text = read_text(pointer);
        FILE *file = fopen(pointer, "w");
        fprintf(file, "%.*s\nanother-host 1 2\n", (int)strcspn(text, "\n"), text);
        fclose(file);
        free(text);
    }
    mu_error_kept(mu_recorder_create(&fixture.recorder, NULL));
    fixture_open(&fixture);
    CHECK_INT(fixture.report.adopted_journals, 0);
    mu_error_kept(mu_recorder_close(fixture.recorder, NULL));
    CHECK_INT(find_pointer(&fixture, path), !here);
    check_laps(fixture.report.csv_path, 20);
    CHECK_INT(rmdir(fixture.journals), 0);
    fixture_end(&fixture);
}

/* Records far more than a ring holds, twice, with a drain between, and ends without a close. */
static void overflow_and_die(const struct fixture *fixture, int laps) {
    pid_t child = fork();
    if (child == 0) {
        struct mu_timer timer;
        struct tally tally = {0};
        struct mu_recorder *recorder = open_in_child(fixture, &timer);
        pthread_mutex_lock(&recorder->drain_lock); /* the drain thread would make room */
        record_laps(&timer, &tally, 0, laps / 2);
        pthread_mutex_unlock(&recorder->drain_lock);
        mu_recorder_drain(recorder, drain_wait_ns);
        pthread_mutex_lock(&recorder->drain_lock);
        record_laps(&timer, &tally, laps / 2, laps);
        _exit(0);
    }
    wait_for_end(child);
}

/* What the rows say that was lost, all together. */
static uint64_t told_lost(const char *csv_path) {
    uint64_t lost = 0;
    char *text = read_text(csv_path);
    for (char *at = text; (at = strstr(at, ",my_utils.dropped,INSTANT,")) != NULL; at++) {
        lost += strtoull(strstr(at, "count=") + strlen("count="), NULL, 10);
    }
    free(text);
    return lost;
}

static void test_lost_records_are_counted_after_a_kill(void) {
    enum { LAPS = 4 * MU_RING_SLOTS, RECORDS_A_LAP = 3 };
    struct fixture fixture;
    struct found found;
    uint64_t records = 0;
    fixture_directory(&fixture);
    overflow_and_die(&fixture, LAPS);
    mu_error_kept(mu_recorder_create(&fixture.recorder, NULL));
    fixture_open(&fixture);
    mu_error_kept(mu_recorder_close(fixture.recorder, NULL));
    found_init(&found);
    CHECK(note_file(&found, fixture.report.csv_path, UINT64_MAX));
    for (int lap = 0; lap < LAPS; lap++) {
        const uint8_t *seen = found.seen[0] + (size_t)lap * OPS_A_LAP;
        records += (uint64_t)seen[MARK] + seen[STOP_INNER] + seen[STOP_OUTER];
    }
    CHECK(records < LAPS * RECORDS_A_LAP);
    CHECK_INT(records + told_lost(fixture.report.csv_path), LAPS * RECORDS_A_LAP);
    found_free(&found);
    fixture_end(&fixture);
}

static void test_journal_that_never_began_is_removed(void) {
    struct fixture fixture;
    char path[128];
    fixture_directory(&fixture);
    snprintf(path, sizeof(path), "%s/rank_0.1.1.journal", fixture.directory);
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && ftruncate(fileno(file), MU_JOURNAL_BYTES) == 0);
    fclose(file);
    mu_error_kept(mu_recorder_create(&fixture.recorder, NULL));
    fixture_open(&fixture);
    CHECK_INT(fixture.report.adopted_journals, 0);
    CHECK_INT(access(path, F_OK), -1);
    snprintf(path, sizeof(path), "%s/rank_0.1.1.journal.unreadable", fixture.directory);
    CHECK_INT(access(path, F_OK), -1);
    mu_error_kept(mu_recorder_close(fixture.recorder, NULL));
    fixture_end(&fixture);
}

/* A reader holds every journal that appears, like one that checks whether its process lives. */
static void *hold_new_journals(void *argument) {
    const struct fixture *fixture = argument;
    char path[128];
    while (!find_journal(fixture, path)) {
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    flock(fd, LOCK_SH | LOCK_NB);
    wait_us(20000);
    close(fd);
    return NULL;
}

static void test_reader_does_not_cost_the_journal(void) {
    for (int i = 0; i < 20; i++) {
        struct fixture fixture;
        pthread_t reader;
        fixture_start(&fixture);
        pthread_create(&reader, NULL, hold_new_journals, &fixture);
        fixture_open(&fixture);
        CHECK(fixture.report.journal_path[0] != '\0');
        pthread_join(reader, NULL);
        mu_error_kept(mu_recorder_close(fixture.recorder, NULL));
        fixture_end(&fixture);
    }
}

/* --- an output that hangs ------------------------------------------------------------------ */

static _Atomic bool writes_hang;
static _Atomic int writes_hanging;

/* Takes the place of libc's for this program. */
ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    atomic_fetch_add(&writes_hanging, 1);
    while (atomic_load(&writes_hang)) {
        wait_us(100);
        sched_yield();
    }
    atomic_fetch_sub(&writes_hanging, 1);
    return syscall(SYS_pwrite64, fd, bytes, length, offset);
}

static void wait_for_hang(struct mu_recorder *recorder) {
    while (atomic_load(&writes_hanging) == 0) {
        mu_recorder_drain(recorder, 0);
        sched_yield();
    }
}

static void open_in_background(struct fixture *fixture) {
    struct mu_output_config config = fixture_config(fixture);
    config.io = MU_IO_BACKGROUND;
    CHECK_INT(mu_recorder_open(fixture->recorder, &config, &fixture->report, NULL), MU_OK);
}

static void test_output_that_hangs_and_comes_back(void) {
    struct fixture fixture;
    struct mu_timer timer;
    struct tally tally = {0};
    struct mu_error err = {0};
    fixture_start(&fixture);
    mu_error_kept(mu_timer_init(&timer, fixture.recorder, "t0", NULL));
    open_in_background(&fixture);
    atomic_store(&writes_hang, true);
    record_laps(&timer, &tally, 0, 10);
    wait_for_hang(fixture.recorder);
    /* Were it to wait for the lock, a drain would take drain_wait_ns. */
    const int64_t long_ns = drain_wait_ns / 2;
    int64_t before = mu_clock_ns(CLOCK_MONOTONIC), longest = 0;
    for (int i = 10; i < 1000 && longest < long_ns; i++) {
        int64_t at = mu_clock_ns(CLOCK_MONOTONIC);
        record_lap(&timer, &tally, i);
        mu_recorder_drain(fixture.recorder, drain_wait_ns);
        int64_t took = mu_clock_ns(CLOCK_MONOTONIC) - at;
        longest = took > longest ? took : longest;
    }
    CHECK(longest < long_ns);
    CHECK_INT(mu_recorder_close(fixture.recorder, &err), MU_ERR_STATE);
    CHECK(strstr(err.message, "does not answer") != NULL);
    int64_t waited = mu_clock_ns(CLOCK_MONOTONIC) - before;
    CHECK(waited > 4000000000 && waited < long_ns);
    atomic_store(&writes_hang, false);
    while (mu_recorder_close(fixture.recorder, NULL) != MU_OK) {
        wait_us(1000);
    }
    open_in_background(&fixture);
    record_laps(&timer, &tally, 1000, 1010);
    mu_recorder_drain(fixture.recorder, 0);
    mu_error_kept(mu_recorder_close(fixture.recorder, NULL));
    check_laps(fixture.report.csv_path, 1010);
    mu_timer_release(&timer);
    fixture_end(&fixture);
}

static bool thread_runs(struct mu_recorder *recorder) {
    pthread_mutex_lock(&recorder->thread_lock);
    bool runs = recorder->thread_runs;
    pthread_mutex_unlock(&recorder->thread_lock);
    return runs;
}

/* The recorder goes away under a thread that hangs in a write; when that returns it must find
 * everything that it left. */
static void test_end_while_the_output_hangs(void) {
    struct fixture fixture;
    struct mu_timer timer;
    struct tally tally = {0};
    fixture_start(&fixture);
    mu_error_kept(mu_timer_init(&timer, fixture.recorder, "t0", NULL));
    open_in_background(&fixture);
    atomic_store(&writes_hang, true);
    record_laps(&timer, &tally, 0, 10);
    wait_for_hang(fixture.recorder);
    mu_recorder_destroy(fixture.recorder);
    atomic_store(&writes_hang, false);
    while (thread_runs(fixture.recorder)) {
        wait_us(1000);
        sched_yield();
    }
    check_laps(fixture.report.csv_path, 10);
    mu_timer_release(&timer);
    fixture_end(&fixture);
}

int main(int argc, char **argv) {
    int runs = argc > 1 ? atoi(argv[1]) : 200;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    test_full_disk_leaves_no_torn_row();
    test_late_adoption_keeps_what_came_after();
    test_killed_adopter_leaves_no_double_rows(NOTHING);
    test_killed_adopter_leaves_no_double_rows(ROTATION);
    test_killed_adopter_leaves_no_double_rows(ANOTHER_PROCESS);
    test_a_killed_move_loses_nothing();
    test_pointer_of_an_adopted_journal(true);
    test_pointer_of_an_adopted_journal(false);
    test_lost_records_are_counted_after_a_kill();
    test_journal_that_never_began_is_removed();
    test_reader_does_not_cost_the_journal();
    test_output_that_hangs_and_comes_back();
    test_end_while_the_output_hangs();
    test_kills(runs, seed);
    return check_report();
}
