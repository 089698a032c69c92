/* One trace that is being written: its output, its base time, and its unique numbers.
 *
 * Several converters, each on its own thread, may write into one job. The header is written when
 * the base time is known: given, or taken from the first row that comes. With `sort` the events are
 * kept in memory and written in the order of their times at the end.
 */
#ifndef MU_TRACE_JOB_H
#define MU_TRACE_JOB_H

#include "trace/trace_format.h"

#include <pthread.h>

struct mu_trace_job {
    enum mu_trace_format format;
    int sort;
    struct mu_sink file;   /* owned */
    struct mu_sink events; /* owned; only with sort */
    struct mu_shared_output output;
    struct mu_trace_ids ids;
    pthread_mutex_t lock;
    int has_base; /* under the lock */
    int64_t base_ns;
    _Atomic uint64_t bytes_read;
    _Atomic int cancelled; /* converters stop with MU_ERR_STATE */
};

/* `fd` is borrowed; -1 throws the trace away. Sorting is for JSON only. */
MU_MUST_CHECK int mu_trace_job_init(struct mu_trace_job *job, int fd, enum mu_trace_format format,
                                    int sort, struct mu_error *err);
void mu_trace_job_reset(struct mu_trace_job *job);

/* The base is the second before the second of `first_ns` in JSON, the hour before its hour in
 * protobuf, so that rows somewhat out of order come after it. Only the first call counts. Returns
 * the base. */
int64_t mu_trace_job_base(struct mu_trace_job *job, int64_t first_ns);

/* All converters are done: writes what is left, and the trailer. */
MU_MUST_CHECK int mu_trace_job_finish(struct mu_trace_job *job, struct mu_error *err);

uint64_t mu_trace_job_bytes_written(const struct mu_trace_job *job);

#endif
