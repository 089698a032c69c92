#include "stages/open_profile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/event.h"
#include "base/own_files.h"
#include "base/process.h"
#include "profile_files/adopt.h"
#include "profile_files/placement.h"
#include "stages/drain.h"
#include "stages/drain_thread.h"
#include "stages/fork.h"
#include "stages/heartbeat.h"
#include "stages/output_state.h"
#include "stages/recording.h"
#include "stages/stack_service.h"

/* Node ids of a process begin at a multiple of 2^40, of which there are 2^13, so that they fit into
 * a double. Attempts count from below, and workers from above with their bits reversed, so that the
 * two meet late: with up to 7 workers after 1,024 attempts. */
enum { PROCESS_BITS = 13 };

enum { POINTER_BYTES = MU_PATH_BYTES + 8 };

/* In all: what the process says at its end may wait a second more for the same mount. */
static const int64_t close_wait_ns = 4000000000;

static bool lock_within(pthread_mutex_t *mutex, int64_t wait_ns) {
    bool locked = pthread_mutex_trylock(mutex) == 0;
    for (; !locked && wait_ns > 0; wait_ns -= MU_WAIT_ONCE_NS) {
        struct timespec until =
            mu_clock_after(CLOCK_REALTIME, wait_ns < MU_WAIT_ONCE_NS ? wait_ns : MU_WAIT_ONCE_NS);
        locked = pthread_mutex_timedlock(mutex, &until) == 0;
    }
    return locked;
}

void mu_recorder_drain(struct mu_recorder *recorder, int64_t wait_ns) {
    mu_recorder_check_fork(recorder);
    if (recorder->broken) {
        return;
    }
    if (recorder->in_background) {
        mu_drain_thread_call(recorder);
        return;
    }
    if (lock_within(&recorder->drain_lock, wait_ns)) {
        mu_drain_run_lock_held(recorder);
        pthread_mutex_unlock(&recorder->drain_lock);
    }
}

/* The GIL comes before the registry's lock, which threads that have the GIL wait for. */
static void begin_alone(void *owner) {
    struct mu_recorder *recorder = owner;
    if (recorder->gil != NULL) {
        recorder->gil->begin(recorder->gil->owner);
    }
    mu_recording_pause(recorder);
}

static void end_alone(void *owner) {
    struct mu_recorder *recorder = owner;
    mu_recording_resume(recorder);
    if (recorder->gil != NULL) {
        recorder->gil->end(recorder->gil->owner);
    }
}

MU_MUST_CHECK static int attach_alone(struct mu_recorder *recorder, const char *path,
                                      struct mu_error *err) {
    struct mu_alone alone = {begin_alone, end_alone, recorder};
    recorder->journal.alone = &alone;
    int code = mu_journal_attach(&recorder->journal, path, err);
    recorder->journal.alone = NULL;
    return code;
}

MU_MUST_CHECK static int detach_alone(struct mu_recorder *recorder, struct mu_error *err) {
    struct mu_alone alone = {begin_alone, end_alone, recorder};
    recorder->journal.alone = &alone;
    int code = mu_journal_detach(&recorder->journal, err);
    recorder->journal.alone = NULL;
    return code;
}

MU_MUST_CHECK static int does_not_answer(struct mu_recorder *recorder, struct mu_error *err) {
    struct mu_output_state state;
    mu_recorder_output_state(recorder, &state);
    return mu_error_set(err, MU_ERR_STATE, "the output in use does not answer: %s", state.csv_path);
}

/* Counts a call of a recorder that records nothing, and says why it does not. */
MU_MUST_CHECK static int refuse(struct mu_recorder *recorder, struct mu_error *err) {
    if (recorder->has_key) {
        atomic_fetch_add(&recorder->troubles.no_memory, 1);
        return mu_error_no_memory(err, "the recorder of this process; it records nothing");
    }
    atomic_fetch_add(&recorder->troubles.no_thread_key, 1);
    return mu_error_set(err, MU_ERR_STATE, "no thread key is left in this process");
}

int mu_recorder_copy_memory(struct mu_recorder *recorder, int64_t wait_ns, char **text,
                            size_t *length, struct mu_error *err) {
    mu_recorder_check_fork(recorder);
    if (recorder->broken) {
        *length = 0;
        *text = calloc(1, 1);
        return *text == NULL ? mu_error_no_memory(err, "rows in memory") : MU_OK;
    }
    if (!lock_within(&recorder->drain_lock, wait_ns)) {
        return does_not_answer(recorder, err);
    }
    const struct mu_output *output = &recorder->output;
    *length = output->memory_bytes;
    *text = malloc(output->memory_bytes + 1);
    if (*text != NULL && output->memory_bytes > 0) {
        memcpy(*text, output->memory, output->memory_bytes);
    }
    pthread_mutex_unlock(&recorder->drain_lock);
    return *text == NULL ? mu_error_no_memory(err, "rows in memory") : MU_OK;
}

bool mu_recorder_set_time_offset(struct mu_recorder *recorder, int64_t offset_ns) {
    mu_recorder_check_fork(recorder);
    if (recorder->broken) {
        recorder->user_offset_ns = offset_ns;
        return true;
    }
    if (!lock_within(&recorder->drain_lock, close_wait_ns)) {
        return false;
    }
    if (offset_ns != recorder->user_offset_ns) {
        mu_drain_run_lock_held(recorder);
        recorder->user_offset_ns = offset_ns;
        recorder->stepped_ns = 0;
        mu_stack_service_set_offset(recorder, offset_ns);
        mu_drain_write_offset(recorder);
        mu_drain_repeat_starts(recorder);
        mu_drain_run_lock_held(recorder);
    }
    pthread_mutex_unlock(&recorder->drain_lock);
    return true;
}

static void set_text(char *field, size_t size, const char *text) {
    size_t length = strnlen(text, size - 1);
    memcpy(field, text, length);
    memset(field + length, 0, size - length);
}

/* The files that a recorder is about to use. */
struct next_files {
    struct mu_recorder *recorder;
    const struct mu_output_config *config;
    const struct mu_output *output;
    const struct mu_open_report *report;
};

static const char *host_of(const struct mu_output_config *config) {
    return config->host[0] != '\0' ? config->host : config->machine;
}

static void fill_identity(const struct next_files *next, struct mu_journal_header *header) {
    const struct mu_output_config *config = next->config;
    header->pid = (int32_t)getpid();
    atomic_store(&header->closed, 0);
    header->rank = config->rank;
    header->world_size = config->world_size;
    header->attempt = next->report->attempt;
    header->process_start = mu_process_start((int32_t)getpid());
    mu_boot_id(header->boot_id);
    set_text(header->host, sizeof(header->host), host_of(config));
    set_text(header->machine, sizeof(header->machine), config->machine);
    set_text(header->label, sizeof(header->label), next->report->label);
    set_text(header->log_dir, sizeof(header->log_dir), config->log_dir);
    const char *slash = strrchr(next->output->csv_path, '/');
    set_text(header->csv_name, sizeof(header->csv_name),
             slash == NULL ? next->output->csv_path : slash + 1);
}

/* Of the journal in its new file: what was drained is not in the new CSV, and does not come. */
static void describe_next(void *owner, struct mu_journal_header *header) {
    const struct next_files *next = owner;
    struct mu_commit *commit = &header->commits[next->recorder->epoch & 1];
    fill_identity(next, header);
    commit->csv_bytes = next->output->csv_bytes;
    commit->csv_part = next->output->part;
}

static size_t put_pair(char *out, size_t size, const char *key, const char *text) {
    char encoded[3 * 256 + 1];
    size_t length = mu_metadata_encode(encoded, text, strnlen(text, 256));
    encoded[length] = '\0';
    int n = snprintf(out, size, ",%s=%s", key, encoded);
    return n < 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1;
}

static void begin_first_part(struct mu_recorder *recorder, const struct mu_open_report *report) {
    const struct mu_output_config *config = &recorder->config;
    char *row = recorder->drain->process_row;
    size_t size = sizeof(recorder->drain->process_row);
    size_t used =
        (size_t)snprintf(row, size, "pid=%d,rank=%d,world_size=%d,attempt=%u", (int)getpid(),
                         config->rank, config->world_size, report->attempt);
    uint64_t start = mu_journal_header(&recorder->journal)->process_start;
    if (start != 0) {
        int64_t began_ns = mu_process_began_ns(start) + recorder->user_offset_ns;
        used += (size_t)snprintf(row + used, size - used, ",began_ns=%" PRId64, began_ns);
    }
    if (report->dead_seen_ns != 0) {
        used += (size_t)snprintf(row + used, size - used, ",dead_seen_ns=%" PRId64,
                                 report->dead_seen_ns);
    }
    used += put_pair(row + used, size - used, "host", host_of(config));
    if (config->text_label[0] != '\0') {
        put_pair(row + used, size - used, "label", config->text_label);
    }
    mu_drain_begin_part(recorder);
}

/* Rows that waited in memory follow the process row into the file. */
static void write_waiting(struct mu_recorder *recorder, const struct mu_output *waiting) {
    struct mu_lost_rows lost = waiting->memory_lost;
    struct mu_error err = {0};
    if (waiting->memory_bytes > 0 &&
        mu_output_write(&recorder->output, waiting->memory, waiting->memory_bytes, &err) != MU_OK) {
        mu_lost_rows_add_text(&lost, waiting->memory, waiting->memory_bytes);
    }
    if (mu_lost_rows_total(&lost) > 0) {
        mu_drain_lose_rows(recorder, &lost, err.sys_errno == 0 ? ENOBUFS : err.sys_errno);
    }
}

MU_MUST_CHECK static int journal_directory(const struct mu_output_config *config, bool local,
                                           char *path, size_t size, struct mu_error *err) {
    if (config->journal_dir[0] != '\0') {
        snprintf(path, size, "%s", config->journal_dir);
        return MU_OK;
    }
    if (local) {
        snprintf(path, size, "%s", config->log_dir);
        return MU_OK;
    }
    return mu_placement_local_directory(path, size, err);
}

MU_MUST_CHECK static int write_pointer(const char *pointer, const char *journal,
                                       struct mu_error *err) {
    int fd = mu_open_instead(pointer, 0644);
    if (fd < 0) {
        return mu_error_sys(err, "create", pointer);
    }
    char place[MU_PLACE_BYTES], lines[MU_PATH_BYTES + MU_PLACE_BYTES + 2];
    mu_placement_of(journal, place);
    int length = snprintf(lines, sizeof(lines), "%s\n%s\n", journal, place);
    bool written = write(fd, lines, (size_t)length) == length;
    close(fd);
    return written ? MU_OK : mu_error_sys(err, "write", pointer);
}

/* A pointer file is in the log directory and is named as the journal. */
static void pointer_path(const char *log_dir, const char *journal, char path[POINTER_BYTES]) {
    snprintf(path, POINTER_BYTES, "%s%s-ref", log_dir, strrchr(journal, '/'));
}

static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* Where a journal is and what leads there. */
struct journal_place {
    char path[MU_PATH_BYTES];
    char pointer[POINTER_BYTES]; /* empty for a journal in the log directory */
};

/* The name is not that of the journal in use: while it moves, both files are there, and both may be
 * in one directory. */
MU_MUST_CHECK static int choose_journal_place(const struct next_files *next,
                                              struct journal_place *place, struct mu_error *err) {
    const struct mu_journal *journal = &next->recorder->journal;
    const struct mu_journal_header *header = mu_journal_header(journal);
    char directory[1024], name[MU_PATH_BYTES];
    bool local = mu_placement_is_local(next->config->log_dir);
    place->pointer[0] = '\0';
    int code = journal_directory(next->config, local, directory, sizeof(directory), err);
    if (code != MU_OK) {
        return code;
    }
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof(name), "%s.%d.%llu%s.journal", next->report->label, header->pid,
                 (unsigned long long)header->process_start, i == 0 ? "" : ".1");
        if (strcmp(name, file_name(journal->path)) != 0) {
            break;
        }
    }
    if (snprintf(place->path, sizeof(place->path), "%s/%s", directory, name) >=
        (int)sizeof(place->path)) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "journal path too long: %s", directory);
    }
    if (strcmp(directory, next->config->log_dir) != 0) {
        pointer_path(next->config->log_dir, place->path, place->pointer);
    }
    return MU_OK;
}

/* Moves the journal into a file. Without one the rows are still written, but a kill loses the
 * records that were not drained; the report has a field for that. The pointer comes first: a kill
 * may leave one that leads nowhere, but no journal to which nothing leads. */
static void attach_journal(const struct next_files *now, struct mu_open_report *report) {
    struct mu_recorder *recorder = now->recorder;
    struct journal_place place;
    if (recorder->journal.fd >= 0) { /* it has moved */
        set_text(report->journal_path, sizeof(report->journal_path), recorder->journal.path);
        return;
    }
    if (choose_journal_place(now, &place, &report->journal_error) != MU_OK) {
        return;
    }
    if (place.pointer[0] != '\0') {
        mu_error_kept(write_pointer(place.pointer, place.path, &report->journal_error));
    }
    if (attach_alone(recorder, place.path, &report->journal_error) == MU_OK) {
        set_text(report->journal_path, sizeof(report->journal_path), place.path);
    } else if (place.pointer[0] != '\0') {
        unlink(place.pointer);
    }
}

static uint64_t first_node(uint32_t attempts_before, int worker) {
    uint64_t place = attempts_before;
    for (int bit = 0; bit < PROCESS_BITS; bit++) {
        place ^= ((uint64_t)worker >> bit & 1) << (PROCESS_BITS - 1 - bit);
    }
    return ((place & ((1 << PROCESS_BITS) - 1)) << MU_NODE_SHIFT) + 1;
}

/* Another process may have had the number of this one, such as the first of a container. */
static bool is_of_this_process(const struct mu_last_beat *beat) {
    static const int64_t tick_ns = 10000000;
    int32_t pid = (int32_t)getpid();
    int64_t apart_ns = beat->began_ns - mu_process_began_ns(mu_process_start(pid));
    return beat->pid == pid && apart_ns >= -tick_ns && apart_ns <= tick_ns;
}

/* dead_seen_ns: the last sign of life of the attempt before, where that process did not end by
 * itself; else 0. */
static void choose_attempt(struct mu_recorder *recorder, const struct mu_output_config *config,
                           const struct mu_adopted *adopted, struct mu_open_report *report) {
    struct mu_last_beat beat;
    mu_heartbeat_read(config->log_dir, report->label, &beat);
    report->dead_seen_ns = beat.closed || is_of_this_process(&beat) ? 0 : beat.seen_ns;
    uint32_t last = beat.attempt;
    if (adopted->last_attempt > last) {
        last = adopted->last_attempt;
    }
    if (config->least_attempt > last + 1) {
        last = config->least_attempt - 1;
    }
    report->attempt = last + 1;
    uint64_t base = first_node(last, report->worker);
    if (base > atomic_load(&recorder->node_next)) {
        atomic_store(&recorder->node_next, base);
        begin_alone(recorder); /* the numbers are their threads' own */
        for (struct mu_thread_buffer *buffer = recorder->buffers; buffer != NULL;
             buffer = buffer->next) {
            buffer->node_next = buffer->node_end = 0;
        }
        end_alone(recorder);
    }
}

static bool same_place(const struct mu_recorder *recorder, const struct mu_output_config *config) {
    struct stat current, wanted;
    return recorder->output.fd >= 0 && recorder->config.rank == config->rank &&
           mu_output_is_in_place(&recorder->output) &&
           stat(recorder->output.directory, &current) == 0 && stat(config->log_dir, &wanted) == 0 &&
           current.st_ino == wanted.st_ino && current.st_dev == wanted.st_dev;
}

/* Whether a pointer file gives the place of the journal. */
static bool journal_is_elsewhere(const struct mu_recorder *recorder) {
    const char *path = recorder->opened.journal_path;
    size_t length = strlen(recorder->config.log_dir);
    return path[0] != '\0' && (strncmp(path, recorder->config.log_dir, length) != 0 ||
                               strrchr(path, '/') != path + length);
}

/* The pointer to the journal in use; empty for none. */
static void current_pointer(const struct mu_recorder *recorder, char path[POINTER_BYTES]) {
    path[0] = '\0';
    if (journal_is_elsewhere(recorder)) {
        pointer_path(recorder->config.log_dir, recorder->opened.journal_path, path);
    }
}

MU_MUST_CHECK static int leave_journal(struct mu_recorder *recorder, struct mu_error *err) {
    char pointer[POINTER_BYTES];
    current_pointer(recorder, pointer);
    atomic_store(&mu_journal_header(&recorder->journal)->closed, 1);
    int code = detach_alone(recorder, err);
    if (code == MU_OK && pointer[0] != '\0') {
        unlink(pointer);
    }
    return code;
}

/* Moves the journal from file to file: were it in memory meanwhile, a kill would lose what is
 * recorded then. False where that cannot be: it goes through memory. */
static bool move_journal(const struct next_files *next) {
    struct mu_recorder *recorder = next->recorder;
    const struct mu_alone alone = {begin_alone, end_alone, recorder};
    const struct mu_journal_change change = {describe_next, (void *)next};
    struct journal_place place;
    char left[POINTER_BYTES];
    if (recorder->journal.fd < 0 || choose_journal_place(next, &place, NULL) != MU_OK ||
        (place.pointer[0] != '\0' && write_pointer(place.pointer, place.path, NULL) != MU_OK)) {
        return false;
    }
    current_pointer(recorder, left);
    recorder->journal.alone = &alone;
    int code = mu_journal_move(&recorder->journal, place.path, &change, NULL);
    recorder->journal.alone = NULL;
    const char *useless = code == MU_OK ? left : place.pointer;
    if (useless[0] != '\0') {
        unlink(useless);
    }
    return code == MU_OK;
}

/* Writes all rows and closes the files in use. The journal is in memory afterwards, or where it is
 * wanted next; NULL: there are no next files. */
MU_MUST_CHECK static int leave_files(struct mu_recorder *recorder, const struct next_files *next,
                                     struct mu_error *err) {
    if (recorder->output.fd < 0) {
        return MU_OK;
    }
    mu_control_begin(&recorder->control, "");
    mu_drain_finish_lock_held(recorder);
    mu_drain_windows_end(recorder);
    mu_heartbeat_write(recorder, true);
    int code = next != NULL && move_journal(next) ? MU_OK : leave_journal(recorder, err);
    mu_output_drop_csv(&recorder->output);
    recorder->output.kind = MU_OUTPUT_MEMORY;
    return code;
}

/* What was lost before is not of these files. What waits in memory is, and follows. */
static void begin_losses(struct mu_recorder *recorder) {
    memset(&recorder->drain->lost, 0, sizeof(recorder->drain->lost));
    recorder->lost_rows_before = atomic_load(&recorder->troubles.lost_rows);
    recorder->lost_records_before = recorder->reported_drops + recorder->reported_unplaced +
                                    atomic_load(&recorder->troubles.lost_records);
}

/* `moves`: from another file, or to another machine_id: the STARTs of open stages are elsewhere. */
static void begin_files(struct mu_recorder *recorder, struct mu_output *fresh, bool moves,
                        struct mu_open_report *report) {
    begin_alone(recorder); /* others read which files are in use */
    struct mu_output waiting = recorder->output;
    recorder->output = *fresh;
    recorder->output.kind = MU_OUTPUT_FILE;
    end_alone(recorder);
    mu_output_init(fresh);
    set_text(report->csv_path, sizeof(report->csv_path), recorder->output.csv_path);
    const struct next_files now = {recorder, &recorder->config, &recorder->output, report};
    fill_identity(&now, mu_journal_header(&recorder->journal));
    mu_csv_writer_set_machine(&recorder->drain->writer, recorder->config.machine);
    memset(recorder->drain->named_threads, 0, sizeof(recorder->drain->named_threads));
    begin_losses(recorder);
    mu_drain_windows_begin(recorder, report->attempt);
    begin_first_part(recorder, report);
    write_waiting(recorder, &waiting);
    mu_output_free(&waiting);
    if (moves) {
        mu_drain_repeat_rows(recorder);
        mu_drain_flush_lock_held(recorder);
    }
    mu_drain_commit_lock_held(recorder);
}

/* Takes a CSV, and into it what dead processes left. */
MU_MUST_CHECK static int take_files(const struct mu_output_config *config, struct mu_output *fresh,
                                    struct mu_adopted *adopted, struct mu_open_report *report,
                                    struct mu_error *err) {
    mu_output_init(fresh);
    fresh->max_csv_bytes = config->max_csv_bytes;
    fresh->keep_csv_bytes = config->keep_csv_bytes;
    int code = mu_output_take_csv(fresh, config->log_dir, config->rank, &report->worker, err);
    if (code != MU_OK) {
        return code;
    }
    set_text(report->label, sizeof(report->label), fresh->stem + strlen("profile_"));
    code = mu_adopt_journals(fresh, report->label, adopted, err);
    report->adopted_journals = adopted->journals;
    report->adopted_rows = adopted->rows;
    report->foreign_journals = adopted->foreign;
    report->unreadable_journals = adopted->unreadable;
    report->doubtful_journals = adopted->doubtful;
    report->doubtful_rows = adopted->doubtful_rows;
    report->unproven_records = adopted->unproven;
    report->foreign_csv = fresh->foreign;
    return code;
}

MU_MUST_CHECK static int open_files(struct mu_recorder *recorder,
                                    const struct mu_output_config *config,
                                    struct mu_open_report *report, struct mu_error *err) {
    struct mu_output fresh;
    struct mu_adopted adopted;
    const struct next_files next = {recorder, config, &fresh, report};
    bool moves = recorder->output.fd >= 0 || strcmp(recorder->config.machine, config->machine) != 0;
    int code = take_files(config, &fresh, &adopted, report, err);
    if (code == MU_OK) {
        choose_attempt(recorder, config, &adopted, report);
        code = leave_files(recorder, &next, err);
    }
    if (code != MU_OK) {
        mu_output_free(&fresh);
        return code;
    }
    begin_alone(recorder);
    recorder->config = *config;
    end_alone(recorder);
    begin_files(recorder, &fresh, moves, report);
    /* Done before other processes can see the journal, so that no request that they make from then
     * on counts as old. */
    const char *requests_in = report->worker == 0 ? config->log_dir : "";
    mu_stack_service_move(recorder, requests_in, report->label, config->rank);
    mu_control_begin(&recorder->control, requests_in);
    const struct next_files now = {recorder, &recorder->config, &recorder->output, report};
    attach_journal(&now, report);
    recorder->in_background = config->io == MU_IO_BACKGROUND ||
                              (config->io == MU_IO_AUTO && !mu_placement_is_local(config->log_dir));
    begin_alone(recorder);
    recorder->opened = *report;
    end_alone(recorder);
    mu_heartbeat_write(recorder, false);
    return MU_OK;
}

MU_MUST_CHECK static int open_lock_held(struct mu_recorder *recorder,
                                        const struct mu_output_config *config,
                                        struct mu_open_report *report, struct mu_error *err) {
    mu_drain_run_lock_held(recorder);
    if (config->kind == MU_OUTPUT_FILE) {
        if (same_place(recorder, config)) {
            *report = recorder->opened;
            return MU_OK;
        }
        return open_files(recorder, config, report, err);
    }
    int code = leave_files(recorder, NULL, err);
    begin_alone(recorder);
    recorder->config = *config;
    end_alone(recorder);
    recorder->in_background = false;
    recorder->output.kind = config->kind;
    mu_csv_writer_set_machine(&recorder->drain->writer, config->machine);
    return code;
}

int mu_recorder_open(struct mu_recorder *recorder, const struct mu_output_config *config,
                     struct mu_open_report *report, struct mu_error *err) {
    return mu_recorder_open_with(recorder, config, NULL, report, err);
}

int mu_recorder_open_with(struct mu_recorder *recorder, const struct mu_output_config *config,
                          const struct mu_alone *gil, struct mu_open_report *report,
                          struct mu_error *err) {
    memset(report, 0, sizeof(*report));
    mu_recorder_check_fork(recorder);
    recorder->reopen = false;
    if (recorder->broken) {
        return refuse(recorder, err);
    }
    if (!lock_within(&recorder->drain_lock, close_wait_ns)) {
        return does_not_answer(recorder, err);
    }
    recorder->gil = gil;
    int code = open_lock_held(recorder, config, report, err);
    recorder->gil = NULL;
    mu_output_state_publish_lock_held(recorder);
    pthread_mutex_unlock(&recorder->drain_lock);
    if (code == MU_OK && config->kind == MU_OUTPUT_FILE) {
        mu_drain_thread_start(recorder);
    }
    return code;
}

int mu_recorder_close(struct mu_recorder *recorder, struct mu_error *err) {
    return mu_recorder_close_with(recorder, NULL, err);
}

int mu_recorder_close_with(struct mu_recorder *recorder, const struct mu_alone *gil,
                           struct mu_error *err) {
    mu_recorder_check_fork(recorder);
    if (recorder->broken) {
        return MU_OK;
    }
    if (recorder->in_background) {
        mu_drain_thread_call(recorder);
    }
    int64_t until = mu_clock_ns(CLOCK_MONOTONIC) + close_wait_ns;
    bool stopped = mu_drain_thread_stop(recorder, close_wait_ns);
    mu_stack_service_finish(recorder);
    if (!stopped || !lock_within(&recorder->drain_lock, until - mu_clock_ns(CLOCK_MONOTONIC))) {
        struct mu_output_state state;
        mu_recorder_output_state(recorder, &state);
        return mu_error_set(err, MU_ERR_STATE, "%s does not answer; the journal %s keeps the rest",
                            state.csv_path, state.journal_path);
    }
    mu_drain_run_lock_held(recorder);
    if (!mu_output_is_in_place(&recorder->output)) {
        atomic_store(&recorder->troubles.missing_csv, 1);
    }
    recorder->gil = gil;
    int code = leave_files(recorder, NULL, err);
    recorder->gil = NULL;
    recorder->in_background = false;
    mu_output_state_publish_lock_held(recorder);
    pthread_mutex_unlock(&recorder->drain_lock);
    return code;
}

/* Of a journal that could have more chunks. */
static bool finds_no_chunk(struct mu_recorder *recorder) {
    pthread_mutex_lock(&recorder->registry_lock);
    uint32_t chunks = atomic_load(&mu_journal_header(&recorder->journal)->chunk_count);
    bool no_chunk = recorder->no_chunk && chunks < MU_CHUNKS_MAX;
    pthread_mutex_unlock(&recorder->registry_lock);
    return no_chunk;
}

bool mu_recorder_give_up_journal(struct mu_recorder *recorder) {
    if (recorder->broken || !lock_within(&recorder->drain_lock, close_wait_ns)) {
        return false;
    }
    bool given_up = finds_no_chunk(recorder) && recorder->journal.fd >= 0 &&
                    leave_journal(recorder, NULL) == MU_OK;
    if (given_up) {
        mu_output_state_publish_lock_held(recorder);
        atomic_fetch_sub(&recorder->troubles.dropped_buffers, 1);
        atomic_store(&recorder->troubles.lost_journal, 1);
    }
    pthread_mutex_unlock(&recorder->drain_lock);
    return given_up;
}

/* In a forked child whose parent wrote files: opens files of the child's own, once. */
static void reopen_in_child(struct mu_recorder *recorder) {
    struct mu_output_config config = recorder->config;
    struct mu_open_report report;
    if (!atomic_exchange(&recorder->reopen, false)) {
        return; /* another thread was first */
    }
    if (mu_recorder_open(recorder, &config, &report, NULL) != MU_OK) {
        atomic_fetch_add(&recorder->troubles.failed_writes, 1);
    }
}

/* Chunks of ended threads are free again once they are drained. */
static bool has_retired_chunk(const struct mu_recorder *recorder) {
    uint32_t count = atomic_load(&mu_journal_header(&recorder->journal)->chunk_count);
    for (uint32_t i = 0; i < count; i++) {
        if (atomic_load(&mu_journal_chunk(&recorder->journal, i)->state) == MU_CHUNK_RETIRED) {
            return true;
        }
    }
    return false;
}

struct mu_thread_buffer *mu_timer_new_thread_buffer(struct mu_timer *timer) {
    struct mu_recorder *recorder = timer->recorder;
    mu_recorder_check_fork(recorder);
    if (recorder->reopen) {
        reopen_in_child(recorder);
    }
    if (recorder->broken) {
        mu_error_kept(refuse(recorder, NULL));
        return NULL;
    }
    if (!mu_timer_has_place(timer)) {
        return NULL;
    }
    pthread_mutex_lock(&recorder->registry_lock);
    struct mu_thread_buffer *buffer = mu_thread_buffer_new_locked(timer);
    bool retry = buffer == NULL && has_retired_chunk(recorder);
    pthread_mutex_unlock(&recorder->registry_lock);
    if (retry) {
        mu_recorder_drain(recorder, 100000000);
        pthread_mutex_lock(&recorder->registry_lock);
        buffer = mu_thread_buffer_new_locked(timer);
        pthread_mutex_unlock(&recorder->registry_lock);
    }
    if (buffer == NULL) {
        atomic_fetch_add(&recorder->troubles.dropped_buffers, 1);
    }
    return buffer;
}
