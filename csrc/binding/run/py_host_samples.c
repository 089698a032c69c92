#include "run/py_host_samples.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "run/py_counter.h"
#include "run/py_gil.h"

enum { NS_IN_US = 1000, WORKER_BYTES = 160 };

static const struct {
    enum mu_wait wait;
    const char *key;
} wait_keys[] = {
    {MU_WAIT_STORAGE, ",storage_us="},
    {MU_WAIT_PAGE, ",page_us="},
    {MU_WAIT_OTHER, ",other_us="},
};

/* In the order of enum mu_pressure_kind. */
static const char *const pressure_keys[MU_PRESSURES] = {
    ",cpu_stalled_us=", ",io_stalled_us=", ",host_cpu_stalled_us=", ",host_io_stalled_us=",
    ",host_memory_stalled_us="};

bool mu_py_host_samples_switch_on(struct mu_py_host_samples *self) {
    bool known = mu_py_gil_find(&self->gil);
    if (!known) {
        self->gil = (struct mu_wait_lock){0, 0};
    }
    self->on = true;
    return known;
}

void mu_py_host_samples_set_workers(struct mu_py_host_samples *self, const pid_t *processes,
                                    int count) {
    self->process_count = count < MU_SAMPLER_WORKERS_MAX ? count : MU_SAMPLER_WORKERS_MAX;
    memcpy(self->processes, processes, (size_t)self->process_count * sizeof(*processes));
    memset(self->workers, 0, sizeof(self->workers));
    if (self->sampler != NULL) {
        mu_sampler_set_workers(self->sampler, self->processes, self->process_count);
    }
}

void mu_py_host_samples_begin(struct mu_py_host_samples *self) {
    const struct mu_sampler_options options = {
        .tid = (pid_t)syscall(SYS_gettid),
        .lock = self->gil,
    };
    mu_py_host_samples_end(self);
    self->sampler = self->on ? mu_sampler_start(&options) : NULL;
    if (self->sampler == NULL) {
        return;
    }
    mu_sampler_set_workers(self->sampler, self->processes, self->process_count);
    mu_sampler_read(self->sampler, &self->last);
}

void mu_py_host_samples_end(struct mu_py_host_samples *self) {
    mu_sampler_stop(self->sampler);
    self->sampler = NULL;
    memset(self->workers, 0, sizeof(self->workers));
}

/* --- rows --------------------------------------------------------------------------------- */

static char *put(char *at, const char *key, uint64_t now, uint64_t before, uint64_t unit) {
    return mu_py_counter_put(at, key, now > before ? (int64_t)((now - before) / unit) : 0);
}

static char *put_waits(const struct mu_sampled *now, const struct mu_sampled *last, char *at) {
    size_t count = sizeof(wait_keys) / sizeof(wait_keys[0]);
    for (size_t i = 0; now->has_waits && i < count; i++) {
        enum mu_wait wait = wait_keys[i].wait;
        at = put(at, wait_keys[i].key, now->waited_ns[wait], last->waited_ns[wait], NS_IN_US);
    }
    if (now->has_lock) {
        at = put(at, ",gil_us=", now->waited_ns[MU_WAIT_LOCK], last->waited_ns[MU_WAIT_LOCK],
                 NS_IN_US);
    }
    return at;
}

/* Only where it was read again since. */
static char *put_pressure(const struct mu_sampled *now, const struct mu_sampled *last, char *at) {
    bool is_new = now->pressure_number != last->pressure_number;
    for (int i = 0; is_new && i < MU_PRESSURES; i++) {
        if (now->pressure.known[i] && last->pressure.known[i]) {
            at = put(at, pressure_keys[i], now->pressure.ns[i], last->pressure.ns[i], NS_IN_US);
        }
    }
    return at;
}

static char *put_runnable(const struct mu_sampled *now, const struct mu_sampled *last, char *at) {
    uint64_t samples = now->runnable_samples - last->runnable_samples;
    uint64_t sum = now->runnable_sum - last->runnable_sum;
    return samples == 0 ? at : put(at, ",runnable=", sum + samples / 2, 0, samples);
}

char *mu_py_host_samples_put(struct mu_py_host_samples *self, char *at) {
    if (self->sampler == NULL) {
        return at;
    }
    struct mu_sampled now, *last = &self->last;
    mu_sampler_read(self->sampler, &now);
    at = put_waits(&now, last, at);
    if (now.has_stopped && last->has_stopped) {
        at = put(at, ",stopped_us=", now.stopped_ns, last->stopped_ns, NS_IN_US);
    }
    if (now.has_limits && last->has_limits) {
        at = put(at, ",limits_met=", now.limits_met, last->limits_met, 1);
    }
    if (now.has_stalled && last->has_stalled) {
        at = put(at, ",stalled_us=", now.stalled_ns, last->stalled_ns, NS_IN_US);
    }
    if (now.has_refaults && last->has_refaults) {
        at = put(at, ",refaults=", now.refaults, last->refaults, 1);
    }
    at = put_runnable(&now, last, at);
    at = put_pressure(&now, last, at);
    *last = now;
    return at;
}

/* What a worker did since the row before. What it read is kept for the row that says it. */
static struct mu_sampled_worker since_last(struct mu_sampled_worker *before,
                                           const struct mu_sampled_worker *now) {
    struct mu_sampled_worker since = {
        .ran_ns = now->ran_ns - before->ran_ns,
        .delay_ns = now->delay_ns - before->delay_ns,
        .storage_ns = now->storage_ns - before->storage_ns,
        .read_bytes = now->read_bytes - before->read_bytes,
        .io_readings = now->io_readings - before->io_readings,
        .has_delay = now->has_delay,
    };
    uint64_t read_bytes = before->read_bytes, io_readings = before->io_readings;
    *before = *now;
    before->read_bytes = read_bytes;
    before->io_readings = io_readings;
    return since;
}

static void write_worker(struct mu_thread_buffer *buffer, int place,
                         const struct mu_sampled_worker *did, int64_t iteration) {
    char text[WORKER_BYTES];
    char *end = mu_py_counter_put(text, "worker=", place);
    end = put(end, ",ran_us=", did->ran_ns, 0, NS_IN_US);
    end = did->has_delay ? put(end, ",delay_us=", did->delay_ns, 0, NS_IN_US) : end;
    end = put(end, ",storage_us=", did->storage_ns, 0, NS_IN_US);
    end = did->io_readings > 0 ? put(end, ",read_bytes=", did->read_bytes, 0, 1) : end;
    mu_py_counter_write(buffer, "loader", text, end, iteration);
}

void mu_py_host_samples_write_worker(struct mu_py_host_samples *self,
                                     struct mu_thread_buffer *buffer, int64_t iteration) {
    struct mu_sampled_worker now[MU_SAMPLER_WORKERS_MAX], most = {0};
    int places[MU_SAMPLER_WORKERS_MAX], place = -1;
    uint64_t longest_ns = 0;
    int count = self->process_count == 0 || self->sampler == NULL
                    ? 0
                    : mu_sampler_workers(self->sampler, now, places);
    for (int i = 0; i < count; i++) {
        struct mu_sampled_worker since = since_last(&self->workers[places[i]], &now[i]);
        uint64_t took_ns = since.ran_ns + since.delay_ns + since.storage_ns;
        if (took_ns > longest_ns) {
            longest_ns = took_ns;
            most = since;
            place = places[i];
        }
    }
    if (place >= 0) {
        self->workers[place].read_bytes += most.read_bytes;
        self->workers[place].io_readings += most.io_readings;
        write_worker(buffer, place, &most, iteration);
    }
}
