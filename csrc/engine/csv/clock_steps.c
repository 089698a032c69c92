#include "csv/clock_steps.h"

/* Out of bounds it stays as it is. */
static void move_to(struct mu_clock_steps *steps, int64_t from_ns, int64_t by_ns) {
    int64_t moved_ns;
    if (!__builtin_add_overflow(from_ns, by_ns, &moved_ns) && mu_csv_usable_time(moved_ns)) {
        steps->moved_ns = moved_ns;
    }
}

static void begin_process(struct mu_clock_steps *steps, struct mu_span pairs) {
    int64_t rank = 0, attempt = 0;
    (void)mu_metadata_number(pairs, "rank", &rank);
    (void)mu_metadata_number(pairs, "attempt", &attempt);
    if (steps->has_process && rank == steps->rank && attempt == steps->attempt) {
        return; /* each part repeats the row */
    }
    if (steps->has_process && rank != steps->rank) {
        steps->moved_ns = 0;
    }
    steps->before_ns = steps->moved_ns;
    steps->rank = rank;
    steps->attempt = attempt;
    steps->offset_ns = 0;
    steps->has_process = true;
}

static void take_offset(struct mu_clock_steps *steps, struct mu_span pairs) {
    int64_t offset_ns;
    if (mu_metadata_number(pairs, "offset_ns", &offset_ns) && offset_ns != steps->offset_ns) {
        steps->offset_ns = offset_ns;
        steps->moved_ns = steps->before_ns;
    }
}

void mu_clock_steps_take(struct mu_clock_steps *steps, struct mu_span name, struct mu_span pairs) {
    int64_t ns;
    if (mu_span_equals(name, "my_utils.process")) {
        begin_process(steps, pairs);
    } else if (mu_span_equals(name, "my_utils.time_offset")) {
        take_offset(steps, pairs);
    } else if (mu_span_equals(name, "my_utils.clock_step")) {
        if (mu_metadata_number(pairs, "total_ns", &ns)) {
            move_to(steps, steps->before_ns, ns);
        } else if (mu_metadata_number(pairs, "delta_ns", &ns)) {
            move_to(steps, steps->moved_ns, ns);
        }
    }
}
