/* The formats of a trace, and what writes each of them. */
#ifndef MU_TRACE_FORMAT_H
#define MU_TRACE_FORMAT_H

#include "trace/trace.h"

enum mu_trace_format { MU_TRACE_JSON, MU_TRACE_SEED_JSON, MU_TRACE_PERFETTO };

const struct mu_trace_ops *mu_trace_ops_of(enum mu_trace_format format);

/* Bytes that the first block of an output leaves out: the separator before its first event. */
size_t mu_trace_separator(enum mu_trace_format format);

#endif
