/* What any thread may ask of the drain, each within a time: an output may hang. Functions are
 * thread-safe. */
#ifndef MU_DRAIN_CALLS_H
#define MU_DRAIN_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "stages/state.h"

/* How long who opens, moves or closes files waits for a drain, in all: what the process says at its
 * end may wait a second more for the same mount. */
static const int64_t mu_files_wait_ns = 4000000000;

/* Takes recorder->drain_lock, or returns false after `wait_ns`. */
bool mu_drain_lock_within(struct mu_recorder *recorder, int64_t wait_ns);

/* Turns complete records into rows and writes them. `wait_ns` bounds the wait for a drain that is
 * running. When that time is over, or when the output may block, the drain thread is woken
 * instead. */
void mu_recorder_drain(struct mu_recorder *recorder, int64_t wait_ns);

/* Copies the rows that wait in memory as text, which the caller frees. The text is empty while
 * there are files. MU_ERR_STATE when the output stays busy for `wait_ns`. */
MU_MUST_CHECK int mu_recorder_copy_memory(struct mu_recorder *recorder, int64_t wait_ns,
                                          char **text, size_t *length, struct mu_error *err);

/* Drains, then shifts all later timestamps. Returns false, and shifts nothing, when the output does
 * not answer for seconds. */
bool mu_recorder_set_time_offset(struct mu_recorder *recorder, int64_t offset_ns);

#endif
