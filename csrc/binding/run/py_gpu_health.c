#include "run/py_gpu_health.h"

#include "run/py_counter.h"

enum { TEXT_BYTES = 320 };

/* In the order of enum mu_gpu_figure. The first begins with a comma as well, which is left out. */
static const char *const keys[MU_GPU_FIGURES] = {
    ",sm_mhz=",     ",reasons=",    ",milliwatts=", ",celsius=",
    ",pcie_width=", ",ecc_errors=", ",xids=",       ",last_xid="};

void mu_py_gpu_health_watch(struct mu_py_gpu_health *self, const char *uuid) {
    mu_gpu_health_stop(self->health);
    self->health = uuid == NULL ? NULL : mu_gpu_health_start(uuid);
    self->written = 0;
}

void mu_py_gpu_health_write(struct mu_py_gpu_health *self, struct mu_thread_buffer *buffer,
                            int64_t iteration) {
    struct mu_gpu_reading reading;
    if (self->health == NULL) {
        return;
    }
    mu_gpu_health_read(self->health, &reading);
    if (reading.number == self->written) {
        return;
    }
    self->written = reading.number;
    char text[TEXT_BYTES];
    char *end = text;
    for (int i = 0; i < MU_GPU_FIGURES; i++) {
        if (reading.known[i]) {
            end = mu_py_counter_put(end, keys[i] + (end == text), reading.figures[i]);
        }
    }
    if (end > text) {
        mu_py_counter_write(buffer, "gpu", text, end, iteration);
    }
}
