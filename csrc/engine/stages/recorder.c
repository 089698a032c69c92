#include "stages/recorder.h"

#include <stdlib.h>
#include <string.h>

#include "base/wiped_page.h"
#include "stages/drain.h"
#include "stages/drain_thread.h"
#include "stages/fork.h"
#include "stages/stack_service.h"
#include "stages/thread_buffers.h"
#include "stages/timer.h"

static const int64_t first_calibration_ns = 200000;
static const int64_t destroy_wait_ns = 4000000000;

/* Two anchors far enough apart for a rate good to 0.05 %; every later one improves it. */
static void calibrate(struct mu_recorder *recorder) {
    mu_timeline_reset(&recorder->timeline);
    struct mu_anchor first = mu_clock_anchor(recorder->counter);
    mu_timeline_add(&recorder->timeline, first);
    recorder->real_offset_ns = first.real_ns - first.mono_ns;
    while (mu_clock_ns(CLOCK_MONOTONIC) < first.mono_ns + first_calibration_ns) {
    }
    mu_timeline_add(&recorder->timeline, mu_clock_anchor(recorder->counter));
    atomic_store(&recorder->rate, mu_timeline_rate(&recorder->timeline));
}

static void free_guard(struct mu_recorder *recorder) {
    if (recorder->fork_guard != &recorder->no_guard) {
        mu_wiped_page_unmap(recorder->fork_guard);
    }
}

struct mu_recorder *mu_recorder_reserve(void) {
    return calloc(1, sizeof(struct mu_recorder));
}

/* Everything that needs memory. */
static void begin(struct mu_recorder *recorder) {
    if (recorder->fork_guard == &recorder->no_guard) {
        void *guard = mu_wiped_page_map();
        recorder->fork_guard = guard == NULL ? &recorder->no_guard : guard;
    }
    bool has_memory = mu_recorder_begin(recorder, NULL) == MU_OK;
    if (has_memory && recorder->has_key && recorder->fork_guard != &recorder->no_guard) {
        recorder->broken = false;
        return;
    }
    if (has_memory) {
        mu_journal_release(&recorder->journal);
        mu_drain_free(recorder->drain);
        recorder->drain = NULL;
    }
}

void mu_recorder_start(struct mu_recorder *recorder) {
    atomic_store(&recorder->users, 1);
    recorder->call_drain = mu_drain_thread_call;
    recorder->add_gpu_time = mu_timer_add_gpu_time;
    recorder->counter = mu_clock_counter_is_kernel_clock();
    recorder->fork_guard = &recorder->no_guard;
    mu_recorder_init_locks(recorder);
    recorder->journal.fd = -1;
    mu_window_files_init(&recorder->window_files);
    recorder->broken = true;
    recorder->has_key = pthread_key_create(&recorder->thread_key, mu_thread_ends) == 0;
    calibrate(recorder);
    begin(recorder);
}

int mu_recorder_create(struct mu_recorder **out, struct mu_error *err) {
    *out = mu_recorder_reserve();
    if (*out == NULL) {
        return mu_error_no_memory(err, "recorder");
    }
    mu_recorder_start(*out);
    return MU_OK;
}

void mu_recorder_try_again(struct mu_recorder *recorder) {
    mu_recorder_check_fork(recorder);
    if (recorder->broken && recorder->has_key) {
        begin(recorder);
    }
}

int mu_recorder_refuse(struct mu_recorder *recorder, struct mu_error *err) {
    if (recorder->has_key) {
        atomic_fetch_add(&recorder->troubles.no_memory, 1);
        return mu_error_no_memory(err, "the recorder of this process; it records nothing");
    }
    atomic_fetch_add(&recorder->troubles.no_thread_key, 1);
    return mu_error_set(err, MU_ERR_STATE, "no thread key is left in this process");
}

/* Threads that end from here on find nothing of theirs. */
static void end_buffers(struct mu_recorder *recorder) {
    pthread_mutex_lock(&recorder->registry_lock);
    recorder->ended = true;
    while (recorder->buffers != NULL) {
        struct mu_thread_buffer *buffer = recorder->buffers;
        recorder->buffers = buffer->next;
        mu_thread_buffer_free(buffer);
        free(buffer);
    }
    pthread_mutex_unlock(&recorder->registry_lock);
}

void mu_recorder_destroy(struct mu_recorder *recorder) {
    if (recorder == NULL) {
        return;
    }
    mu_recorder_check_fork(recorder);
    if (!mu_drain_thread_stop(recorder, destroy_wait_ns)) {
        return; /* the thread that hangs in a write will use all of it again */
    }
    mu_stack_service_destroy(recorder);
    end_buffers(recorder);
    mu_thread_forget(recorder);
    mu_cuda_pool_free(recorder->gpu);
    mu_drain_free(recorder->drain);
    mu_output_free(&recorder->output);
    mu_journal_release(&recorder->journal);
    free(recorder->names);
    free_guard(recorder);
    mu_control_release(&recorder->control);
    pthread_mutex_destroy(&recorder->drain_lock);
    pthread_mutex_destroy(&recorder->move_lock);
    pthread_mutex_destroy(&recorder->thread_lock);
    pthread_cond_destroy(&recorder->thread_wake);
    mu_recorder_leave(recorder);
}

int mu_recorder_use_gpu(struct mu_recorder *recorder, const struct mu_cuda_pool_options *options,
                        struct mu_error *err) {
    mu_recorder_check_fork(recorder);
    if (recorder->gpu != NULL) {
        return MU_OK;
    }
    struct mu_cuda_pool *pool;
    int code = mu_cuda_pool_create(&pool, options, err);
    struct mu_cuda_pool *none = NULL; /* no lock: a drain may hang on its output */
    if (code == MU_OK && !atomic_compare_exchange_strong(&recorder->gpu, &none, pool)) {
        mu_cuda_pool_free(pool); /* another thread was first */
    }
    return code;
}

uint32_t mu_recorder_path_count(struct mu_recorder *recorder) {
    if (recorder->broken) {
        return 0;
    }
    pthread_mutex_lock(&recorder->registry_lock);
    uint32_t count = recorder->names->path_count;
    pthread_mutex_unlock(&recorder->registry_lock);
    return count;
}

bool mu_recorder_path(struct mu_recorder *recorder, uint16_t path, const char **name,
                      size_t *length, uint16_t *parent) {
    pthread_mutex_lock(&recorder->registry_lock);
    bool known = !recorder->broken && path != MU_PATH_ROOT && path < recorder->names->path_count;
    *name = NULL;
    *length = 0;
    if (known) {
        const struct mu_path *node = &recorder->names->paths[path];
        *parent = node->parent;
        if (path != MU_PATH_OTHER) {
            *name = mu_journal_string(&recorder->journal, node->name, length);
        }
    }
    pthread_mutex_unlock(&recorder->registry_lock);
    return known;
}
