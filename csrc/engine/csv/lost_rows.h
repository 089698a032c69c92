/* Counts rows that were written nowhere, with the steps that they were of.
 *
 * Steps that follow each other are one range. Timers may be in different steps, so there are
 * several ranges; beyond MU_LOST_RANGES_MAX the nearest one grows. Zeroed memory is an empty count.
 */
#ifndef MU_LOST_ROWS_H
#define MU_LOST_ROWS_H

#include <stddef.h>
#include <stdint.h>

enum { MU_LOST_RANGES_MAX = 8 };

struct mu_lost_range {
    uint64_t count;
    int64_t first, last;
};

struct mu_lost_rows {
    uint64_t stepless; /* rows of no step: the recorder's own, and after the last step */
    uint32_t range_count;
    struct mu_lost_range ranges[MU_LOST_RANGES_MAX];
};

/* A negative step counts as none. */
void mu_lost_rows_add(struct mu_lost_rows *lost, int64_t step, uint64_t count);

void mu_lost_rows_add_all(struct mu_lost_rows *lost, const struct mu_lost_rows *more);

/* The rows of a text without a header, but for names of threads, which are written again. Where
 * there is no memory to read it, they have no step. */
void mu_lost_rows_add_text(struct mu_lost_rows *lost, const char *rows, size_t length);

uint64_t mu_lost_rows_total(const struct mu_lost_rows *lost);

#endif
