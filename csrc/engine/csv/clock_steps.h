/* Undoes the steps of the system's clock in the times of one process's rows.
 *
 * A row's time is that of the monotonic clock and an offset, which follows the system's clock at
 * the row `my_utils.clock_step`. Without the steps before it, in the order of the file, each time
 * is on the axis of the first rows. What the processes of a rank saw one after the other adds up; a
 * new time offset was measured against the clock as it is then, so it begins a new axis. Numbers in
 * files are not trusted. One thread at a time; all zero at first.
 */
#ifndef MU_CLOCK_STEPS_H
#define MU_CLOCK_STEPS_H

#include "csv/csv_fields.h"

#include <stdbool.h>
#include <stdint.h>

struct mu_clock_steps {
    int64_t moved_ns;  /* by how much times are ahead of the axis; within MU_CSV_FARTHEST_NS */
    int64_t before_ns; /* of it, what was there when the process began */
    int64_t rank, attempt, offset_ns; /* of the process */
    bool has_process;
};

/* Takes a row of the tool itself, before its own time is corrected. `pairs`: its metadata. */
void mu_clock_steps_take(struct mu_clock_steps *steps, struct mu_span name, struct mu_span pairs);

/* 0 for a time that is none any more. `at_ns`: within MU_CSV_FARTHEST_NS. */
static inline int mu_clock_steps_undo(const struct mu_clock_steps *steps, int64_t *at_ns) {
    *at_ns -= steps->moved_ns;
    return mu_csv_usable_time(*at_ns);
}

#endif
