/* Histograms as bytes, and the sum of many by name.
 *
 * For each bucket that is not empty, in order: a varint of twice its count, plus one where empty
 * buckets lie before it, and then a varint of how many do. So most take one or two bytes.
 *
 * They come from other processes: check them before they are added. All pointers are borrowed.
 */
#ifndef MU_PACKED_HISTOGRAM_H
#define MU_PACKED_HISTOGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "timing/aggregate.h"

enum { MU_PACKED_BUCKET_MAX = 5 + 2 };

/* How many buckets are not empty. */
size_t mu_histogram_used(const struct mu_aggregate *from);

/* Writes them where there is room for MU_PACKED_BUCKET_MAX bytes each; how many bytes it were. */
size_t mu_histogram_pack(const struct mu_aggregate *from, char *out);

/* The bytes of all histograms stand one after the other. */
struct mu_packed_histograms {
    size_t count;
    const int64_t *places; /* which row of the sum each histogram is added to */
    const int64_t *used;   /* how many buckets each has */
    const int64_t *totals; /* what the counts of each must sum up to */
    const unsigned char *bytes;
    size_t size;
};

/* Whether the parts agree with each other, and with a sum of `rows` rows. */
bool mu_packed_histograms_agree(const struct mu_packed_histograms *from, size_t rows);

/* Adds them to rows of MU_HISTOGRAM_BUCKETS counts each. They must agree. */
void mu_packed_histograms_add(const struct mu_packed_histograms *from, int64_t *rows);

#endif
