/* Durations by name as 16-bit codes. A code is the number of steps above the shortest duration of
 * its name.
 *
 * A scale of `bits` bits is linear up to 2^bits ns and has 2^bits steps in each power of two from
 * there on. A name takes the finest one that has at most 65,536 steps from its shortest to its
 * longest duration. Those less than 65.5 µs apart are exact; those that differ less than 16-fold
 * are good to 1 part in 2^15, less than 65,536-fold to 1 in 2^13, and any to 1 in 2^11. Writer and
 * reader find the scale from the shortest and the longest one.
 *
 * Durations in ns. All pointers are borrowed.
 */
#ifndef MU_DURATION_CODES_H
#define MU_DURATION_CODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* The durations of all names follow one another. */
struct mu_coded_names {
    size_t count;
    const int64_t *values; /* the number of durations of each name */
    const int64_t *shortest;
    const int64_t *longest;
};

/* Whether the parts agree with each other, and with `total` durations. */
bool mu_coded_names_agree(const struct mu_coded_names *names, size_t total);

/* Returns false when a duration is not between its name's shortest and longest. Some codes are
 * written then. */
MU_MUST_CHECK bool mu_durations_encode(const struct mu_coded_names *names, const int64_t *ns,
                                       uint16_t *codes);

/* Writes the middle of each code's range. Returns false when a code is beyond its name's longest
 * duration. Some results are written then. */
MU_MUST_CHECK bool mu_durations_decode(const struct mu_coded_names *names, const uint16_t *codes,
                                       double *ns);

#endif
