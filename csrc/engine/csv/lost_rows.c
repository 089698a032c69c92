#include "csv/lost_rows.h"

#include "csv/csv_fields.h"
#include "csv/csv_reader.h"
#include "csv/csv_writer.h"

static uint64_t distance(const struct mu_lost_range *a, const struct mu_lost_range *b) {
    return b->last < a->first   ? (uint64_t)(a->first - b->last)
           : b->first > a->last ? (uint64_t)(b->first - a->last)
                                : 0;
}

static void add_range(struct mu_lost_rows *lost, const struct mu_lost_range *range) {
    struct mu_lost_range *nearest = &lost->ranges[0];
    if (range->count == 0) {
        return;
    }
    for (uint32_t i = 1; i < lost->range_count; i++) {
        if (distance(&lost->ranges[i], range) < distance(nearest, range)) {
            nearest = &lost->ranges[i];
        }
    }
    if (lost->range_count == 0 ||
        (distance(nearest, range) > 1 && lost->range_count < MU_LOST_RANGES_MAX)) {
        lost->ranges[lost->range_count++] = *range;
        return;
    }
    nearest->count += range->count;
    nearest->first = range->first < nearest->first ? range->first : nearest->first;
    nearest->last = range->last > nearest->last ? range->last : nearest->last;
}

void mu_lost_rows_add(struct mu_lost_rows *lost, int64_t step, uint64_t count) {
    if (step < 0) {
        lost->stepless += count;
    } else {
        add_range(lost, &(struct mu_lost_range){count, step, step});
    }
}

void mu_lost_rows_add_all(struct mu_lost_rows *lost, const struct mu_lost_rows *more) {
    lost->stepless += more->stepless;
    for (uint32_t i = 0; i < more->range_count; i++) {
        add_range(lost, &more->ranges[i]);
    }
}

static int64_t step_of(const struct mu_csv_row *row, struct mu_span name) {
    int64_t step;
    return !mu_span_is_own(name) && mu_csv_step(mu_csv_field(row, MU_CSV_STEP), &step) ? step : -1;
}

void mu_lost_rows_add_text(struct mu_lost_rows *lost, const char *rows, size_t length) {
    const struct mu_csv_input input = {.name = "rows", .fd = -1, .data = rows, .length = length};
    struct mu_csv_reader reader;
    struct mu_csv_row row;
    struct mu_error err;
    uint64_t left = mu_csv_count_rows(rows, length);
    int code = mu_csv_reader_init(&reader, &input, &err);
    while (code == MU_OK && left > 0 && mu_csv_reader_next(&reader, &row, &err) == MU_CSV_ROW) {
        int type = mu_csv_event_type(mu_csv_field(&row, MU_CSV_EVENT_TYPE));
        struct mu_span name = mu_csv_field(&row, MU_CSV_EVENT_NAME);
        if (!mu_csv_only_opens(type, mu_csv_field(&row, MU_CSV_METADATA))) {
            uint64_t counts = !mu_span_equals(name, "my_utils.thread");
            mu_lost_rows_add(lost, step_of(&row, name), counts);
            left--;
        }
    }
    mu_csv_reader_reset(&reader);
    lost->stepless += left;
}

uint64_t mu_lost_rows_total(const struct mu_lost_rows *lost) {
    uint64_t total = lost->stepless;
    for (uint32_t i = 0; i < lost->range_count; i++) {
        total += lost->ranges[i].count;
    }
    return total;
}
