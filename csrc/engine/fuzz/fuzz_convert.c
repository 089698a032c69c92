/* The whole way from a profile CSV to a trace. The first byte picks the format and what is asked
 * for; the rest is rows without a header. */
#include "trace/convert.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void convert(struct mu_trace_job *job, uint8_t choice, const uint8_t *rows, size_t size) {
    struct mu_convert_options options = {
        .rank = choice >> 6,
        .with_args = (choice & 8) != 0,
        .has_steps = (choice & 16) != 0,
        .step_begin = 1,
        .step_end = 3,
    };
    struct mu_csv_input input = {
        .name = "fuzz",
        .fd = -1,
        .data = (const char *)rows,
        .length = size,
    };
    struct mu_converter converter;
    if (mu_converter_init(&converter, job, &options, NULL) == MU_OK &&
        mu_converter_part(&converter, &input, NULL) == MU_OK) {
        mu_error_kept(mu_converter_finish(&converter, NULL));
    }
    mu_converter_reset(&converter);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const enum mu_trace_format formats[] = {MU_TRACE_JSON, MU_TRACE_SEED_JSON,
                                                   MU_TRACE_PERFETTO};
    if (size == 0) {
        return 0;
    }
    uint8_t choice = data[0];
    enum mu_trace_format format = formats[choice % 3];
    struct mu_trace_job job;
    int sort = (choice & 32) != 0 && format != MU_TRACE_PERFETTO;
    if (mu_trace_job_init(&job, -1, format, sort, NULL) == MU_OK) {
        convert(&job, choice, data + 1, size - 1);
        mu_error_kept(mu_trace_job_finish(&job, NULL));
    }
    mu_trace_job_reset(&job);
    return 0;
}
