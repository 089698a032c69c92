/* The recorder of a process: it owns the journal, the buffers of all threads, the names, and the
 * output to which the drain writes.
 *
 * Threads reach their buffers through one thread-local pointer. The memory behind it is wiped in a
 * forked child (base/wiped_page.h), and so the child notices the fork. The child drops what
 * it inherited, and starts with its own recorder. That one keeps its rows in memory until it gets a
 * directory.
 *
 * Functions are thread-safe unless they say "nobody may record meanwhile". The binding ensures that
 * by keeping the GIL, or where there is none by a lock of its own.
 */
#ifndef MU_RECORDER_H
#define MU_RECORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "cuda/cuda_timing.h"
#include "stages/state.h"

/* The memory of a recorder, for mu_recorder_start or free; NULL when there is none. */
struct mu_recorder *mu_recorder_reserve(void);

/* Where there is no memory for a journal, or no thread key, the recorder records nothing, and
 * counts that in its troubles. */
void mu_recorder_start(struct mu_recorder *recorder);

/* Both. */
MU_MUST_CHECK int mu_recorder_create(struct mu_recorder **out, struct mu_error *err);

/* Where there was no memory to begin with: tries again. Nobody may record meanwhile. */
void mu_recorder_try_again(struct mu_recorder *recorder);

/* Counts a call of a recorder that records nothing. The error says why it does not. */
MU_MUST_CHECK int mu_recorder_refuse(struct mu_recorder *recorder, struct mu_error *err);

/* Stops the drain thread and frees everything. When that thread hangs in a write, nothing is freed.
 * Nobody may record meanwhile or later. */
void mu_recorder_destroy(struct mu_recorder *recorder);

/* Stages may have GPU times from now on. Calls after the first success change nothing. */
MU_MUST_CHECK int mu_recorder_use_gpu(struct mu_recorder *recorder,
                                      const struct mu_cuda_pool_options *options,
                                      struct mu_error *err);

/* Numbers of paths are below this. */
uint32_t mu_recorder_path_count(struct mu_recorder *recorder);

/* The path's name and its parent's number; false for a number that is not in use, and for the
 * root. The name is NULL for MU_PATH_OTHER; its bytes never move. */
bool mu_recorder_path(struct mu_recorder *recorder, uint16_t path, const char **name,
                      size_t *length, uint16_t *parent);

#endif
