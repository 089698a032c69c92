#include "stages/open_profile.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/event.h"
#include "base/process.h"
#include "profile_files/adopt.h"
#include "profile_files/placement.h"
#include "stages/drain.h"
#include "stages/drain_calls.h"
#include "stages/drain_state.h"
#include "stages/drain_thread.h"
#include "stages/drain_windows.h"
#include "stages/fork.h"
#include "stages/heartbeat.h"
#include "stages/journal_file.h"
#include "stages/output_state.h"
#include "stages/recorder.h"
#include "stages/recording.h"
#include "stages/stack_service.h"

/* Node ids of a process begin at a multiple of 2^40, of which there are 2^13, so that they fit into
 * a double. Attempts count from below, and workers from above with their bits reversed, so that the
 * two meet late: with up to 7 workers after 1,024 attempts. */
enum { PROCESS_BITS = 13 };

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
    used += put_pair(row + used, size - used, "host", mu_journal_file_host(config));
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
        mu_recording_begin_alone(recorder); /* the numbers are their threads' own */
        for (struct mu_thread_buffer *buffer = recorder->buffers; buffer != NULL;
             buffer = buffer->next) {
            buffer->node_next = buffer->node_end = 0;
        }
        mu_recording_end_alone(recorder);
    }
}

static bool same_place(const struct mu_recorder *recorder, const struct mu_output_config *config) {
    struct stat current, wanted;
    return recorder->output.fd >= 0 && recorder->config.rank == config->rank &&
           mu_output_is_in_place(&recorder->output) &&
           stat(recorder->output.directory, &current) == 0 && stat(config->log_dir, &wanted) == 0 &&
           current.st_ino == wanted.st_ino && current.st_dev == wanted.st_dev;
}

/* Writes all rows and closes the files in use. The journal is in memory afterwards, or where it is
 * wanted next; NULL: there are no next files. */
MU_MUST_CHECK static int leave_files(struct mu_recorder *recorder, const struct mu_next_files *next,
                                     struct mu_error *err) {
    if (recorder->output.fd < 0) {
        return MU_OK;
    }
    mu_control_begin(&recorder->control, "");
    mu_drain_finish_lock_held(recorder);
    mu_drain_windows_end(recorder);
    mu_heartbeat_write(recorder, true);
    int code =
        next != NULL && mu_journal_file_move(next) ? MU_OK : mu_journal_file_leave(recorder, err);
    mu_output_drop_csv(&recorder->output);
    recorder->output.kind = MU_OUTPUT_MEMORY;
    if (next == NULL) { /* what describes this run is not true of the next one */
        mu_once_rows_free(&recorder->drain->once);
    }
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
    mu_recording_begin_alone(recorder); /* others read which files are in use */
    struct mu_output waiting = recorder->output;
    recorder->output = *fresh;
    recorder->output.kind = MU_OUTPUT_FILE;
    mu_recording_end_alone(recorder);
    mu_output_init(fresh);
    snprintf(report->csv_path, sizeof(report->csv_path), "%s", recorder->output.csv_path);
    const struct mu_next_files now = {recorder, &recorder->config, &recorder->output, report};
    mu_journal_file_identify(&now, mu_journal_header(&recorder->journal));
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
    snprintf(report->label, sizeof(report->label), "%.*s", (int)sizeof(report->label) - 1,
             fresh->stem + strlen("profile_"));
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
    const struct mu_next_files next = {recorder, config, &fresh, report};
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
    mu_recording_begin_alone(recorder);
    recorder->config = *config;
    mu_recording_end_alone(recorder);
    begin_files(recorder, &fresh, moves, report);
    /* Done before other processes can see the journal, so that no request that they make from then
     * on counts as old. */
    const char *requests_in = report->worker == 0 ? config->log_dir : "";
    mu_stack_service_move(recorder, requests_in, report->label, config->rank);
    mu_control_begin(&recorder->control, requests_in);
    const struct mu_next_files now = {recorder, &recorder->config, &recorder->output, report};
    mu_journal_file_attach(&now, report);
    recorder->in_background = config->io == MU_IO_BACKGROUND ||
                              (config->io == MU_IO_AUTO && !mu_placement_is_local(config->log_dir));
    mu_recording_begin_alone(recorder);
    recorder->opened = *report;
    mu_recording_end_alone(recorder);
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
    mu_recording_begin_alone(recorder);
    recorder->config = *config;
    mu_recording_end_alone(recorder);
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
        return mu_recorder_refuse(recorder, err);
    }
    if (!mu_drain_lock_within(recorder, mu_files_wait_ns)) {
        return mu_output_state_no_answer(recorder, err);
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
    int64_t until = mu_clock_ns(CLOCK_MONOTONIC) + mu_files_wait_ns;
    bool stopped = mu_drain_thread_stop(recorder, mu_files_wait_ns);
    mu_stack_service_finish(recorder);
    if (!stopped || !mu_drain_lock_within(recorder, until - mu_clock_ns(CLOCK_MONOTONIC))) {
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
