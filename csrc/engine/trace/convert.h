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

#include "csv/csv_reader.h"
#include "trace/converter.h"

MU_MUST_CHECK int mu_converter_init(struct mu_converter *converter, struct mu_trace_job *job,
                                    const struct mu_convert_options *options, struct mu_error *err);
void mu_converter_reset(struct mu_converter *converter);

/* MU_ERR_FORMAT: this part is not a profile CSV; the converter can go on with the next. */
MU_MUST_CHECK int mu_converter_part(struct mu_converter *converter,
                                    const struct mu_csv_input *input, struct mu_error *err);

/* A row of another tool's trace: of no step and no machine. */
struct mu_foreign_row {
    int type; /* enum mu_event_type */
    int64_t at_ns;
    struct mu_span name, metadata; /* as in a profile row, without the quotes of CSV; borrowed */
};

/* `name`: of the trace, for notes; borrowed until mu_converter_finish. May be called repeatedly. */
MU_MUST_CHECK int mu_converter_foreign(struct mu_converter *converter, const char *name,
                                       const struct mu_foreign_row *rows, size_t count,
                                       struct mu_error *err);

/* Writes the stages that are still open, and passes everything to the job. */
MU_MUST_CHECK int mu_converter_finish(struct mu_converter *converter, struct mu_error *err);

/* The time of the first good row; MU_ERR_FORMAT when there is none. */
MU_MUST_CHECK int mu_convert_first_ns(const struct mu_csv_input *input, int64_t *first_ns,
                                      struct mu_error *err);

#endif
