#include "recorder.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "drain.h"
#include "open.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* Linux 4.14 */
#endif

enum { PAGE = 4096, NODES_PER_BLOCK = 4096 };

static const int64_t first_calibration_ns = 200000;

_Thread_local struct mu_thread *mu_this_thread = NULL;

_Static_assert(sizeof(struct mu_thread) <= PAGE, "a thread's state is one page");

static void *map_wiped_page(void) {
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return NULL;
    }
    if (madvise(page, PAGE, MADV_WIPEONFORK) != 0) {
        munmap(page, PAGE);
        return NULL;
    }
    return page;
}

/* --- lanes ------------------------------------------------------------------------------- */

/* Figures of a thread that ended stay with its timer. */
static void keep_aggregates(struct mu_lane *lane) {
    struct mu_timer *timer = lane->timer;
    if (timer->retired == NULL) {
        timer->retired = lane->aggregates;
        lane->aggregates = NULL;
        return;
    }
    for (int path = 0; path < MU_PATHS_MAX; path++) {
        struct mu_aggregate *from = lane->aggregates[path];
        if (from == NULL) {
            continue;
        }
        if (timer->retired[path] == NULL) {
            timer->retired[path] = from;
            lane->aggregates[path] = NULL;
        } else {
            mu_aggregate_merge(timer->retired[path], from);
        }
    }
}

static void free_by_path(struct mu_aggregate ***aggregates) {
    for (int path = 0; *aggregates != NULL && path < MU_PATHS_MAX; path++) {
        free((*aggregates)[path]);
    }
    free(*aggregates);
    *aggregates = NULL;
}

static void free_aggregates(struct mu_timer *timer) {
    free_by_path(&timer->retired);
    free_by_path(&timer->gpu);
}

static void unlink_lane(struct mu_recorder *recorder, struct mu_lane *lane) {
    struct mu_lane **at = &recorder->lanes;
    while (*at != NULL && *at != lane) {
        at = &(*at)->next;
    }
    if (*at == lane) {
        *at = lane->next;
    }
}

static void retire_lane_locked(struct mu_recorder *recorder, struct mu_lane *lane) {
    keep_aggregates(lane);
    unlink_lane(recorder, lane);
    atomic_store_explicit(&lane->chunk->state, MU_CHUNK_RETIRED, memory_order_release);
    mu_lane_free(lane);
    free(lane);
}

static void free_thread_locked(struct mu_recorder *recorder, struct mu_thread *thread) {
    for (int i = 0; i < MU_TIMERS_MAX; i++) {
        if (thread->lanes[i] != NULL) {
            retire_lane_locked(recorder, thread->lanes[i]);
        }
    }
    struct mu_thread **at = &recorder->threads;
    while (*at != NULL && *at != thread) {
        at = &(*at)->next;
    }
    if (*at == thread) {
        *at = thread->next;
    }
    munmap(thread, PAGE);
}

/* Destructor of the thread key: the thread ends. */
static void thread_ends(void *page) {
    struct mu_thread *thread = page;
    struct mu_recorder *recorder = thread->recorder;
    mu_this_thread = NULL;
    if (recorder == NULL) {
        munmap(thread, PAGE);
        return;
    }
    pthread_mutex_lock(&recorder->registry_lock);
    free_thread_locked(recorder, thread);
    pthread_mutex_unlock(&recorder->registry_lock);
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
    thread = map_wiped_page();
    if (thread == NULL) {
        return NULL;
    }
    if (pthread_setspecific(recorder->thread_key, thread) != 0) {
        munmap(thread, PAGE);
        return NULL;
    }
    thread->recorder = recorder;
    thread->tid = tid;
    thread->next = recorder->threads;
    recorder->threads = thread;
    mu_this_thread = thread;
    return thread;
}

static void describe_chunk(struct mu_recorder *recorder, struct mu_lane *lane, const char *tag) {
    struct mu_chunk_header *chunk = lane->chunk;
    uint32_t tag_string = MU_NAME_NONE;
    size_t length = strlen(tag);
    if (length > 0) {
        tag_string = mu_names_intern(&recorder->names, tag, length, mu_hash_bytes(tag, length));
    }
    atomic_store_explicit(&chunk->tid, (uint32_t)syscall(SYS_gettid), memory_order_relaxed);
    atomic_store_explicit(&chunk->tag, tag_string, memory_order_relaxed);
    atomic_store_explicit(&chunk->thread_name, MU_NAME_NONE, memory_order_relaxed);
    atomic_store_explicit(&chunk->depth, 0, memory_order_relaxed);
    atomic_store_explicit(&chunk->step, 0, memory_order_relaxed);
}

static struct mu_lane *new_lane_locked(struct mu_timer *timer) {
    struct mu_recorder *recorder = timer->recorder;
    struct mu_thread *thread = this_thread_locked(recorder);
    struct mu_lane *lane = thread == NULL ? NULL : calloc(1, sizeof(*lane));
    if (lane == NULL) {
        return NULL;
    }
    if (mu_lane_init(lane) != MU_OK ||
        mu_journal_claim_chunk(&recorder->journal, &lane->chunk_index, NULL) != MU_OK) {
        mu_lane_free(lane);
        free(lane);
        return NULL;
    }
    lane->recorder = recorder;
    lane->timer = timer;
    lane->chunk = mu_journal_chunk(&recorder->journal, lane->chunk_index);
    lane->ring = mu_chunk_ring(lane->chunk);
    lane->rate = &recorder->rate;
    lane->counter = recorder->counter;
    lane->head = atomic_load_explicit(&lane->chunk->head, memory_order_relaxed);
    lane->room_until = lane->head;
    lane->wake_at = lane->head + MU_RING_SLOTS / 2;
    describe_chunk(recorder, lane, timer->tag);
    lane->next = recorder->lanes;
    recorder->lanes = lane;
    thread->lanes[timer->index] = lane;
    return lane;
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

struct mu_lane *mu_timer_new_lane(struct mu_timer *timer) {
    struct mu_recorder *recorder = timer->recorder;
    mu_recorder_check_fork(recorder);
    if (recorder->reopen) {
        mu_recorder_reopen_in_child(recorder);
    }
    pthread_mutex_lock(&recorder->registry_lock);
    struct mu_lane *lane = recorder->broken ? NULL : new_lane_locked(timer);
    bool retry = lane == NULL && !recorder->broken && has_retired_chunk(recorder);
    pthread_mutex_unlock(&recorder->registry_lock);
    if (retry) {
        mu_recorder_drain(recorder, 100000000);
        pthread_mutex_lock(&recorder->registry_lock);
        lane = new_lane_locked(timer);
        pthread_mutex_unlock(&recorder->registry_lock);
    }
    if (lane == NULL) {
        atomic_fetch_add(&recorder->troubles.dropped_lanes, 1);
    }
    return lane;
}

void mu_recorder_set_thread_name(struct mu_recorder *recorder, struct mu_lane *lane,
                                 const char *name) {
    size_t length = mu_name_cut(name, strlen(name));
    pthread_mutex_lock(&recorder->registry_lock);
    uint16_t string = mu_names_intern(&recorder->names, name, length, mu_hash_bytes(name, length));
    pthread_mutex_unlock(&recorder->registry_lock);
    atomic_store_explicit(&lane->chunk->thread_name, string, memory_order_relaxed);
}

/* --- called by lane.c --------------------------------------------------------------------- */

static struct mu_aggregate *lane_aggregate(struct mu_lane *lane, uint16_t path) {
    if (lane->aggregates[path] == NULL) {
        struct mu_aggregate *aggregate = malloc(sizeof(*aggregate));
        if (aggregate != NULL) {
            mu_aggregate_init(aggregate);
        }
        lane->aggregates[path] = aggregate;
    }
    return lane->aggregates[path];
}

void mu_recorder_resolve(struct mu_lane *lane, uint16_t parent_path, const char *name,
                         size_t length, uint64_t hash, struct mu_stage *stage) {
    struct mu_recorder *recorder = lane->recorder;
    pthread_mutex_lock(&recorder->registry_lock);
    memset(stage, 0, sizeof(*stage));
    stage->name_id = mu_names_intern(&recorder->names, name, length, hash);
    stage->path = mu_names_path(&recorder->names, parent_path, stage->name_id);
    stage->aggregate = lane_aggregate(lane, stage->path);
    if (stage->name_id != MU_NAME_NONE) {
        size_t known;
        stage->name = mu_journal_string(&recorder->journal, stage->name_id, &known);
        stage->hash = hash;
        stage->length = (uint32_t)length;
        stage->parent_path = parent_path;
    } else {
        atomic_fetch_add_explicit(&recorder->troubles.full_names, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&recorder->registry_lock);
}

bool mu_recorder_make_room(struct mu_lane *lane, uint32_t slots) {
    uint64_t tail = atomic_load_explicit(&lane->chunk->tail, memory_order_acquire);
    lane->room_until = tail + MU_RING_SLOTS;
    if (lane->head + slots <= lane->room_until) {
        return true;
    }
    MU_RELAXED_ADD(lane->chunk->dropped, 1);
    atomic_fetch_add_explicit(&lane->recorder->troubles.dropped_records, 1, memory_order_relaxed);
    mu_recorder_call_drain(lane);
    return false;
}

void mu_recorder_call_drain(struct mu_lane *lane) {
    uint64_t tail = atomic_load_explicit(&lane->chunk->tail, memory_order_acquire);
    if (lane->head - tail < MU_RING_SLOTS / 2) {
        lane->wake_at = tail + MU_RING_SLOTS / 2;
        return;
    }
    lane->wake_at = lane->head + MU_RING_SLOTS / 8;
    mu_drain_thread_call(lane->recorder);
}

uint64_t mu_recorder_more_nodes(struct mu_lane *lane) {
    lane->node_next = atomic_fetch_add_explicit(&lane->recorder->node_next, NODES_PER_BLOCK,
                                                memory_order_relaxed);
    lane->node_end = lane->node_next + NODES_PER_BLOCK;
    return lane->node_next;
}

/* --- timers ------------------------------------------------------------------------------- */

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
    int code = mu_error_set(err, MU_ERR_LIMIT, "%d timers live already", MU_TIMERS_MAX);
    for (uint32_t i = 0; i < MU_TIMERS_MAX; i++) {
        if (recorder->timers[i] == NULL) {
            recorder->timers[i] = timer;
            timer->recorder = recorder;
            timer->index = i;
            timer->generation = recorder->timers_made++;
            code = MU_OK;
            break;
        }
    }
    pthread_mutex_unlock(&recorder->registry_lock);
    return code;
}

void mu_timer_release(struct mu_timer *timer) {
    struct mu_recorder *recorder = timer->recorder;
    if (recorder == NULL) {
        return;
    }
    mu_recorder_check_fork(recorder);
    pthread_mutex_lock(&recorder->registry_lock);
    for (struct mu_thread *thread = recorder->threads; thread != NULL; thread = thread->next) {
        struct mu_lane *lane = thread->lanes[timer->index];
        if (lane != NULL) {
            thread->lanes[timer->index] = NULL;
            retire_lane_locked(recorder, lane);
        }
    }
    recorder->timers[timer->index] = NULL;
    free_aggregates(timer);
    pthread_mutex_unlock(&recorder->registry_lock);
    timer->recorder = NULL;
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
    for (struct mu_lane *lane = recorder->lanes; lane != NULL; lane = lane->next) {
        if (lane->timer == timer && lane->aggregates[path] != NULL) {
            mu_aggregate_merge(into, lane->aggregates[path]);
        }
    }
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

int mu_recorder_use_gpu(struct mu_recorder *recorder, const struct mu_cuda_pool_options *options,
                        struct mu_error *err) {
    mu_recorder_check_fork(recorder);
    if (recorder->gpu != NULL) {
        return MU_OK;
    }
    struct mu_cuda_pool *pool;
    int code = mu_cuda_pool_create(&pool, options, err);
    if (code == MU_OK) {
        pthread_mutex_lock(&recorder->drain_lock);
        recorder->gpu = pool;
        pthread_mutex_unlock(&recorder->drain_lock);
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

/* --- life --------------------------------------------------------------------------------- */

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
    recorder->counter = mu_clock_counter_is_kernel_clock();
    recorder->fork_guard = map_wiped_page();
    int code = recorder->fork_guard == NULL ? mu_error_sys(err, "map a page", NULL) : MU_OK;
    if (code == MU_OK && pthread_key_create(&recorder->thread_key, thread_ends) != 0) {
        munmap(recorder->fork_guard, PAGE);
        recorder->fork_guard = NULL;
        code = mu_error_set(err, MU_ERR_LIMIT, "no thread key left in this process");
    }
    if (code == MU_OK) {
        calibrate(recorder);
        code = begin(recorder, err);
        if (code != MU_OK) {
            pthread_key_delete(recorder->thread_key);
            munmap(recorder->fork_guard, PAGE);
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
        munmap(thread, PAGE);
    }
    mu_this_thread = NULL;
    free_lanes(recorder);
    mu_cuda_pool_free(recorder->gpu);
    mu_drain_free(recorder->drain);
    mu_output_free(&recorder->output);
    mu_journal_release(&recorder->journal);
    munmap(recorder->fork_guard, PAGE);
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
    forget_parent(recorder);
    recorder->broken = begin(recorder, NULL) != MU_OK;
    return true;
}
