#include "run/py_host_costs.h"

#include <string.h>

#include "base/clock.h"
#include "run/py_counter.h"
#include "run/py_gc_objects.h"

enum {
    TEXT_BYTES = 256 + MU_PY_HOST_SAMPLES_BYTES,
    PAUSE_NS = 1000000,
    LEAST_DELAY_NS = 1000000,
    NS_IN_US = 1000
};

static const char *const generation_keys[MU_GC_GENERATIONS] = {",gc0_us=", ",gc1_us=", ",gc2_us="};

/* --- collections -------------------------------------------------------------------------- */

/* A whole number from the dict that a callback is passed; -1 where there is none. `key` is made of
 * `name`. -1 with an exception. */
static int number_of(PyObject **key, const char *name, PyObject *info, int64_t *out) {
    *out = -1;
    if (!PyDict_Check(info)) {
        return 0;
    }
    if (*key == NULL) {
        *key = PyUnicode_InternFromString(name);
    }
    if (*key == NULL) {
        return -1;
    }
    PyObject *number = mu_py_dict_value(info, *key);
    *out = number == NULL || !PyLong_Check(number) ? -1 : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

/* What a full collection looked at: what it left, and what it freed. */
static int count_objects(struct mu_py_host_costs *self, PyObject *info) {
    int64_t freed, left = mu_py_gc_survivors(&self->gc_layout);
    if (number_of(&self->freed_key, "collected", info, &freed) < 0) {
        return -1;
    }
    if (left >= 0 && freed >= 0 && left + freed > self->gc_objects) {
        self->gc_objects = left + freed;
    }
    return 0;
}

int mu_py_host_costs_collect(struct mu_py_host_costs *self, PyObject *phase, PyObject *info) {
    uint64_t now = (uint64_t)mu_clock_monotonic_ns();
    if (PyUnicode_Check(phase) && PyUnicode_CompareWithASCIIString(phase, "start") == 0) {
        self->collecting_since_ns = now;
        return 0;
    }
    uint64_t since = self->collecting_since_ns;
    int64_t generation;
    self->collecting_since_ns = 0;
    if (number_of(&self->key, "generation", info, &generation) < 0) {
        return -1;
    }
    if (since == 0 || generation < 0 || generation >= MU_GC_GENERATIONS) {
        return 0;
    }
    self->collected_ns[generation] += now - since;
    return generation < MU_GC_GENERATIONS - 1 ? 0 : count_objects(self, info);
}

/* --- rows --------------------------------------------------------------------------------- */

static char *put_us(char *at, const char *key, uint64_t ns) {
    return mu_py_counter_put(at, key, (int64_t)(ns / NS_IN_US));
}

/* What a quota took is a part of the delay. The kernel is asked only where there was much of it. */
static char *put_delay(struct mu_py_host_costs *self, uint64_t delay_ns, char *end) {
    uint64_t waited_ns = 0;
    bool is_known = self->quota.count > 0;
    if (is_known && delay_ns >= LEAST_DELAY_NS) {
        is_known = mu_quota_waited(&self->quota, &waited_ns);
    }
    end = put_us(end, ",delay_us=", delay_ns);
    waited_ns = waited_ns < delay_ns ? waited_ns : delay_ns;
    return is_known ? put_us(end, ",quota_us=", waited_ns) : end;
}

static void write_row(struct mu_py_host_costs *self, const struct mu_thread_times *now,
                      struct mu_thread_buffer *buffer) {
    const struct mu_thread_times *last = &self->last;
    char text[TEXT_BYTES];
    char *end = put_us(text, "cpu_us=", now->cpu_ns - last->cpu_ns);
    end = put_us(end, ",kernel_us=", now->kernel_ns - last->kernel_ns);
    if (now->has_delay && last->has_delay) {
        end = put_delay(self, now->delay_ns - last->delay_ns, end);
    }
    end =
        mu_py_counter_put(end, ",major_faults=", (int64_t)(now->major_faults - last->major_faults));
    for (int i = 0; i < MU_GC_GENERATIONS; i++) {
        end = put_us(end, generation_keys[i], self->collected_ns[i]);
    }
    if (self->gc_objects >= 0) {
        end = mu_py_counter_put(end, ",gc_objects=", self->gc_objects);
    }
    end = mu_py_host_samples_put(&self->samples, end);
    mu_py_counter_write(buffer, "host", text, end, self->ended);
    mu_py_host_samples_write_worker(&self->samples, buffer, self->ended);
    mu_py_gpu_health_write(&self->gpu, buffer, self->ended);
}

void mu_py_host_costs_end(struct mu_py_host_costs *self, int64_t iteration) {
    self->ended = iteration;
    self->has_ended = true;
}

static void forget_collections(struct mu_py_host_costs *self) {
    memset(self->collected_ns, 0, sizeof(self->collected_ns));
    self->gc_objects = -1;
}

/* Nothing was read of a thread yet. */
static void close_thread(struct mu_py_host_costs *self) {
    if (self->thread != 0) {
        mu_thread_clock_close(&self->clock);
        mu_quota_close(&self->quota);
        mu_py_host_samples_end(&self->samples);
    }
    self->thread = 0;
    self->collecting_since_ns = 0;
    memset(&self->last, 0, sizeof(self->last));
    forget_collections(self);
}

static void begin_anew(struct mu_py_host_costs *self, unsigned long thread) {
    close_thread(self);
    mu_thread_clock_open(&self->clock);
    mu_quota_open(&self->quota, "/proc/self");
    mu_py_host_samples_begin(&self->samples);
    self->thread = thread;
}

void mu_py_host_costs_begin(struct mu_py_host_costs *self, unsigned long thread,
                            struct mu_thread_buffer *buffer) {
    self->has_ended = false;
    bool is_first = self->thread != thread;
    if (is_first) {
        begin_anew(self, thread);
    } else if ((uint64_t)mu_clock_monotonic_ns() - self->last.wall_ns < PAUSE_NS) {
        return;
    }
    struct mu_thread_times now;
    if (!mu_thread_clock_read(&self->clock, &now)) {
        return;
    }
    if (!is_first && buffer != NULL && self->ended >= 0) {
        write_row(self, &now, buffer);
    }
    self->last = now;
    forget_collections(self);
}

/* --- the end ------------------------------------------------------------------------------ */

void mu_py_host_costs_forget(struct mu_py_host_costs *self) {
    close_thread(self);
    mu_py_gpu_health_watch(&self->gpu, NULL);
    self->has_ended = false;
}

void mu_py_host_costs_clear(struct mu_py_host_costs *self) {
    mu_py_host_costs_forget(self);
    Py_CLEAR(self->key);
    Py_CLEAR(self->freed_key);
}
