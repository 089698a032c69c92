#include "timing/packed_histogram.h"

#include "base/protobuf.h"

size_t mu_histogram_used(const struct mu_aggregate *from) {
    size_t used = 0;
    for (int i = 0; i < MU_HISTOGRAM_BUCKETS; i++) {
        used += from->buckets[i] != 0;
    }
    return used;
}

size_t mu_histogram_pack(const struct mu_aggregate *from, char *out) {
    char *at = out;
    int next = 0;
    for (int i = 0; i < MU_HISTOGRAM_BUCKETS; i++) {
        if (from->buckets[i] != 0) {
            at = pb_varint(at, (uint64_t)from->buckets[i] << 1 | (i > next));
            if (i > next) {
                at = pb_varint(at, (uint64_t)(i - next));
            }
            next = i + 1;
        }
    }
    return (size_t)(at - out);
}

struct reader {
    const unsigned char *at;
    const unsigned char *end;
};

/* Reads a varint. Returns false when there is none of at most 35 bits. */
static inline bool next_varint(struct reader *reader, uint64_t *out) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift <= 28 && reader->at < reader->end; shift += 7) {
        unsigned char byte = *reader->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

/* Reads the next bucket: the number of empty buckets before it, and its count. */
static inline bool next_bucket(struct reader *reader, uint64_t *gap, uint64_t *count) {
    *gap = 0;
    if (!next_varint(reader, count)) {
        return false;
    }
    bool has_gap = *count & 1;
    *count >>= 1;
    return !has_gap || next_varint(reader, gap);
}

/* Whether the next `used` buckets are valid, and their counts sum up to `total`. */
static bool one_agrees(struct reader *reader, int64_t used, int64_t total) {
    int64_t sum = 0;
    uint64_t next = 0;
    for (int64_t i = 0; i < used; i++) {
        uint64_t gap, count;
        if (!next_bucket(reader, &gap, &count) || count == 0 || count > UINT32_MAX) {
            return false;
        }
        next += gap + 1;
        if (next > MU_HISTOGRAM_BUCKETS) {
            return false;
        }
        sum += (int64_t)count;
    }
    return sum == total;
}

bool mu_packed_histograms_agree(const struct mu_packed_histograms *from, size_t rows) {
    struct reader reader = {from->bytes, from->bytes + from->size};
    for (size_t h = 0; h < from->count; h++) {
        int64_t place = from->places[h];
        if (place < 0 || (uint64_t)place >= rows || from->used[h] < 0 ||
            !one_agrees(&reader, from->used[h], from->totals[h])) {
            return false;
        }
    }
    return reader.at == reader.end;
}

void mu_packed_histograms_add(const struct mu_packed_histograms *from, int64_t *rows) {
    struct reader reader = {from->bytes, from->bytes + from->size};
    for (size_t h = 0; h < from->count; h++) {
        int64_t *bucket = rows + (size_t)from->places[h] * MU_HISTOGRAM_BUCKETS;
        for (int64_t i = 0; i < from->used[h]; i++) {
            uint64_t gap = 0, count = 0;
            next_bucket(&reader, &gap, &count);
            bucket += gap;
            *bucket++ += (int64_t)count;
        }
    }
}
