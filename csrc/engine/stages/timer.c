#include "stages/timer.h"

#include <stdlib.h>
#include <string.h>

#include "stages/fork.h"
#include "stages/thread_buffers.h"

static void free_by_path(struct mu_aggregate ***aggregates) {
    for (int path = 0; *aggregates != NULL && path < MU_PATHS_MAX; path++) {
        free((*aggregates)[path]);
    }
    free(*aggregates);
    *aggregates = NULL;
}

int mu_timer_init(struct mu_timer *timer, struct mu_recorder *recorder, const char *tag,
                  struct mu_error *err) {
    memset(timer, 0, sizeof(*timer));
    size_t length = strlen(tag);
    if (length >= sizeof(timer->tag)) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "tag must have at most %d bytes, got %zu",
                            MU_TAG_BYTES_MAX - 1, length);
    }
    memcpy(timer->tag, tag, length + 1);
    mu_recorder_check_fork(recorder);
    pthread_mutex_lock(&recorder->registry_lock);
    timer->recorder = recorder;
    while (timer->index < MU_TIMERS_MAX && recorder->timers[timer->index] != NULL) {
        timer->index++;
    }
    if (mu_timer_has_place(timer)) {
        recorder->timers[timer->index] = timer;
        timer->generation = recorder->timers_made++;
    } else {
        atomic_fetch_add(&recorder->troubles.unplaced_timers, 1);
    }
    pthread_mutex_unlock(&recorder->registry_lock);
    return MU_OK;
}

void mu_timer_release(struct mu_timer *timer) {
    struct mu_recorder *recorder = timer->recorder;
    if (recorder == NULL) {
        return;
    }
    timer->recorder = NULL;
    if (!mu_timer_has_place(timer)) {
        return;
    }
    mu_recorder_check_fork(recorder);
    pthread_mutex_lock(&recorder->registry_lock);
    for (struct mu_thread *thread = recorder->threads; thread != NULL; thread = thread->next) {
        struct mu_thread_buffer *buffer = thread->buffers[timer->index];
        if (buffer != NULL) {
            thread->buffers[timer->index] = NULL;
            mu_thread_buffer_retire_locked(recorder, buffer);
        }
    }
    recorder->timers[timer->index] = NULL;
    free_by_path(&timer->retired);
    free_by_path(&timer->gpu);
    pthread_mutex_unlock(&recorder->registry_lock);
}

void mu_timer_aggregate(struct mu_timer *timer, uint16_t path, struct mu_aggregate *into) {
    struct mu_recorder *recorder = timer->recorder;
    mu_recorder_check_fork(recorder);
    if (path >= MU_PATHS_MAX) {
        return;
    }
    pthread_mutex_lock(&recorder->registry_lock);
    if (timer->retired != NULL && timer->retired[path] != NULL) {
        mu_aggregate_merge(into, timer->retired[path]);
    }
    for (struct mu_thread_buffer *buffer = recorder->buffers; buffer != NULL;
         buffer = buffer->next) {
        if (buffer->timer == timer && buffer->aggregates[path] != NULL) {
            mu_aggregate_merge(into, buffer->aggregates[path]);
        }
    }
    pthread_mutex_unlock(&recorder->registry_lock);
}

static void add_total(struct mu_aggregate *const *of_paths, uint16_t path, uint64_t *count,
                      uint64_t *sum) {
    if (of_paths != NULL && of_paths[path] != NULL) {
        *count += atomic_load_explicit(&of_paths[path]->count, memory_order_relaxed);
        *sum += atomic_load_explicit(&of_paths[path]->sum, memory_order_relaxed);
    }
}

void mu_timer_totals(struct mu_timer *timer, uint16_t path, struct mu_totals *into) {
    struct mu_recorder *recorder = timer->recorder;
    *into = (struct mu_totals){0};
    mu_recorder_check_fork(recorder);
    if (path >= MU_PATHS_MAX) {
        return;
    }
    pthread_mutex_lock(&recorder->registry_lock);
    add_total(timer->retired, path, &into->count, &into->sum);
    for (struct mu_thread_buffer *buffer = recorder->buffers; buffer != NULL;
         buffer = buffer->next) {
        if (buffer->timer == timer) {
            add_total(buffer->aggregates, path, &into->count, &into->sum);
        }
    }
    add_total(timer->gpu, path, &into->gpu_count, &into->gpu_sum);
    pthread_mutex_unlock(&recorder->registry_lock);
}

void mu_timer_gpu_aggregate(struct mu_timer *timer, uint16_t path, struct mu_aggregate *into) {
    struct mu_recorder *recorder = timer->recorder;
    mu_recorder_check_fork(recorder);
    pthread_mutex_lock(&recorder->registry_lock);
    if (path < MU_PATHS_MAX && timer->gpu != NULL && timer->gpu[path] != NULL) {
        mu_aggregate_merge(into, timer->gpu[path]);
    }
    pthread_mutex_unlock(&recorder->registry_lock);
}

static struct mu_aggregate *gpu_aggregate_locked(struct mu_timer *timer, uint16_t path) {
    if (timer->gpu == NULL) {
        timer->gpu = calloc(MU_PATHS_MAX, sizeof(struct mu_aggregate *));
    }
    if (timer->gpu != NULL && timer->gpu[path] == NULL) {
        timer->gpu[path] = malloc(sizeof(struct mu_aggregate));
        if (timer->gpu[path] != NULL) {
            mu_aggregate_init(timer->gpu[path]);
        }
    }
    return timer->gpu == NULL ? NULL : timer->gpu[path];
}

void mu_timer_add_gpu_time(void *owner, uint32_t label, int64_t duration_ns) {
    struct mu_recorder *recorder = owner;
    uint32_t index = label >> 12 & 0x1ff;
    uint16_t path = label & (MU_PATHS_MAX - 1);
    pthread_mutex_lock(&recorder->registry_lock);
    struct mu_timer *timer = index < MU_TIMERS_MAX ? recorder->timers[index] : NULL;
    if (timer != NULL && mu_timer_gpu_label(timer, path) == label) {
        struct mu_aggregate *aggregate = gpu_aggregate_locked(timer, path);
        if (aggregate != NULL) {
            mu_aggregate_add(aggregate, (uint64_t)duration_ns);
        }
    }
    pthread_mutex_unlock(&recorder->registry_lock);
}
