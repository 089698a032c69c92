#include "stages/drain_calls.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/event.h"
#include "stages/drain.h"
#include "stages/drain_thread.h"
#include "stages/fork.h"
#include "stages/output_state.h"
#include "stages/stack_service.h"

bool mu_drain_lock_within(struct mu_recorder *recorder, int64_t wait_ns) {
    bool locked = pthread_mutex_trylock(&recorder->drain_lock) == 0;
    for (; !locked && wait_ns > 0; wait_ns -= MU_WAIT_ONCE_NS) {
        struct timespec until =
            mu_clock_after(CLOCK_REALTIME, wait_ns < MU_WAIT_ONCE_NS ? wait_ns : MU_WAIT_ONCE_NS);
        locked = pthread_mutex_timedlock(&recorder->drain_lock, &until) == 0;
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
    if (mu_drain_lock_within(recorder, wait_ns)) {
        mu_drain_run_lock_held(recorder);
        pthread_mutex_unlock(&recorder->drain_lock);
    }
}

int mu_recorder_copy_memory(struct mu_recorder *recorder, int64_t wait_ns, char **text,
                            size_t *length, struct mu_error *err) {
    mu_recorder_check_fork(recorder);
    if (recorder->broken) {
        *length = 0;
        *text = calloc(1, 1);
        return *text == NULL ? mu_error_no_memory(err, "rows in memory") : MU_OK;
    }
    if (!mu_drain_lock_within(recorder, wait_ns)) {
        return mu_output_state_no_answer(recorder, err);
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
    if (!mu_drain_lock_within(recorder, mu_files_wait_ns)) {
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
