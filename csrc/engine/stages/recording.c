#include "stages/recording.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const struct timespec look_again = {.tv_nsec = 20000};

static bool membarrier(int command) {
    return syscall(SYS_membarrier, command, 0, 0) == 0;
}

void mu_recording_guard(struct mu_recorder *recorder) {
    bool by_mover = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    atomic_store(&recorder->moving, by_mover ? 0 : MU_BARRIER_BY_ALL);
    recorder->guards_moves = true;
}

static bool nobody_records(const struct mu_recorder *recorder) {
    const struct mu_thread_buffer *buffer = recorder->buffers;
    while (buffer != NULL && !atomic_load(&buffer->recording)) {
        buffer = buffer->next;
    }
    return buffer == NULL;
}

/* A thread that records may wait for the registry's lock. */
static void await_threads(struct mu_recorder *recorder) {
    pthread_mutex_lock(&recorder->registry_lock);
    while (!nobody_records(recorder)) {
        pthread_mutex_unlock(&recorder->registry_lock);
        nanosleep(&look_again, NULL);
        pthread_mutex_lock(&recorder->registry_lock);
    }
}

void mu_recording_pause(struct mu_recorder *recorder) {
    if (!recorder->guards_moves) {
        pthread_mutex_lock(&recorder->registry_lock);
        return;
    }
    pthread_mutex_lock(&recorder->move_lock);
    if ((atomic_fetch_or(&recorder->moving, MU_MOVING) & MU_BARRIER_BY_ALL) == 0) {
        membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED); /* registered: it does not fail */
    }
    await_threads(recorder);
}

void mu_recording_resume(struct mu_recorder *recorder) {
    pthread_mutex_unlock(&recorder->registry_lock);
    if (recorder->guards_moves) {
        atomic_fetch_and(&recorder->moving, ~(uint32_t)MU_MOVING);
        pthread_mutex_unlock(&recorder->move_lock);
    }
}

void mu_recording_begin_alone(void *owner) {
    struct mu_recorder *recorder = owner;
    if (recorder->gil != NULL) {
        recorder->gil->begin(recorder->gil->owner);
    }
    mu_recording_pause(recorder);
}

void mu_recording_end_alone(void *owner) {
    struct mu_recorder *recorder = owner;
    mu_recording_resume(recorder);
    if (recorder->gil != NULL) {
        recorder->gil->end(recorder->gil->owner);
    }
}

void mu_recording_hold(struct mu_recorder *recorder) {
    pthread_mutex_lock(&recorder->registry_lock);
}

void mu_recording_let_go(struct mu_recorder *recorder) {
    pthread_mutex_unlock(&recorder->registry_lock);
}

void mu_recording_look(struct mu_thread_buffer *buffer) {
    struct mu_recorder *recorder = buffer->recorder;
    atomic_thread_fence(memory_order_seq_cst);
    while ((atomic_load(&recorder->moving) & MU_MOVING) != 0) {
        atomic_store(&buffer->recording, false);
        pthread_mutex_lock(&recorder->move_lock);
        atomic_store(&buffer->recording, true);
        pthread_mutex_unlock(&recorder->move_lock);
        atomic_thread_fence(memory_order_seq_cst);
    }
}
