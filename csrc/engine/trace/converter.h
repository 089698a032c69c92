/* A converter of rows, as convert.h describes it: its options, counts and state. */
#ifndef MU_CONVERTER_H
#define MU_CONVERTER_H

#include "base/id_map.h"
#include "csv/clock_steps.h"
#include "csv/csv_fields.h"
#include "trace/trace_job.h"

enum { MU_PENDING_MAX = 65536 }; /* ENDs that wait for their START */

struct mu_convert_options {
    int64_t rank;
    int slot;           /* 0 for the rank's first live process, K for its `.wK` files */
    int is_one_of_many; /* the job converts other file sets, too */
    int with_args;
    int is_foreign; /* rows of another tool's trace: no steps; ids that only pair; its own names */
    int has_steps;
    int64_t step_begin, step_end; /* half open */
    mu_name_filter filter;        /* may be NULL */
    void *filter_context;
};

struct mu_convert_counts {
    uint64_t rows, slices, instants, counters, flows, open;
};

/* What is added to the host's clock to get the times of the trace, from `at_ns` in the trace on:
 * the clock offset of the run, less the steps of the system's clock. */
struct mu_offset {
    int64_t at_ns, offset_ns;
};

struct mu_converter {
    struct mu_trace_job *job; /* borrowed */
    struct mu_convert_options options;
    struct mu_trace_writer writer;
    struct mu_trace_names names;
    struct mu_notes notes;
    struct mu_convert_counts counts;
    struct mu_process *processes, *process; /* owned; the current one */
    int process_count;
    struct mu_id_map tracks, taken_tids;
    struct mu_track *last_track;
    struct mu_id_map open_by_key, pending_by_key;
    int tops_in_map;             /* of open_by_key: also stages with no other above them */
    struct mu_id_map open_flows; /* name and id -> struct mu_flow, owned */
    uint64_t flow_count;
    struct mu_open *oldest, *newest, *free_opens; /* owned */
    struct mu_offset *offsets;                    /* owned */
    size_t offset_count;
    const char *file; /* of the part that is being read; borrowed */
    int has_base;
    struct mu_second second;
    struct mu_clock_steps clock_steps;
    struct mu_error error; /* the first one; conversion stops */
};

#endif
