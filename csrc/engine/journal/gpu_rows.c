#include "journal/gpu_rows.h"

#include <inttypes.h>
#include <stdio.h>

static size_t put_times(char text[MU_GPU_TEXT_MAX], const struct mu_cuda_times *times,
                        int64_t offset_ns) {
    int64_t start = times->start_ns + offset_ns;
    int length = snprintf(text, MU_GPU_TEXT_MAX,
                          ",cuda_ms=%" PRId64 ".%06" PRId64 ",cuda_ts=%" PRId64 ".%09" PRId64
                          ",cuda_err_ms=%" PRId64 ".%06" PRId64 ",stream=%" PRIu64,
                          times->duration_ns / 1000000, times->duration_ns % 1000000,
                          start / 1000000000, start % 1000000000, times->error_ns / 1000000,
                          times->error_ns % 1000000, times->stream);
    return length > 0 && length < MU_GPU_TEXT_MAX ? (size_t)length : 0;
}

enum mu_gpu_rows_status mu_gpu_rows_request(const struct mu_gpu_rows *gpu, uint32_t span,
                                            uint64_t age, int64_t offset_ns,
                                            char text[MU_GPU_TEXT_MAX], size_t *length) {
    struct mu_cuda_times times;
    *length = 0;
    enum mu_cuda_span_state state = mu_cuda_span_poll(gpu->pool, span, &times);
    if (state == MU_CUDA_SPAN_PENDING && !gpu->finish && age < MU_GPU_HELD_STEPS) {
        return MU_GPU_ROWS_WAIT;
    }
    if (state == MU_CUDA_SPAN_READY) {
        *length = put_times(text, &times, offset_ns);
        gpu->add(gpu->owner, times.label, times.duration_ns);
    }
    mu_cuda_span_release(gpu->pool, span);
    return MU_GPU_ROWS_DONE;
}
