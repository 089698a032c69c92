/* Rows of a profile CSV, by every scanner, over every border of the buffer. */
#include "csv/csv_reader.h"

#include "tests/check.h"

#include <stdlib.h>

#define HEADER                                                                                     \
    "timestamp_unix,readable_time,machine_id,step,event_name,event_type,duration_ms,metadata\n"

static struct mu_csv_input memory(const char *text, size_t length) {
    return (struct mu_csv_input){
        .name = "text", .fd = -1, .data = text, .length = length, .has_header = 1};
}

static int field_is(const struct mu_csv_row *row, enum mu_csv_column column, const char *want) {
    return row->length[column] == strlen(want) &&
           memcmp(row->text[column], want, row->length[column]) == 0;
}

/* 1 for a row like those that one_row appends. */
static int is_plain(const struct mu_csv_row *row) {
    return field_is(row, MU_CSV_TIMESTAMP, "1.5") && field_is(row, MU_CSV_STEP, "3") &&
           field_is(row, MU_CSV_EVENT_TYPE, "END") && field_is(row, MU_CSV_METADATA, "a=1,b=2");
}

static size_t append(char *out, size_t at, const char *text) {
    memcpy(out + at, text, strlen(text));
    return at + strlen(text);
}

/* Rows of all lengths, so that each border of blocks and of reads falls on each byte. */
static void test_borders(mu_csv_scan scan) {
    enum { ROWS = 4000 };
    char *text = malloc((size_t)ROWS * 400 + 200);
    if (!CHECK(text != NULL)) {
        return;
    }
    size_t at = append(text, 0, HEADER);
    for (int i = 0; i < ROWS; i++) {
        at = append(text, at, "1.5,,h,3,\"");
        memset(text + at, i % 7 == 0 ? '"' : 'n', (size_t)(i % 300) / 2 * 2);
        at = append(text, at + (size_t)(i % 300) / 2 * 2, "\",END,,\"a=1,b=2\"\r\n");
    }
    struct mu_csv_reader reader;
    struct mu_csv_row row;
    struct mu_csv_input input = memory(text, at);
    struct mu_error err;
    CHECK_INT(mu_csv_reader_init(&reader, &input, &err), MU_OK);
    reader.scan = scan;
    int good = 0, quotes = 0;
    while (mu_csv_reader_next(&reader, &row, &err) == MU_CSV_ROW) {
        size_t inside = (size_t)(good % 300) / 2 * 2;
        size_t want = good % 7 == 0 ? inside / 2 : inside;
        quotes += row.length[MU_CSV_EVENT_NAME] == want;
        CHECK_INT(row.line, good + 2);
        good += is_plain(&row);
    }
    CHECK_INT(good, ROWS);
    CHECK_INT(quotes, ROWS);
    mu_csv_reader_reset(&reader);
    free(text);
}

static void test_problems(void) {
    static const char text[] = HEADER "1,2\n"
                                      "1.5,,h,3,\"two\nlines\",END,,\"a=1,b=2\"\n"
                                      "1.5,,h,3,n,END,,a=1,b=2\n"
                                      "1.5,,h,3,n\"n,END,,\"a=1,b=2\"\n"
                                      "1.5,,h,3,n,END,,\"torn\n"
                                      "1.5,,h,3,n,END,,\"a=1,b=2\"\n"
                                      "1.5,,h,3,n,END";
    static const struct {
        enum mu_csv_status status;
        enum mu_csv_problem problem;
        uint64_t line;
    } want[] = {
        {MU_CSV_SKIPPED, MU_CSV_FEW_COLUMNS, 2},
        {MU_CSV_ROW, MU_CSV_FINE, 3},
        {MU_CSV_ROW, MU_CSV_FINE, 5},
        {MU_CSV_ROW, MU_CSV_FINE, 6},
        {MU_CSV_SKIPPED, MU_CSV_CUT, 7},
        {MU_CSV_ROW, MU_CSV_FINE, 8},
        {MU_CSV_SKIPPED, MU_CSV_CUT, 9},
        {MU_CSV_END, MU_CSV_FINE, 10},
    };
    struct mu_csv_reader reader;
    struct mu_csv_row row;
    struct mu_csv_input input = memory(text, sizeof(text) - 1);
    struct mu_error err;
    CHECK_INT(mu_csv_reader_init(&reader, &input, &err), MU_OK);
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        enum mu_csv_status status = mu_csv_reader_next(&reader, &row, &err);
        CHECK_INT(status, want[i].status);
        CHECK_INT(row.problem, want[i].problem);
        CHECK_INT(row.line, want[i].line);
        CHECK(status != MU_CSV_ROW || is_plain(&row));
    }
    mu_csv_reader_reset(&reader);
}

static void test_header(void) {
    struct mu_csv_reader reader;
    struct mu_error err;
    struct mu_csv_input input = memory("timestamp_unix,step\n1,2\n", 24);
    CHECK_INT(mu_csv_reader_init(&reader, &input, &err), MU_ERR_FORMAT);
    CHECK_STR(err.message, "text: the header has no column 'machine_id'");
    mu_csv_reader_reset(&reader);
    input = memory("", 0);
    CHECK_INT(mu_csv_reader_init(&reader, &input, &err), MU_ERR_FORMAT);
    CHECK_STR(err.message, "text: the file is empty");
    mu_csv_reader_reset(&reader);
}

/* The eight columns without `readable_time` and `metadata`, and another one. */
static void test_optional_columns(void) {
    static const char text[] = "timestamp_unix,machine_id,step,event_name,more,event_type,"
                               "duration_ms\n1.5,host,3,\"a,b\",?,END,2.5\n1.5,host,3\n";
    struct mu_csv_input input = memory(text, sizeof(text) - 1);
    struct mu_csv_reader reader;
    struct mu_csv_row row;
    struct mu_error err;
    memset(&row, 0xff, sizeof(row));
    CHECK_INT(mu_csv_reader_init(&reader, &input, &err), MU_OK);
    CHECK_INT(mu_csv_reader_next(&reader, &row, &err), MU_CSV_ROW);
    CHECK_INT(row.length[MU_CSV_READABLE_TIME], 0);
    CHECK_INT(row.length[MU_CSV_METADATA], 0);
    CHECK_INT(row.length[MU_CSV_EVENT_NAME], 3);
    CHECK_INT(row.length[MU_CSV_DURATION], 3);
    CHECK_INT(mu_csv_reader_next(&reader, &row, &err), MU_CSV_SKIPPED);
    mu_csv_reader_reset(&reader);
}

int main(void) {
    test_borders(mu_csv_scan_portable);
    test_borders(mu_csv_scan_strict);
    test_borders(mu_csv_scan_best());
#ifdef __aarch64__
    CHECK(mu_csv_scan_best() == mu_csv_scan_neon);
#endif
    test_problems();
    test_header();
    test_optional_columns();
    return check_report();
}
