#include "host/sampler.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "host/memory_cgroup.h"
#include "host/proc_text.h"
#include "host/process_io.h"
#include "host/thread_times.h"

enum { STACK_BYTES = 256 * 1024, WORKERS_A_SAMPLE = 8, TEXT_BYTES = 128 };

static const int64_t usual_period_ns = 20000000;
static const int64_t least_gap_ns = 5000000; /* what is less is the timer's own */
static const int64_t refaults_pause_ns = 1000000000;
static const int64_t refaults_soon_ns = 40000000; /* while memory may be lacking */
static const int64_t lack_lasts_ns = 200000000;   /* since the last sign of that */
static const int64_t pressure_pause_ns = 100000000;
static const int64_t io_pause_ns = 1000000000;

struct worker {
    struct mu_watched_thread thread;
    struct mu_proc_file schedstat; /* none: the kernel does not say */
    uint64_t on_core_ns, delay_ns; /* by it, at the last sample */
    uint64_t unsplit_ns;
    struct mu_proc_file io; /* none: the kernel does not say */
    int64_t io_read_ns;
    uint64_t read_bytes; /* when it was added */
    int index;
    struct mu_sampled_worker counted;
};

struct mu_sampler {
    pid_t owner; /* the process that has the thread */
    struct mu_sampler_options options;
    pthread_t thread;
    pthread_mutex_t lock; /* of `stop` and the workers */
    pthread_cond_t wake;
    bool stop;
    struct worker workers[MU_SAMPLER_WORKERS_MAX];
    int worker_count, next_worker;

    /* Of the thread alone. */
    struct mu_watched_thread watched;
    struct mu_thread_clock clock;
    struct mu_memory_cgroup memory;
    struct mu_pressure pressure;
    struct mu_proc_file loadavg; /* none: the kernel does not say */
    int64_t last_ns;             /* when the last sample was taken */
    int64_t refaults_ns;         /* when they were read */
    int64_t lack_ns;             /* when memory was last seen to lack, perhaps */
    int64_t pressure_read_ns;
    uint64_t delay_ns; /* of the own thread, at the last sample */
    enum mu_wait last; /* what was seen then */

    /* Written by the thread, read by others. */
    _Atomic uint64_t waited_ns[MU_WAIT_KINDS];
    _Atomic uint64_t stopped_ns, limits_met, stalled_ns, refaults;
    _Atomic uint64_t runnable_samples, runnable_sum;
    _Atomic uint64_t pressure_number, pressure_ns[MU_PRESSURES];
    _Atomic bool has_pressure[MU_PRESSURES];
    _Atomic bool has_waits, has_stopped, has_limits, has_stalled, has_refaults;
};

static void add(_Atomic uint64_t *to, uint64_t more) {
    atomic_fetch_add_explicit(to, more, memory_order_relaxed);
}

/* --- one sample --------------------------------------------------------------------------- */

/* How much of the time since the last sample the process was stopped: the thread comes too late,
 * and was not ready to run meanwhile. */
static int64_t stopped_since(struct mu_sampler *sampler, int64_t now) {
    struct mu_thread_times times;
    if (!mu_thread_clock_read(&sampler->clock, &times) || !times.has_delay) {
        atomic_store(&sampler->has_stopped, false);
        return 0;
    }
    int64_t gap = now - sampler->last_ns - sampler->options.period_ns;
    gap -= (int64_t)(times.delay_ns - sampler->delay_ns);
    sampler->delay_ns = times.delay_ns;
    return gap < least_gap_ns ? 0 : gap;
}

/* The time that a sample stands for: all since the last one if that saw the same, else at most a
 * period. */
static uint64_t time_of(const struct mu_sampler *sampler, enum mu_wait wait, int64_t passed) {
    int64_t period = sampler->options.period_ns;
    bool is_long = wait != sampler->last && passed > period;
    return passed < 0 ? 0 : (uint64_t)(is_long ? period : passed);
}

/* Time in which the worker ran or was ready to, in the proportion in which the kernel counts the
 * two. It counts a wait for a core when the wait ends, so until then nothing is known. */
static void split(struct worker *worker, uint64_t ns) {
    struct mu_sampled_worker *counted = &worker->counted;
    uint64_t on_core, delay;
    counted->has_delay = mu_schedstat_read(&worker->schedstat, &on_core, &delay);
    if (!counted->has_delay) {
        counted->ran_ns += ns;
        return;
    }
    uint64_t ran = on_core - worker->on_core_ns, waited = delay - worker->delay_ns;
    worker->on_core_ns = on_core;
    worker->delay_ns = delay;
    worker->unsplit_ns += ns;
    if (ran + waited > 0) {
        double share = (double)waited / (double)(ran + waited);
        uint64_t delayed = (uint64_t)(share * (double)worker->unsplit_ns);
        counted->delay_ns += delayed;
        counted->ran_ns += worker->unsplit_ns - delayed;
        worker->unsplit_ns = 0;
    }
}

static void read_io(struct worker *worker) {
    struct mu_sampled_worker *counted = &worker->counted;
    int64_t now = mu_clock_monotonic_ns();
    uint64_t bytes;
    if (now - worker->io_read_ns < io_pause_ns) {
        return;
    }
    worker->io_read_ns = now;
    if (mu_process_io_read_bytes(&worker->io, &bytes)) {
        counted->read_bytes = bytes - worker->read_bytes;
        counted->io_readings++;
    }
}

static void sample_worker(struct mu_sampler *sampler, struct worker *worker, uint64_t ns) {
    enum mu_wait wait;
    if (!mu_watched_thread_read(&worker->thread, &wait)) {
        return;
    }
    bool reads = wait == MU_WAIT_STORAGE || wait == MU_WAIT_PAGE;
    split(worker, wait == MU_WAIT_NONE ? ns : 0);
    worker->counted.storage_ns += reads ? ns : 0;
    read_io(worker);
    sampler->next_worker++;
}

/* Of many workers, some with each sample: each then stands for more time. */
static void sample_workers_lock_held(struct mu_sampler *sampler, uint64_t ns) {
    int count = sampler->worker_count;
    int now = count < WORKERS_A_SAMPLE ? count : WORKERS_A_SAMPLE;
    for (int i = 0; i < now; i++) {
        int at = sampler->next_worker % count;
        sample_worker(sampler, &sampler->workers[at], ns * (uint64_t)count / (uint64_t)now);
    }
}

static void sample_workers(struct mu_sampler *sampler, uint64_t ns) {
    pthread_mutex_lock(&sampler->lock);
    sample_workers_lock_held(sampler, ns);
    pthread_mutex_unlock(&sampler->lock);
}

/* The wait for a page is often too short for a sample, so limits that are met are a sign, too. */
static void read_memory(struct mu_sampler *sampler, int64_t now, bool waits_for_pages) {
    uint64_t number = 0;
    bool known = mu_memory_limits_met(&sampler->memory, &number);
    bool is_met = atomic_exchange(&sampler->limits_met, number) != number;
    atomic_store(&sampler->has_limits, known);
    known = mu_memory_stalled_ns(&sampler->memory, &number);
    atomic_store(&sampler->stalled_ns, number);
    atomic_store(&sampler->has_stalled, known);
    sampler->lack_ns = waits_for_pages || is_met ? now : sampler->lack_ns;
    bool is_lacking = now - sampler->lack_ns < lack_lasts_ns;
    if (now - sampler->refaults_ns >= (is_lacking ? refaults_soon_ns : refaults_pause_ns)) {
        sampler->refaults_ns = now;
        known = mu_memory_refaults(&sampler->memory, &number);
        atomic_store(&sampler->refaults, number);
        atomic_store(&sampler->has_refaults, known);
    }
}

/* "0.20 0.18 0.12 3/1025 11206": three threads of the host run or are ready to, the own among
 * them. */
static void count_runnable(struct mu_sampler *sampler) {
    char text[TEXT_BYTES];
    unsigned runnable = 0;
    if (mu_proc_text(&sampler->loadavg, text, sizeof(text)) &&
        sscanf(text, "%*s %*s %*s %u/", &runnable) == 1 && runnable > 0) {
        add(&sampler->runnable_sum, runnable - 1);
        add(&sampler->runnable_samples, 1);
    }
}

static void read_pressure(struct mu_sampler *sampler, int64_t now) {
    struct mu_pressure_reading reading;
    if (now - sampler->pressure_read_ns < pressure_pause_ns) {
        return;
    }
    sampler->pressure_read_ns = now;
    mu_pressure_read(&sampler->pressure, &reading);
    for (int i = 0; i < MU_PRESSURES; i++) {
        atomic_store(&sampler->pressure_ns[i], reading.ns[i]);
        atomic_store(&sampler->has_pressure[i], reading.known[i]);
    }
    add(&sampler->pressure_number, 1);
}

/* Returns what the watched thread waits for. */
static enum mu_wait sample_thread(struct mu_sampler *sampler, int64_t passed) {
    enum mu_wait wait;
    if (!atomic_load(&sampler->has_waits)) {
        return MU_WAIT_NONE;
    }
    if (!mu_watched_thread_read(&sampler->watched, &wait)) {
        atomic_store(&sampler->has_waits, false);
        return MU_WAIT_NONE;
    }
    uint64_t ns = time_of(sampler, wait, passed);
    add(&sampler->waited_ns[wait], ns);
    if (wait == MU_WAIT_OTHER) {
        sample_workers(sampler, ns);
    } else if (wait == MU_WAIT_NONE) {
        count_runnable(sampler);
    }
    return wait;
}

static void sample(struct mu_sampler *sampler) {
    int64_t now = mu_clock_monotonic_ns();
    int64_t stopped = stopped_since(sampler, now);
    add(&sampler->stopped_ns, (uint64_t)stopped);
    sampler->last = sample_thread(sampler, now - sampler->last_ns - stopped);
    bool reads = sampler->last == MU_WAIT_STORAGE || sampler->last == MU_WAIT_PAGE;
    read_memory(sampler, now, reads);
    read_pressure(sampler, now);
    /* What the work itself took, if a lot, is nobody's gap. */
    int64_t after = mu_clock_monotonic_ns();
    sampler->last_ns = after - now < least_gap_ns ? now : after;
}

/* --- the thread --------------------------------------------------------------------------- */

static void begin(struct mu_sampler *sampler) {
    struct mu_thread_times times;
    mu_thread_clock_open(&sampler->clock);
    bool known = mu_thread_clock_read(&sampler->clock, &times) && times.has_delay;
    sampler->delay_ns = known ? times.delay_ns : 0;
    sampler->last_ns = mu_clock_monotonic_ns();
    atomic_store(&sampler->has_stopped, known);
}

static void *sampler_main(void *argument) {
    struct mu_sampler *sampler = argument;
    begin(sampler);
    int64_t due = sampler->last_ns + sampler->options.period_ns;
    while (mu_wait_until(&sampler->lock, &sampler->wake, &sampler->stop, due)) {
        sample(sampler);
        due = sampler->last_ns + sampler->options.period_ns;
    }
    mu_thread_clock_close(&sampler->clock);
    return NULL;
}

/* --- the sampler -------------------------------------------------------------------------- */

static void forget_workers(struct mu_sampler *sampler) {
    while (sampler->worker_count > 0) {
        struct worker *worker = &sampler->workers[--sampler->worker_count];
        mu_watched_thread_close(&worker->thread);
        mu_proc_close(&worker->schedstat);
        mu_proc_close(&worker->io);
    }
}

/* Closes the descriptors, which a forked child has as well. */
static void release(struct mu_sampler *sampler) {
    forget_workers(sampler);
    mu_watched_thread_close(&sampler->watched);
    mu_memory_cgroup_close(&sampler->memory);
    mu_pressure_close(&sampler->pressure);
    mu_proc_close(&sampler->loadavg);
    free(sampler);
}

struct mu_sampler *mu_sampler_start(const struct mu_sampler_options *options) {
    struct mu_sampler *sampler = calloc(1, sizeof(*sampler));
    if (sampler == NULL) {
        return NULL;
    }
    sampler->owner = getpid();
    sampler->clock.schedstat = MU_NO_PROC_FILE;
    sampler->options = *options;
    sampler->options.period_ns = options->period_ns > 0 ? options->period_ns : usual_period_ns;
    pthread_mutex_init(&sampler->lock, NULL);
    mu_cond_init(&sampler->wake);
    atomic_store(&sampler->has_waits, mu_watched_thread_open(&sampler->watched, 0, options->tid));
    sampler->watched.lock = options->lock;
    mu_memory_cgroup_open(&sampler->memory, "/proc/self");
    mu_pressure_open(&sampler->pressure, "/proc/self", "/proc/pressure");
    sampler->loadavg = mu_proc_open("/proc/loadavg");
    read_pressure(sampler, mu_clock_monotonic_ns());
    read_memory(sampler, mu_clock_monotonic_ns(), false);
    if (!mu_thread_start(&sampler->thread, STACK_BYTES, sampler_main, sampler)) {
        release(sampler);
        return NULL;
    }
    return sampler;
}

void mu_sampler_stop(struct mu_sampler *sampler) {
    if (sampler == NULL) {
        return;
    }
    if (sampler->owner == getpid()) {
        pthread_mutex_lock(&sampler->lock);
        sampler->stop = true;
        pthread_cond_signal(&sampler->wake);
        pthread_mutex_unlock(&sampler->lock);
        pthread_join(sampler->thread, NULL);
        pthread_mutex_destroy(&sampler->lock);
        pthread_cond_destroy(&sampler->wake);
    } else {
        mu_thread_clock_close(&sampler->clock);
    }
    release(sampler);
}

void mu_sampler_read(const struct mu_sampler *sampler, struct mu_sampled *out) {
    for (int i = 0; i < MU_WAIT_KINDS; i++) {
        out->waited_ns[i] = atomic_load_explicit(&sampler->waited_ns[i], memory_order_relaxed);
    }
    out->stopped_ns = atomic_load(&sampler->stopped_ns) + out->waited_ns[MU_WAIT_STOPPED];
    out->limits_met = atomic_load(&sampler->limits_met);
    out->stalled_ns = atomic_load(&sampler->stalled_ns);
    out->refaults = atomic_load(&sampler->refaults);
    out->runnable_samples = atomic_load(&sampler->runnable_samples);
    out->runnable_sum = atomic_load(&sampler->runnable_sum);
    out->pressure_number = atomic_load(&sampler->pressure_number);
    for (int i = 0; i < MU_PRESSURES; i++) {
        out->pressure.ns[i] = atomic_load(&sampler->pressure_ns[i]);
        out->pressure.known[i] = atomic_load(&sampler->has_pressure[i]);
    }
    out->has_waits = atomic_load(&sampler->has_waits);
    out->has_lock = out->has_waits && sampler->options.lock.begin < sampler->options.lock.end;
    out->has_stopped = atomic_load(&sampler->has_stopped);
    out->has_limits = atomic_load(&sampler->has_limits);
    out->has_stalled = atomic_load(&sampler->has_stalled);
    out->has_refaults = atomic_load(&sampler->has_refaults);
}

/* --- workers ------------------------------------------------------------------------------ */

static void add_worker_lock_held(struct mu_sampler *sampler, pid_t process, int index) {
    struct worker *worker = &sampler->workers[sampler->worker_count];
    *worker = (struct worker){.index = index, .counted.process = process};
    if (!mu_watched_thread_open(&worker->thread, process, process)) {
        return;
    }
    worker->schedstat = mu_proc_open_of(process, "schedstat");
    worker->counted.has_delay =
        mu_schedstat_read(&worker->schedstat, &worker->on_core_ns, &worker->delay_ns);
    worker->io = mu_proc_open_of(process, "io");
    worker->io_read_ns = mu_clock_monotonic_ns();
    (void)mu_process_io_read_bytes(&worker->io, &worker->read_bytes);
    sampler->worker_count++;
}

void mu_sampler_set_workers(struct mu_sampler *sampler, const pid_t *processes, int count) {
    pthread_mutex_lock(&sampler->lock);
    forget_workers(sampler);
    for (int i = 0; i < count && i < MU_SAMPLER_WORKERS_MAX; i++) {
        add_worker_lock_held(sampler, processes[i], i);
    }
    pthread_mutex_unlock(&sampler->lock);
}

int mu_sampler_workers(struct mu_sampler *sampler, struct mu_sampled_worker *out, int *index) {
    pthread_mutex_lock(&sampler->lock);
    int count = sampler->worker_count;
    for (int i = 0; i < count; i++) {
        out[i] = sampler->workers[i].counted;
        index[i] = sampler->workers[i].index;
    }
    pthread_mutex_unlock(&sampler->lock);
    return count;
}
