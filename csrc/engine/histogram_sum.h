/* Histograms of which only the buckets in use are there, added up by name.
 *
 * They come from other processes: check them before they are added. All pointers are borrowed.
 */
#ifndef MU_HISTOGRAM_SUM_H
#define MU_HISTOGRAM_SUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aggregate.h"

/* The buckets of all histograms stand one after the other. */
struct mu_sparse_histograms {
    size_t count;
    const int64_t *places; /* which row of the sum each histogram is added to */
    const int64_t *used;   /* how many buckets each has */
    const int64_t *totals; /* what the counts of each must sum up to */
    size_t buckets_count;
    const uint16_t *buckets;
    const void *counts;
    unsigned width; /* bytes a count: 1, 2 or 4 */
};

/* Whether the parts agree with each other, and with a sum of `rows` rows. */
bool mu_sparse_histograms_agree(const struct mu_sparse_histograms *from, size_t rows);

/* Adds them to rows of MU_HISTOGRAM_BUCKETS counts each. They must agree. */
void mu_sparse_histograms_add(const struct mu_sparse_histograms *from, int64_t *rows);

#endif
