/* Packed histograms: there and back, added up by row, and refused where they lie. */
#include "timing/packed_histogram.h"

#include <stdlib.h>

#include "tests/check.h"

enum { ROWS = 3, ROOM = 64 };

static const int64_t places[] = {2, 0, 2};
static const int64_t used[] = {2, 1, 2};
static const int64_t totals[] = {304, 7, 45};
/* Counts 4, 300 after 4 empty ones, 7 after 2,879, 44 after 5, 1. */
static const unsigned char bytes[] = {8, 0xd9, 4, 4, 15, 0xbf, 0x16, 89, 5, 2};

static const struct mu_packed_histograms three = {3, places, used, totals, bytes, sizeof(bytes)};

static void test_sums(void) {
    int64_t *rows = calloc(ROWS * MU_HISTOGRAM_BUCKETS, sizeof(*rows));
    if (!CHECK(rows != NULL)) {
        return;
    }
    CHECK(mu_packed_histograms_agree(&three, ROWS));
    mu_packed_histograms_add(&three, rows);
    mu_packed_histograms_add(&three, rows);
    CHECK_INT(rows[2 * MU_HISTOGRAM_BUCKETS], 8);
    CHECK_INT(rows[2 * MU_HISTOGRAM_BUCKETS + 5], 688);
    CHECK_INT(rows[2 * MU_HISTOGRAM_BUCKETS + 6], 2);
    CHECK_INT(rows[MU_HISTOGRAM_BUCKETS - 1], 14);
    int64_t all = 0;
    for (int i = 0; i < ROWS * MU_HISTOGRAM_BUCKETS; i++) {
        all += rows[i];
    }
    CHECK_INT(all, 712);
    free(rows);
}

static void test_there_and_back(const uint64_t *ns, int count, int64_t buckets) {
    static struct mu_aggregate from;
    static int64_t sum[MU_HISTOGRAM_BUCKETS];
    static char packed[ROOM];
    mu_aggregate_init(&from);
    memset(sum, 0, sizeof(sum));
    for (int i = 0; i < count; i++) {
        mu_aggregate_add(&from, ns[i]);
    }
    CHECK_INT(mu_histogram_used(&from), buckets);
    size_t size = mu_histogram_pack(&from, packed);
    CHECK(size <= (size_t)buckets * MU_PACKED_BUCKET_MAX);
    const int64_t place = 0, total = count;
    struct mu_packed_histograms one = {1, &place, &buckets, &total, (unsigned char *)packed, size};
    if (CHECK(mu_packed_histograms_agree(&one, 1))) {
        mu_packed_histograms_add(&one, sum);
    }
    for (int i = 0; i < MU_HISTOGRAM_BUCKETS; i++) {
        CHECK_INT(sum[i], from.buckets[i]);
    }
}

static void test_largest_count(void) {
    static struct mu_aggregate from;
    static char packed[ROOM];
    mu_aggregate_init(&from);
    from.buckets[MU_HISTOGRAM_BUCKETS - 1] = UINT32_MAX;
    size_t size = mu_histogram_pack(&from, packed);
    CHECK_INT(size, MU_PACKED_BUCKET_MAX);
    const int64_t place = 0, one = 1, total = UINT32_MAX;
    struct mu_packed_histograms packs = {1, &place, &one, &total, (unsigned char *)packed, size};
    CHECK(mu_packed_histograms_agree(&packs, 1));
    packed[4] |= 0x20; /* 33 bits */
    CHECK(!mu_packed_histograms_agree(&packs, 1));
}

/* The bytes of one histogram of `buckets` buckets, said to hold `total`. */
static bool agrees(const unsigned char *text, size_t size, int64_t buckets, int64_t total) {
    const int64_t place = 0;
    struct mu_packed_histograms one = {1, &place, &buckets, &total, text, size};
    return mu_packed_histograms_agree(&one, 1);
}

static void test_lies(void) {
    static const int64_t negative[] = {2, -1, 2};
    struct mu_packed_histograms from = three;
    CHECK(!mu_packed_histograms_agree(&from, 2)); /* a row beyond the last */
    from.places = negative;
    CHECK(!mu_packed_histograms_agree(&from, ROWS));
    from = three;
    from.used = negative;
    CHECK(!mu_packed_histograms_agree(&from, ROWS));
    for (size_t size = 0; size < sizeof(bytes); size++) {
        from = three;
        from.size = size;
        CHECK(!mu_packed_histograms_agree(&from, ROWS));
    }
    CHECK(agrees((const unsigned char *)"\5\1\6", 3, 2, 5));
    CHECK(!agrees((const unsigned char *)"\5\1\6", 3, 2, 6));
    CHECK(!agrees((const unsigned char *)"\5\1\6", 3, 1, 2));     /* bytes that are nobody's */
    CHECK(!agrees((const unsigned char *)"\5\1\0", 3, 2, 2));     /* a bucket that is empty */
    CHECK(!agrees((const unsigned char *)"\3\xc0\x16", 3, 1, 1)); /* one beyond the last */
    CHECK(!agrees((const unsigned char *)"\x83\x80\x80\x80\x80\1\1", 7, 1, 1));
    CHECK(!agrees((const unsigned char *)"\3\1", 2, INT64_MAX, 1));
}

int main(void) {
    test_sums();
    test_there_and_back((const uint64_t[]){0, 0, 1, 1000, 1001, 99999}, 6, 4);
    test_there_and_back((const uint64_t[]){UINT64_MAX >> 1}, 1, 1);
    test_there_and_back(NULL, 0, 0);
    test_largest_count();
    test_lies();
    return check_report();
}
