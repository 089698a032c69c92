#include "stages/fork.h"

#include <stdlib.h>
#include <string.h>

#include "base/host_name.h"
#include "base/thread.h"
#include "stages/drain.h"
#include "stages/drain_state.h"
#include "stages/output_state.h"
#include "stages/recording.h"
#include "stages/stack_service.h"

void mu_recorder_init_locks(struct mu_recorder *recorder) {
    pthread_mutex_init(&recorder->registry_lock, NULL);
    pthread_mutex_init(&recorder->drain_lock, NULL);
    pthread_mutex_init(&recorder->move_lock, NULL);
    pthread_mutex_init(&recorder->thread_lock, NULL);
    mu_cond_init(&recorder->thread_wake);
}

int mu_recorder_begin(struct mu_recorder *recorder, struct mu_error *err) {
    if (recorder->guards_moves) {
        mu_recording_guard(recorder); /* a child may have to register with the kernel again */
    }
    mu_control_init(&recorder->control);
    mu_stack_service_start_in_child(recorder);
    *(volatile uint32_t *)recorder->fork_guard = 1;
    mu_output_init(&recorder->output);
    memset(&recorder->published, 0, sizeof(recorder->published));
    if (recorder->names == NULL) {
        recorder->names = malloc(sizeof(*recorder->names));
    }
    if (recorder->names == NULL) {
        return mu_error_no_memory(err, "names of stages");
    }
    mu_names_init(recorder->names, &recorder->journal);
    int code = mu_journal_init_memory(&recorder->journal, recorder->counter, err);
    if (code != MU_OK) {
        return code;
    }
    code = mu_drain_create(&recorder->drain, err);
    if (code != MU_OK) {
        mu_journal_release(&recorder->journal);
        return code;
    }
    /* Rows that wait in memory for a file have the machine_id, too. */
    if (recorder->config.machine[0] == '\0') {
        mu_host_name(recorder->config.machine, sizeof(recorder->config.machine));
    }
    mu_csv_writer_set_machine(&recorder->drain->writer, recorder->config.machine);
    atomic_store(&recorder->node_next, 1);
    mu_output_state_publish_lock_held(recorder);
    return MU_OK;
}

/* The parent's mapping of a file does not exist here (MADV_DONTFORK), and another mapping may have
 * its address by now. Its locks may be held by threads that do not exist here, and the data that
 * they guard may be half changed or half freed. So all of that is abandoned without being freed. */
static void forget_parent(struct mu_recorder *recorder) {
    bool had_files = recorder->output.kind == MU_OUTPUT_FILE;
    if (recorder->journal.fd >= 0) {
        recorder->journal.base = NULL;
    }
    mu_journal_release(&recorder->journal);
    mu_output_drop_csv(&recorder->output);
    mu_window_files_end(&recorder->window_files);
    recorder->gpu = NULL; /* a child has no CUDA context */
    for (int i = 0; i < MU_TIMERS_MAX; i++) {
        if (recorder->timers[i] != NULL) {
            recorder->timers[i]->retired = recorder->timers[i]->gpu = NULL;
        }
    }
    recorder->buffers = NULL;
    recorder->threads = NULL;
    atomic_store(&recorder->users, 1); /* the owner; the threads do not exist here */
    recorder->drain = NULL;
    recorder->in_background = false;
    recorder->thread_runs = recorder->thread_stop = false;
    atomic_store(&recorder->thread_called, false);
    recorder->epoch = 0;
    recorder->reported_drops = recorder->reported_unplaced = 0;
    recorder->reopen = had_files;
    atomic_store(&recorder->moving, 0);
    memset(&recorder->troubles, 0, sizeof(recorder->troubles));
}

bool mu_recorder_check_fork(struct mu_recorder *recorder) {
    if (__builtin_expect(*(volatile uint32_t *)recorder->fork_guard != 0, 1)) {
        return false;
    }
    forget_parent(recorder);
    mu_recorder_init_locks(recorder);
    recorder->broken = mu_recorder_begin(recorder, NULL) != MU_OK || !recorder->has_key;
    return true;
}
