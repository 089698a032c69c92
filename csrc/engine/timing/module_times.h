/* How long the calls of modules take, on the CPU's clock and on the GPU's.
 *
 * A slot stands for one thing that is timed, such as the forward of one module. Calls begin and end
 * in pairs, nested on the stack of their thread. The time of a call inside another one, also of the
 * same slot, counts as `inner` time of the other. So `total - inner` never counts a nanosecond
 * twice. A call without an end is dropped when a call around it ends.
 *
 * GPU times come from a pool of CUDA events and are added when they are ready; nothing waits. A
 * call without a span, as while its stream is captured, has a CPU time only.
 *
 * Times are nanoseconds. Calls may come from many threads, but one at a time: the caller holds a
 * lock around every function here (Python's GIL).
 */
#ifndef MU_MODULE_TIMES_H
#define MU_MODULE_TIMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "cuda/cuda_timing.h"

enum { MU_MODULE_SLOTS_MAX = 1 << 22, MU_MODULE_DEPTH_MAX = 4096 };

struct mu_module_total {
    uint64_t calls;
    uint64_t parts; /* times that were added: calls, and those that did not count as one */
    int64_t total_ns;
    int64_t inner_ns; /* of the total: in calls nested inside */
    int64_t min_ns;   /* of one part with all inside; 0 without any, as is the next */
    int64_t max_ns;
};

struct mu_module_figures {
    struct mu_module_total cpu;
    struct mu_module_total gpu; /* of those calls whose GPU times are known */
};

struct mu_module_counts {
    uint64_t abandoned;  /* calls whose end never came */
    uint64_t unmatched;  /* ends without a begin */
    uint64_t dropped;    /* calls not timed: nested too deep, or no memory */
    uint64_t gpu_missed; /* calls without a span */
    uint64_t gpu_lost;   /* spans that failed */
    uint64_t gpu_waits;  /* spans that the GPU has not finished */
};

struct mu_module_times;

/* `gpu`: how to make the pool; NULL for no GPU times. `now_ns`: NULL for CLOCK_MONOTONIC. */
MU_MUST_CHECK int mu_module_times_create(struct mu_module_times **out, uint32_t slots,
                                         const struct mu_cuda_pool_options *gpu,
                                         int64_t (*now_ns)(void), struct mu_error *err);
void mu_module_times_free(struct mu_module_times *times);

/* Begins a call of `slot`, whose time will be added to `account`, the same slot or one that stands
 * for a kind of its calls. `tag` is the caller's own. */
void mu_module_enter(struct mu_module_times *times, uint64_t thread, uint32_t slot,
                     uint32_t account, uint64_t tag);

/* Ends the innermost call of `slot` in the thread. `counted`: whether it counts as a call, or only
 * adds its time to one. Returns false when there is no such call; else sets `*tag` to the tag of
 * its begin. */
bool mu_module_exit(struct mu_module_times *times, uint64_t thread, uint32_t slot, bool counted,
                    uint64_t *tag);

/* Adds the GPU times that are ready. */
void mu_module_collect(struct mu_module_times *times);

struct mu_module_figures mu_module_figures_of(const struct mu_module_times *times, uint32_t slot);
uint32_t mu_module_slots(const struct mu_module_times *times);
struct mu_module_counts mu_module_counts_of(const struct mu_module_times *times);

/* NULL where there are no GPU times. */
struct mu_cuda_pool *mu_module_pool(const struct mu_module_times *times);

/* Forgets the calls that have not ended. */
void mu_module_drop_open(struct mu_module_times *times);

/* In a forked child: drops open calls and the pool. A child must not call the CUDA driver. */
void mu_module_after_fork(struct mu_module_times *times);

#endif
