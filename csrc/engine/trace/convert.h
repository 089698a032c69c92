/* Turns the rows of one rank's profile CSV into events of a trace.
 *
 * A converter takes the parts of one file set in order (rotated parts, the current file, rows out
 * of a journal) and keeps stages that are open over their borders. START and END are matched by
 * node id, whatever the order of the rows. Without node ids an END matches the latest START of the
 * same name and thread. Memory holds the open stages and the ENDs that wait for their START
 * (MU_PENDING_MAX at most). One thread at a time; several converters may share a job.
 */
#ifndef MU_CONVERT_H
#define MU_CONVERT_H

#include "base/id_map.h"
#include "csv/clock_steps.h"
#include "csv/csv_fields.h"
#include "csv/csv_reader.h"
#include "trace/trace_job.h"

enum { MU_PENDING_MAX = 65536 };

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

MU_MUST_CHECK int mu_converter_init(struct mu_converter *converter, struct mu_trace_job *job,
                                    const struct mu_convert_options *options, struct mu_error *err);
void mu_converter_reset(struct mu_converter *converter);

/* MU_ERR_FORMAT: this part is not a profile CSV; the converter can go on with the next. */
MU_MUST_CHECK int mu_converter_part(struct mu_converter *converter,
                                    const struct mu_csv_input *input, struct mu_error *err);

/* Writes the stages that are still open, and passes everything to the job. */
MU_MUST_CHECK int mu_converter_finish(struct mu_converter *converter, struct mu_error *err);

/* The time of the first good row; MU_ERR_FORMAT when there is none. */
MU_MUST_CHECK int mu_convert_first_ns(const struct mu_csv_input *input, int64_t *first_ns,
                                      struct mu_error *err);

#endif
