/* Sparse histograms: added up by row in each width of their counts, and refused where they lie. */
#include "histogram_sum.h"

#include <stdlib.h>

#include "check.h"

enum { ROWS = 3 };

static const int64_t places[] = {2, 0, 2};
static const int64_t used[] = {2, 1, 2};
static const int64_t totals[] = {10, 7, 45};
static const uint16_t buckets[] = {0, 5, MU_HISTOGRAM_BUCKETS - 1, 5, 6};
static const uint8_t bytes[] = {4, 6, 7, 44, 1};
static const uint16_t shorts[] = {4, 6, 7, 44, 1};
static const uint32_t words[] = {4, 6, 7, 44, 1};

static struct mu_sparse_histograms three(const void *counts, unsigned width) {
    return (struct mu_sparse_histograms){3, places, used, totals, 5, buckets, counts, width};
}

static void test_sums(const void *counts, unsigned width) {
    struct mu_sparse_histograms from = three(counts, width);
    int64_t *rows = calloc(ROWS * MU_HISTOGRAM_BUCKETS, sizeof(*rows));
    if (!CHECK(rows != NULL)) {
        return;
    }
    CHECK(mu_sparse_histograms_agree(&from, ROWS));
    mu_sparse_histograms_add(&from, rows);
    mu_sparse_histograms_add(&from, rows);
    CHECK_INT(rows[2 * MU_HISTOGRAM_BUCKETS], 8);
    CHECK_INT(rows[2 * MU_HISTOGRAM_BUCKETS + 5], 100);
    CHECK_INT(rows[2 * MU_HISTOGRAM_BUCKETS + 6], 2);
    CHECK_INT(rows[MU_HISTOGRAM_BUCKETS - 1], 14);
    int64_t all = 0;
    for (int i = 0; i < ROWS * MU_HISTOGRAM_BUCKETS; i++) {
        all += rows[i];
    }
    CHECK_INT(all, 124);
    free(rows);
}

static void test_lies(void) {
    struct mu_sparse_histograms right = three(bytes, 1);
    struct mu_sparse_histograms from = right;
    CHECK(!mu_sparse_histograms_agree(&right, 2)); /* a row beyond the last */

    const int64_t negative[] = {2, -1, 2};
    from.places = negative;
    CHECK(!mu_sparse_histograms_agree(&from, ROWS));

    from = right;
    from.used = negative;
    CHECK(!mu_sparse_histograms_agree(&from, ROWS));

    const int64_t many[] = {2, 1, INT64_MAX};
    from = right;
    from.used = many;
    CHECK(!mu_sparse_histograms_agree(&from, ROWS));

    const int64_t few[] = {2, 1, 1};
    const int64_t few_totals[] = {10, 7, 44};
    from = right;
    from.used = few;
    from.totals = few_totals;
    CHECK(!mu_sparse_histograms_agree(&from, ROWS)); /* a bucket that is nobody's */

    from = right;
    from.totals = few_totals;
    CHECK(!mu_sparse_histograms_agree(&from, ROWS));

    const uint16_t beyond[] = {0, 5, MU_HISTOGRAM_BUCKETS, 5, 6};
    from = right;
    from.buckets = beyond;
    CHECK(!mu_sparse_histograms_agree(&from, ROWS));

    const uint16_t twice[] = {5, 5, 1, 5, 6};
    from.buckets = twice;
    CHECK(!mu_sparse_histograms_agree(&from, ROWS));
}

int main(void) {
    test_sums(bytes, 1);
    test_sums(shorts, 2);
    test_sums(words, 4);
    test_lies();
    return check_report();
}
