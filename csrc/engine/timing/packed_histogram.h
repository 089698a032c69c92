/* Packs histograms into bytes, and sums many of them by name.
 *
 * Each bucket that is not empty is packed in order. Its first varint is twice its count, plus 1
 * when empty buckets precede it. A second varint, only in that case, is the number of these empty
 * buckets. So most buckets take one or two bytes.
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

/* The number of buckets that are not empty. */
size_t mu_histogram_used(const struct mu_aggregate *from);

/* Packs the buckets into `out` and returns the number of bytes written. `out` needs room for
 * MU_PACKED_BUCKET_MAX bytes for each bucket that is not empty. */
size_t mu_histogram_pack(const struct mu_aggregate *from, char *out);

/* The bytes of all histograms follow one another. */
struct mu_packed_histograms {
    size_t count;
    const int64_t *places; /* which row of the sum each histogram is added to */
    const int64_t *used;   /* how many buckets of each are not empty */
    const int64_t *totals; /* what the counts of each must sum up to */
    const unsigned char *bytes;
    size_t size;
};

/* Whether the parts are consistent with each other and with a sum of `rows` rows. */
bool mu_packed_histograms_agree(const struct mu_packed_histograms *from, size_t rows);

/* Adds the histograms to rows of MU_HISTOGRAM_BUCKETS counts each. mu_packed_histograms_agree must
 * be true. */
void mu_packed_histograms_add(const struct mu_packed_histograms *from, int64_t *rows);

#endif
