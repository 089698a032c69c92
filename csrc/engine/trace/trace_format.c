#include "trace/trace_format.h"

size_t mu_trace_separator(enum mu_trace_format format) {
    return format == MU_TRACE_PERFETTO ? 0 : 2; /* ",\n" */
}

const struct mu_trace_ops *mu_trace_ops_of(enum mu_trace_format format) {
    switch (format) {
    case MU_TRACE_SEED_JSON:
        return &mu_trace_seed_ops;
    case MU_TRACE_PERFETTO:
        return &mu_trace_perfetto_ops;
    case MU_TRACE_JSON:
        break;
    }
    return &mu_trace_json_ops;
}
