/* A thread buffer: the stages of one timer on one thread. The hot path of the project.
 *
 * A thread buffer is owned by its thread, and only that thread calls the functions here. None of
 * them takes a lock, allocates or makes a system call, except at the first use of a name and for
 * stages deeper than MU_OPEN_MAX. Other threads and processes read only its chunk of the journal
 * (see journal_format.h).
 */
#ifndef MU_THREAD_BUFFER_H
#define MU_THREAD_BUFFER_H

#include "base/error.h"
#include "stages/thread_buffer_state.h"

enum mu_stop_result {
    MU_STOP_OK = 0,
    MU_STOP_CLOSED_INNER = 1, /* stages inside were still open and were closed */
    MU_STOP_NOT_OPEN = 2,     /* no stage of that name runs */
};

/* Begins a stage. `hash` belongs to the name and is the same for the same bytes. */
void mu_thread_buffer_start(struct mu_thread_buffer *buffer, const char *name, size_t length,
                            uint64_t hash);

/* The GPU events of a stage: an NVTX range, and a pair of CUDA events. */
struct mu_gpu_events {
    const struct mu_nvtx_range *range; /* NULL: none */
    bool gpu;                          /* take GPU times */
};

/* mu_thread_buffer_start with GPU events. They begin before the stage and end after it was timed.
 * So they add nothing to the stage's time, except for the recording of the end event. */
void mu_thread_buffer_start_with(struct mu_thread_buffer *buffer, const char *name, size_t length,
                                 uint64_t hash, const struct mu_gpu_events *events);

/* Ends the innermost stage of that name, one with an owner only where there is no other, and those
 * inside it up to the next one with an owner. That one stays open: its owner ends it. */
enum mu_stop_result mu_thread_buffer_stop(struct mu_thread_buffer *buffer, const char *name,
                                          size_t length, uint64_t hash);

/* The same for the stage of that owner. Where the handle has several open, it is the latest of the
 * same frame, else of the same flow, else the latest. */
enum mu_stop_result mu_thread_buffer_stop_owned(struct mu_thread_buffer *buffer,
                                                const struct mu_stage_owner *owner);

/* Begins a step: closes the stages that are deeper than the stack was after the last set_step, up
 * to the first one with an owner. Returns how many. */
uint32_t mu_thread_buffer_set_step(struct mu_thread_buffer *buffer);

struct mu_event {
    int type; /* enum mu_event_type */
    const char *name;
    size_t name_length;
    const char *metadata; /* key=value pairs joined by commas, already encoded */
    size_t metadata_length;
    bool has_time; /* the user's own timestamp: real_ns */
    bool has_duration;
    int64_t real_ns;
    int64_t duration_ns;
    int64_t step;
};

/* Records one event. Metadata above MU_METADATA_BYTES_MAX is cut; returns false then. */
bool mu_thread_buffer_event(struct mu_thread_buffer *buffer, const struct mu_event *event);

MU_MUST_CHECK int mu_thread_buffer_init(struct mu_thread_buffer *buffer);

/* Frees what the thread buffer owns, not the thread buffer. */
void mu_thread_buffer_free(struct mu_thread_buffer *buffer);

#endif
