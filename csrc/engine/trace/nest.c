#include "trace/nest.h"

#include "csv/csv_fields.h"

#include <stdlib.h>
#include <string.h>

/* Room for the begins of stages that hold the next one, whose rows come later. */
enum { SPARE_NS = 16 };

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void melt_oldest(struct mu_nest *nest) {
    nest->kept[0].end = nest->kept[1].end;
    nest->kept[0].error = larger(nest->kept[0].error, nest->kept[1].error);
    memmove(&nest->kept[1], &nest->kept[2], (MU_NEST_MAX - 2) * sizeof(nest->kept[0]));
    nest->count--;
}

int mu_nest_accept(struct mu_nest *nest, struct mu_interval interval) {
    int left = nest->count;
    while (left > 0 && nest->kept[left - 1].begin >= interval.begin &&
           nest->kept[left - 1].end <= interval.end) {
        if (nest->kept[left - 1].begin == interval.begin) {
            return 0;
        }
        left--;
    }
    if (left > 0 && nest->kept[left - 1].end > interval.begin) {
        return 0;
    }
    nest->count = left;
    if (nest->count == MU_NEST_MAX) {
        melt_oldest(nest);
    }
    nest->kept[nest->count++] = interval;
    return 1;
}

/* Where an interval nests: it begins in [from, until], and ends at `last_end` or later. */
struct bounds {
    int64_t from, until, last_end;
    int64_t error; /* the largest of those that bound it */
};

static struct bounds bounds_for(const struct mu_nest *nest, const struct mu_interval *interval) {
    struct bounds bounds = {INT64_MIN, MU_CSV_FARTHEST_NS, -MU_CSV_FARTHEST_NS, 0};
    int inner = nest->count;
    while (inner > 0 && nest->kept[inner - 1].called >= interval->called) {
        inner--;
    }
    if (inner > 0) {
        bounds.from = nest->kept[inner - 1].end;
        bounds.error = nest->kept[inner - 1].error;
    }
    if (inner < nest->count) {
        const struct mu_interval *first = &nest->kept[inner], *last = &nest->kept[nest->count - 1];
        bounds.until = first->begin - 1;
        bounds.last_end = last->end;
        bounds.error = larger(bounds.error, larger(first->error, last->error));
    }
    return bounds;
}

struct mu_interval mu_nest_fit(const struct mu_nest *nest, struct mu_interval interval) {
    struct bounds bounds = bounds_for(nest, &interval);
    int64_t farthest = interval.error + bounds.error;
    int64_t by = smaller(larger(bounds.last_end - interval.end, 0), bounds.until - interval.begin);
    if (interval.begin + by < bounds.from + SPARE_NS) {
        by = smaller(bounds.from - interval.begin, farthest) + SPARE_NS;
        by = smaller(by, bounds.until - interval.begin);
    }
    if (llabs(by) > farthest || interval.begin + by < bounds.from) {
        return interval;
    }
    int64_t end = larger(interval.end + by, bounds.last_end);
    if (end - interval.end > farthest || (by == 0 && end == interval.end)) {
        return interval;
    }
    return (struct mu_interval){
        .begin = interval.begin + by,
        .end = end,
        .called = interval.called,
        .error = larger(interval.error, bounds.error),
    };
}
