#include "trace/trace_job.h"

#include "trace/event_sort.h"

#include <errno.h>

enum { FILE_BUFFER = 4096 };

MU_MUST_CHECK static int init_sinks(struct mu_trace_job *job, int fd, struct mu_error *err) {
    int code = fd < 0 ? mu_sink_init_null(&job->file, FILE_BUFFER, err)
                      : mu_sink_init_fd(&job->file, fd, FILE_BUFFER, err);
    if (code == MU_OK && job->sort) {
        code = mu_sink_init_memory(&job->events, err);
    }
    return code;
}

int mu_trace_job_init(struct mu_trace_job *job, int fd, enum mu_trace_format format, int sort,
                      struct mu_error *err) {
    memset(job, 0, sizeof(*job));
    job->format = format;
    job->sort = sort && format != MU_TRACE_PERFETTO;
    atomic_store(&job->ids.next_track, 1);
    int code = init_sinks(job, fd, err);
    if (code != MU_OK) {
        goto fail;
    }
    struct mu_sink *target = job->sort ? &job->events : &job->file;
    code = mu_shared_output_init(&job->output, target, mu_trace_separator(format), err);
    if (code != MU_OK) {
        goto fail;
    }
    errno = pthread_mutex_init(&job->lock, NULL);
    if (errno == 0) {
        return MU_OK;
    }
    code = mu_error_sys(err, "pthread_mutex_init", NULL);
    mu_shared_output_reset(&job->output);
fail:
    mu_sink_reset(&job->file);
    mu_sink_reset(&job->events);
    return code;
}

void mu_trace_job_reset(struct mu_trace_job *job) {
    mu_shared_output_reset(&job->output);
    pthread_mutex_destroy(&job->lock);
    mu_sink_reset(&job->file);
    mu_sink_reset(&job->events);
}

/* In JSON each time is written relative to the base, and may be negative; a near base makes short
 * numbers. In protobuf times are differences, and no time may be before the base. */
static int64_t round_base(enum mu_trace_format format, int64_t first_ns) {
    const int64_t second = 1000000000, hour = 3600 * second;
    int64_t unit = format == MU_TRACE_PERFETTO ? hour : second;
    int64_t base = (first_ns / unit - 1) * unit;
    return first_ns >= 0 && base < 0 ? 0 : base;
}

/* Straight to the file, also when the events are kept for sorting. */
static void write_frame(struct mu_trace_job *job, int is_header) {
    struct mu_trace_writer writer = {.base_ns = job->base_ns, .ids = &job->ids};
    const struct mu_trace_ops *ops = mu_trace_ops_of(job->format);
    (is_header ? ops->header : ops->trailer)(&writer, &job->file);
    mu_error_kept(mu_sink_flush(&job->file, NULL)); /* sticky: the error comes back at the end */
}

int64_t mu_trace_job_base(struct mu_trace_job *job, int64_t first_ns) {
    pthread_mutex_lock(&job->lock);
    if (!job->has_base) {
        job->base_ns = round_base(job->format, first_ns);
        job->has_base = 1;
        write_frame(job, 1);
    }
    int64_t base_ns = job->base_ns;
    pthread_mutex_unlock(&job->lock);
    return base_ns;
}

int mu_trace_job_finish(struct mu_trace_job *job, struct mu_error *err) {
    mu_trace_job_base(job, 0);
    if (job->sort) {
        int code = mu_event_sort(job->events.data, job->events.length, &job->file, err);
        if (code != MU_OK) {
            return code;
        }
    }
    write_frame(job, 0);
    return mu_sink_flush(&job->file, err);
}

uint64_t mu_trace_job_bytes_written(const struct mu_trace_job *job) {
    return mu_sink_total(&job->file);
}
