/* Any bytes as a profile CSV, converted in every format. The first byte chooses format and sorting.
 */
#include "convert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void convert(const uint8_t *data, size_t size, enum mu_trace_format format, int sort) {
    static const struct mu_convert_options options = {.with_args = 1};
    struct mu_csv_input input = {
        .name = "input", .fd = -1, .data = (const char *)data, .length = size, .has_header = 1};
    struct mu_trace_job job;
    struct mu_converter converter;
    struct mu_error err;
    if (mu_trace_job_init(&job, -1, format, sort, &err) != MU_OK) {
        return;
    }
    if (mu_converter_init(&converter, &job, &options, &err) == MU_OK) {
        mu_converter_part(&converter, &input, &err);
        input.has_header = 0;
        mu_converter_part(&converter, &input, &err);
        mu_converter_finish(&converter, &err);
    }
    mu_converter_reset(&converter);
    mu_trace_job_finish(&job, &err);
    mu_trace_job_reset(&job);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size > 0) {
        convert(data + 1, size - 1, (enum mu_trace_format)(data[0] % 3), data[0] & 4);
    }
    return 0;
}
