#include "stages/corrections.h"

#include <stdlib.h>

#include "cuda/cuda_timing.h"
#include "cuda/nvtx.h"
#include "stages/state.h"
#include "stages/thread_buffer.h"

static const uint64_t ring_mask = MU_RING_SLOTS - 1;

static const struct mu_chunk_commit *last_commit(const struct mu_chunk_header *chunk) {
    uint64_t first = atomic_load_explicit(&chunk->commits[0].epoch, memory_order_relaxed);
    uint64_t second = atomic_load_explicit(&chunk->commits[1].epoch, memory_order_relaxed);
    return &chunk->commits[first >= second ? 0 : 1];
}

static bool start_is_written(const struct mu_thread_buffer *buffer, uint32_t depth) {
    return depth >= MU_OPEN_MAX ||
           last_commit(buffer->chunk)->started[depth].node == buffer->frames[depth].node;
}

static void forget_top(struct mu_thread_buffer *buffer) {
    struct mu_frame *frame = &buffer->frames[buffer->depth - 1];
    mu_cuda_span_cancel(buffer->recorder->gpu, frame->span);
    mu_nvtx_pop(frame->range);
    free(frame->owned_name);
    frame->owned_name = NULL;
    buffer->depth--;
    atomic_store_explicit(&buffer->chunk->depth, buffer->depth, memory_order_release);
}

bool mu_thread_buffer_take_back(struct mu_thread_buffer *buffer) {
    if (buffer->depth == 0) {
        return false;
    }
    const struct mu_frame *frame = &buffer->frames[buffer->depth - 1];
    pthread_mutex_t *lock = &buffer->recorder->drain_lock;
    if (buffer->frames_in_order > 0 && pthread_mutex_trylock(lock) == 0) {
        bool written = start_is_written(buffer, buffer->depth - 1);
        if (!written) {
            forget_top(buffer);
        }
        pthread_mutex_unlock(lock);
        if (!written) {
            return true;
        }
    }
    enum mu_stop_result result =
        mu_thread_buffer_stop(buffer, frame->name, frame->length, frame->hash);
    (void)result; /* the stage on top is open */
    return false;
}

/* The step of records that no drain has taken; the drain's lock is held. */
static uint64_t change_records(struct mu_thread_buffer *buffer,
                               const struct mu_step_change *change) {
    uint64_t from = change->from, to = change->to;
    uint64_t drained = last_commit(buffer->chunk)->drained;
    uint64_t tail = atomic_load_explicit(&buffer->chunk->tail, memory_order_relaxed);
    if (drained < tail) {
        drained = tail;
    }
    uint64_t written = from < drained ? (drained < to ? drained : to) - from : 0;
    for (uint64_t position = from + written; position < to;) {
        struct mu_record *record = &buffer->ring[position & ring_mask];
        record->step = change->step;
        position += record->slots == 0 ? 1 : record->slots;
    }
    return written;
}

static void make_changes_left(struct mu_thread_buffer *buffer) {
    for (uint32_t i = 0; i < buffer->changes_left; i++) {
        change_records(buffer, &buffer->changes[i]);
    }
    buffer->changes_left = 0;
}

void mu_corrections_make_lock_held(struct mu_recorder *recorder) {
    pthread_mutex_lock(&recorder->registry_lock);
    for (struct mu_thread_buffer *buffer = recorder->buffers; buffer != NULL;
         buffer = buffer->next) {
        make_changes_left(buffer);
    }
    pthread_mutex_unlock(&recorder->registry_lock);
}

/* False where so many are left already that this one is not made. */
static bool leave_to_drain(struct mu_thread_buffer *buffer, const struct mu_step_change *change) {
    pthread_mutex_lock(&buffer->recorder->registry_lock);
    bool left = buffer->changes_left < MU_STEP_CHANGES_MAX;
    if (left) {
        buffer->changes[buffer->changes_left++] = *change;
    }
    pthread_mutex_unlock(&buffer->recorder->registry_lock);
    return left;
}

uint64_t mu_thread_buffer_change_step(struct mu_thread_buffer *buffer, uint64_t from, uint64_t to,
                                      int64_t step) {
    if (to > buffer->head) {
        to = buffer->head;
    }
    if (from >= to) {
        return 0;
    }
    const struct mu_step_change change = {from, to, step};
    if (pthread_mutex_trylock(&buffer->recorder->drain_lock) != 0) {
        return leave_to_drain(buffer, &change) ? 0 : to - from;
    }
    mu_corrections_make_lock_held(buffer->recorder); /* they came before this one */
    uint64_t written = change_records(buffer, &change);
    pthread_mutex_unlock(&buffer->recorder->drain_lock);
    return written;
}
