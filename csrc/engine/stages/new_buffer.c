#include "stages/new_buffer.h"

#include "stages/drain_calls.h"
#include "stages/fork.h"
#include "stages/journal_file.h"
#include "stages/open_profile.h"
#include "stages/output_state.h"
#include "stages/recorder.h"

/* Of a journal that could have more chunks. */
static bool finds_no_chunk(struct mu_recorder *recorder) {
    pthread_mutex_lock(&recorder->registry_lock);
    uint32_t chunks = atomic_load(&mu_journal_header(&recorder->journal)->chunk_count);
    bool no_chunk = recorder->no_chunk && chunks < MU_CHUNKS_MAX;
    pthread_mutex_unlock(&recorder->registry_lock);
    return no_chunk;
}

/* Where a drain runs, the next call tries again: the caller holds the GIL, and an output may hang.
 */
bool mu_recorder_give_up_journal(struct mu_recorder *recorder) {
    if (recorder->broken || !finds_no_chunk(recorder) || !mu_drain_lock_within(recorder, 0)) {
        return false;
    }
    bool given_up = finds_no_chunk(recorder) && recorder->journal.fd >= 0 &&
                    mu_journal_file_leave(recorder, NULL) == MU_OK;
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
        mu_error_kept(mu_recorder_refuse(recorder, NULL));
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
