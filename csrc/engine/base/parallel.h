/* Work split over the threads of torch's own pool, so that no second pool competes with it.
 *
 * Where torch is not loaded, or in a forked child, whose pool has no threads, the work is done by
 * the caller alone.
 */
#ifndef MU_PARALLEL_H
#define MU_PARALLEL_H

#include <stdint.h>

/* Processes the part [begin, end). Called from several threads at once, never with the GIL. A task
 * stores its results in the places of its part, and never adds to shared values: when torch's pool
 * fails half-way, all parts are processed again. */
typedef void (*mu_parallel_task)(int64_t begin, int64_t end, void *context);

/* Stores the process id, so that a forked child is recognised. Called when the library is
 * loaded. */
void mu_parallel_load(void);

/* Covers [0, count) with calls of `task`, none shorter than `grain` but the last one, and returns
 * when all are done. The caller must not hold the GIL when there may be more than one part. */
void mu_parallel_for(int64_t count, int64_t grain, mu_parallel_task task, void *context);

/* How many threads mu_parallel_for may use; 1 where it works alone. */
int mu_parallel_threads(void);

#endif
