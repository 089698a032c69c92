#include "stages/thread_buffers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/invariant.h"
#include "base/wiped_page.h"
#include "journal/journal.h"
#include "stages/names.h"
#include "timing/aggregate.h"

_Thread_local struct mu_thread *mu_this_thread = NULL;

_Static_assert(sizeof(struct mu_thread) <= MU_WIPED_PAGE_BYTES, "a thread's state is one page");

/* Figures of a thread that ended stay with its timer. */
static void keep_aggregates(struct mu_thread_buffer *buffer) {
    struct mu_timer *timer = buffer->timer;
    if (timer->retired == NULL) {
        timer->retired = buffer->aggregates;
        buffer->aggregates = NULL;
        return;
    }
    for (int path = 0; path < MU_PATHS_MAX; path++) {
        struct mu_aggregate *from = buffer->aggregates[path];
        if (from == NULL) {
            continue;
        }
        if (timer->retired[path] == NULL) {
            timer->retired[path] = from;
            buffer->aggregates[path] = NULL;
        } else {
            mu_aggregate_merge(timer->retired[path], from);
        }
    }
}

static void unlink_buffer(struct mu_recorder *recorder, struct mu_thread_buffer *buffer) {
    struct mu_thread_buffer **at = &recorder->buffers;
    while (*at != NULL && *at != buffer) {
        at = &(*at)->next;
    }
    MU_INVARIANT(*at == buffer);
    if (*at == buffer) {
        *at = buffer->next;
    }
}

void mu_thread_buffer_retire_locked(struct mu_recorder *recorder, struct mu_thread_buffer *buffer) {
    keep_aggregates(buffer);
    unlink_buffer(recorder, buffer);
    MU_INVARIANT(atomic_load(&buffer->chunk->state) == MU_CHUNK_OWNED);
    atomic_store_explicit(&buffer->chunk->state, MU_CHUNK_RETIRED, memory_order_release);
    mu_thread_buffer_free(buffer);
    free(buffer);
}

/* Destroyed recorders have freed the buffers. */
static void free_thread_locked(struct mu_recorder *recorder, struct mu_thread *thread) {
    for (int i = 0; !recorder->ended && i < MU_TIMERS_MAX; i++) {
        if (thread->buffers[i] != NULL) {
            mu_thread_buffer_retire_locked(recorder, thread->buffers[i]);
        }
    }
    struct mu_thread **at = &recorder->threads;
    while (*at != NULL && *at != thread) {
        at = &(*at)->next;
    }
    if (*at == thread) {
        *at = thread->next;
    }
    mu_wiped_page_unmap(thread);
}

void mu_recorder_leave(struct mu_recorder *recorder) {
    if (atomic_fetch_sub(&recorder->users, 1) == 1) {
        if (recorder->has_key) {
            pthread_key_delete(recorder->thread_key);
        }
        pthread_mutex_destroy(&recorder->registry_lock);
        free(recorder);
    }
}

void mu_thread_ends(void *page) {
    struct mu_thread *thread = page;
    struct mu_recorder *recorder = thread->recorder;
    if (mu_this_thread == thread) {
        mu_this_thread = NULL;
    }
    if (recorder == NULL) {
        mu_wiped_page_unmap(thread);
        return;
    }
    pthread_mutex_lock(&recorder->registry_lock);
    free_thread_locked(recorder, thread);
    pthread_mutex_unlock(&recorder->registry_lock);
    mu_recorder_leave(recorder);
}

void mu_thread_forget(struct mu_recorder *recorder) {
    struct mu_thread *thread = recorder->has_key ? pthread_getspecific(recorder->thread_key) : NULL;
    if (thread != NULL) {
        pthread_setspecific(recorder->thread_key, NULL);
        mu_thread_ends(thread);
    }
}

static struct mu_thread *this_thread_locked(struct mu_recorder *recorder) {
    struct mu_thread *thread = mu_this_thread;
    if (thread != NULL && thread->recorder == recorder) {
        return thread;
    }
    uint32_t tid = (uint32_t)syscall(SYS_gettid);
    for (thread = recorder->threads; thread != NULL; thread = thread->next) {
        if (thread->tid == tid) {
            mu_this_thread = thread;
            return thread;
        }
    }
    thread = mu_wiped_page_map();
    if (thread == NULL) {
        return NULL;
    }
    if (pthread_setspecific(recorder->thread_key, thread) != 0) {
        mu_wiped_page_unmap(thread);
        return NULL;
    }
    thread->recorder = recorder;
    thread->tid = tid;
    thread->next = recorder->threads;
    recorder->threads = thread;
    atomic_fetch_add(&recorder->users, 1);
    mu_this_thread = thread;
    return thread;
}

static void describe_chunk(struct mu_recorder *recorder, struct mu_thread_buffer *buffer,
                           const char *tag) {
    struct mu_chunk_header *chunk = buffer->chunk;
    uint32_t tag_string = MU_NAME_NONE;
    size_t length = strlen(tag);
    if (length > 0) {
        tag_string = mu_names_intern(recorder->names, tag, length, mu_name_hash(tag, length));
    }
    atomic_store_explicit(&chunk->tid, (uint32_t)syscall(SYS_gettid), memory_order_relaxed);
    atomic_store_explicit(&chunk->tag, tag_string, memory_order_release);
    atomic_store_explicit(&chunk->thread_name, MU_NAME_NONE, memory_order_relaxed);
    atomic_store_explicit(&chunk->depth, 0, memory_order_relaxed);
    atomic_store_explicit(&chunk->step, 0, memory_order_relaxed);
}

struct mu_thread_buffer *mu_thread_buffer_new_locked(struct mu_timer *timer) {
    struct mu_recorder *recorder = timer->recorder;
    struct mu_thread *thread = this_thread_locked(recorder);
    if (thread != NULL && thread->buffers[timer->index] != NULL) {
        return thread->buffers[timer->index]; /* the thread used another recorder meanwhile */
    }
    struct mu_thread_buffer *buffer = thread == NULL ? NULL : calloc(1, sizeof(*buffer));
    if (buffer == NULL) {
        recorder->no_chunk = false;
        return NULL;
    }
    bool has_memory = mu_thread_buffer_init(buffer) == MU_OK;
    recorder->no_chunk = has_memory && mu_journal_claim_chunk(&recorder->journal,
                                                              &buffer->chunk_index, NULL) != MU_OK;
    if (!has_memory || recorder->no_chunk) {
        mu_thread_buffer_free(buffer);
        free(buffer);
        return NULL;
    }
    buffer->recorder = recorder;
    buffer->timer = timer;
    buffer->chunk = mu_journal_chunk(&recorder->journal, buffer->chunk_index);
    buffer->ring = mu_chunk_ring(buffer->chunk);
    buffer->rate = &recorder->rate;
    buffer->counter = recorder->counter;
    buffer->head = atomic_load_explicit(&buffer->chunk->head, memory_order_relaxed);
    MU_INVARIANT(atomic_load(&buffer->chunk->tail) == buffer->head); /* of the owner before */
    buffer->free_until = buffer->head;
    buffer->wake_at = buffer->head + MU_RING_SLOTS / 2;
    describe_chunk(recorder, buffer, timer->tag);
    mu_journal_keep_chunk(&recorder->journal, buffer->chunk_index);
    buffer->next = recorder->buffers;
    recorder->buffers = buffer;
    thread->buffers[timer->index] = buffer;
    return buffer;
}

void mu_recorder_count_unplaced(struct mu_recorder *recorder) {
    if (recorder->broken) {
        return;
    }
    pthread_mutex_lock(&recorder->registry_lock);
    atomic_fetch_add_explicit(&recorder->troubles.unplaced_records, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&mu_journal_header(&recorder->journal)->dropped, 1,
                              memory_order_relaxed);
    pthread_mutex_unlock(&recorder->registry_lock);
}

void mu_recorder_set_thread_name(struct mu_recorder *recorder, struct mu_thread_buffer *buffer,
                                 const char *name) {
    size_t length = mu_name_cut(name, strlen(name));
    pthread_mutex_lock(&recorder->registry_lock);
    uint16_t string = mu_names_intern(recorder->names, name, length, mu_name_hash(name, length));
    atomic_store_explicit(&buffer->chunk->thread_name, string, memory_order_release);
    mu_journal_keep_chunk(&recorder->journal, buffer->chunk_index);
    pthread_mutex_unlock(&recorder->registry_lock);
}
