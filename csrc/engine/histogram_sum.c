#include "histogram_sum.h"

#include <string.h>

static uint32_t count_at(const struct mu_sparse_histograms *from, size_t i) {
    const unsigned char *bytes = (const unsigned char *)from->counts + i * from->width;
    uint16_t two;
    uint32_t four;
    switch (from->width) {
    case 1:
        return *bytes;
    case 2:
        memcpy(&two, bytes, sizeof(two));
        return two;
    default:
        memcpy(&four, bytes, sizeof(four));
        return four;
    }
}

/* Whether the buckets from `at` on, `used` of them, are in order and sum up to `total`. */
static bool one_agrees(const struct mu_sparse_histograms *from, size_t at, size_t used,
                       int64_t total) {
    int64_t sum = 0;
    int last = -1;
    for (size_t i = at; i < at + used; i++) {
        if (from->buckets[i] <= last || from->buckets[i] >= MU_HISTOGRAM_BUCKETS) {
            return false;
        }
        last = from->buckets[i];
        sum += count_at(from, i);
    }
    return sum == total;
}

bool mu_sparse_histograms_agree(const struct mu_sparse_histograms *from, size_t rows) {
    size_t at = 0;
    for (size_t h = 0; h < from->count; h++) {
        int64_t place = from->places[h];
        int64_t used = from->used[h];
        if (place < 0 || (uint64_t)place >= rows || used < 0 ||
            (uint64_t)used > from->buckets_count - at ||
            !one_agrees(from, at, (size_t)used, from->totals[h])) {
            return false;
        }
        at += (size_t)used;
    }
    return at == from->buckets_count;
}

void mu_sparse_histograms_add(const struct mu_sparse_histograms *from, int64_t *rows) {
    size_t at = 0;
    for (size_t h = 0; h < from->count; h++) {
        int64_t *row = rows + (size_t)from->places[h] * MU_HISTOGRAM_BUCKETS;
        for (size_t end = at + (size_t)from->used[h]; at < end; at++) {
            row[from->buckets[at]] += count_at(from, at);
        }
    }
}
