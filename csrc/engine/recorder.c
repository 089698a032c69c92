#include "recorder.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "drain.h"

static const int64_t first_calibration_ns = 200000;

static void init_locks(struct mu_recorder *recorder) {
    pthread_condattr_t attributes;
    pthread_mutex_init(&recorder->registry_lock, NULL);
    pthread_mutex_init(&recorder->drain_lock, NULL);
    pthread_mutex_init(&recorder->thread_lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&recorder->thread_wake, &attributes);
    pthread_condattr_destroy(&attributes);
}

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

/* All that a fresh process needs, in memory. */
static int begin(struct mu_recorder *recorder, struct mu_error *err) {
    int code = mu_journal_init_memory(&recorder->journal, recorder->counter, err);
    if (code != MU_OK) {
        return code;
    }
    mu_names_init(&recorder->names, &recorder->journal);
    mu_output_init(&recorder->output);
    code = mu_drain_create(&recorder->drain, err);
    if (code != MU_OK) {
        mu_journal_release(&recorder->journal);
        return code;
    }
    /* Rows that wait for a file carry the machine too. */
    if (recorder->config.machine[0] == '\0') {
        gethostname(recorder->config.machine, sizeof(recorder->config.machine) - 1);
    }
    mu_csv_writer_set_machine(&recorder->drain->writer, recorder->config.machine);
    atomic_store(&recorder->node_next, 1);
    *(volatile uint32_t *)recorder->fork_guard = 1;
    return MU_OK;
}

int mu_recorder_create(struct mu_recorder **out, struct mu_error *err) {
    struct mu_recorder *recorder = calloc(1, sizeof(*recorder));
    if (recorder == NULL) {
        return mu_error_no_memory(err, "recorder");
    }
    init_locks(recorder);
    mu_control_init(&recorder->control);
    recorder->counter = mu_clock_counter_is_kernel_clock();
    recorder->fork_guard = mu_map_wiped_page();
    int code = recorder->fork_guard == NULL ? mu_error_sys(err, "map a page", NULL) : MU_OK;
    if (code == MU_OK && pthread_key_create(&recorder->thread_key, mu_thread_ends) != 0) {
        munmap(recorder->fork_guard, MU_WIPED_PAGE_BYTES);
        recorder->fork_guard = NULL;
        code = mu_error_set(err, MU_ERR_LIMIT, "no thread key left in this process");
    }
    if (code == MU_OK) {
        calibrate(recorder);
        code = begin(recorder, err);
        if (code != MU_OK) {
            pthread_key_delete(recorder->thread_key);
            munmap(recorder->fork_guard, MU_WIPED_PAGE_BYTES);
        }
    }
    if (code != MU_OK) {
        free(recorder);
        return code;
    }
    *out = recorder;
    return MU_OK;
}

static void free_lanes(struct mu_recorder *recorder) {
    while (recorder->lanes != NULL) {
        struct mu_lane *lane = recorder->lanes;
        recorder->lanes = lane->next;
        mu_lane_free(lane);
        free(lane);
    }
}

void mu_recorder_destroy(struct mu_recorder *recorder) {
    if (recorder == NULL) {
        return;
    }
    mu_recorder_check_fork(recorder);
    if (!mu_drain_thread_stop(recorder)) {
        return; /* the thread that hangs in a write comes back to all of it */
    }
    pthread_key_delete(recorder->thread_key);
    while (recorder->threads != NULL) {
        struct mu_thread *thread = recorder->threads;
        recorder->threads = thread->next;
        munmap(thread, MU_WIPED_PAGE_BYTES);
    }
    mu_this_thread = NULL;
    free_lanes(recorder);
    mu_cuda_pool_free(recorder->gpu);
    mu_drain_free(recorder->drain);
    mu_output_free(&recorder->output);
    mu_journal_release(&recorder->journal);
    munmap(recorder->fork_guard, MU_WIPED_PAGE_BYTES);
    mu_control_release(&recorder->control);
    pthread_mutex_destroy(&recorder->registry_lock);
    pthread_mutex_destroy(&recorder->drain_lock);
    pthread_mutex_destroy(&recorder->thread_lock);
    pthread_cond_destroy(&recorder->thread_wake);
    free(recorder);
}

/* The parent's mapping of a file is not there (MADV_DONTFORK), and its address may serve another
 * by now; its locks may be held by threads that do not exist here; what they own may be half
 * changed or half freed. All that is left behind, unfreed. */
static void forget_parent(struct mu_recorder *recorder) {
    bool had_files = recorder->output.kind == MU_OUTPUT_FILE;
    if (recorder->journal.fd >= 0) {
        recorder->journal.base = NULL;
    }
    mu_journal_release(&recorder->journal);
    mu_output_drop_csv(&recorder->output);
    recorder->gpu = NULL; /* a child has no CUDA context */
    for (int i = 0; i < MU_TIMERS_MAX; i++) {
        if (recorder->timers[i] != NULL) {
            recorder->timers[i]->retired = recorder->timers[i]->gpu = NULL;
        }
    }
    recorder->lanes = NULL;
    recorder->threads = NULL;
    recorder->drain = NULL;
    recorder->in_background = false;
    recorder->thread_runs = recorder->thread_stop = false;
    atomic_store(&recorder->thread_called, false);
    recorder->epoch = 0;
    recorder->reopen = had_files;
    memset(&recorder->troubles, 0, sizeof(recorder->troubles));
}

bool mu_recorder_check_fork(struct mu_recorder *recorder) {
    if (__builtin_expect(*(volatile uint32_t *)recorder->fork_guard != 0, 1)) {
        return false;
    }
    init_locks(recorder);
    mu_control_init(&recorder->control);
    forget_parent(recorder);
    recorder->broken = begin(recorder, NULL) != MU_OK;
    return true;
}

int mu_recorder_use_gpu(struct mu_recorder *recorder, const struct mu_cuda_pool_options *options,
                        struct mu_error *err) {
    mu_recorder_check_fork(recorder);
    if (recorder->gpu != NULL) {
        return MU_OK;
    }
    struct mu_cuda_pool *pool;
    int code = mu_cuda_pool_create(&pool, options, err);
    if (code == MU_OK) {
        atomic_store(&recorder->gpu, pool); /* no lock: a drain may hang on its output */
    }
    return code;
}

bool mu_recorder_path(struct mu_recorder *recorder, uint16_t path, const char **name,
                      size_t *length, uint16_t *parent) {
    pthread_mutex_lock(&recorder->registry_lock);
    bool known = path != MU_PATH_ROOT && path < recorder->names.path_count;
    *name = NULL;
    *length = 0;
    if (known) {
        const struct mu_path *node = &recorder->names.paths[path];
        *parent = node->parent;
        if (path != MU_PATH_OTHER) {
            *name = mu_journal_string(&recorder->journal, node->name, length);
        }
    }
    pthread_mutex_unlock(&recorder->registry_lock);
    return known;
}
