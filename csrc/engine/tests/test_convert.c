/* Rows in, a trace out: what is paired, what is open, what is said. */
#include "convert.h"
#include "trace.h"

#include "check.h"

#include <stdlib.h>
#include <unistd.h>

#define HEADER                                                                                     \
    "timestamp_unix,readable_time,machine_id,step,event_name,event_type,duration_ms,metadata\n"

struct outcome {
    struct mu_convert_counts counts;
    uint64_t notes[MU_NOTE_KIND_COUNT];
    uint64_t bytes;
};

static struct outcome convert(const char *rows, enum mu_trace_format format, int sort) {
    struct outcome outcome;
    struct mu_convert_options options = {.with_args = 1};
    struct mu_csv_input input = {
        .name = "rows", .fd = -1, .data = rows, .length = strlen(rows), .has_header = 1};
    struct mu_trace_job job;
    struct mu_converter converter;
    struct mu_error err;
    memset(&outcome, 0, sizeof(outcome));
    CHECK_INT(mu_trace_job_init(&job, -1, format, sort, &err), MU_OK);
    CHECK_INT(mu_converter_init(&converter, &job, &options, &err), MU_OK);
    CHECK_INT(mu_converter_part(&converter, &input, &err), MU_OK);
    CHECK_INT(mu_converter_finish(&converter, &err), MU_OK);
    CHECK_INT(mu_trace_job_finish(&job, &err), MU_OK);
    outcome.counts = converter.counts;
    outcome.bytes = mu_trace_job_bytes_written(&job);
    for (int kind = 0; kind < MU_NOTE_KIND_COUNT; kind++) {
        outcome.notes[kind] = converter.notes.of[kind].count;
    }
    mu_converter_reset(&converter);
    mu_trace_job_reset(&job);
    return outcome;
}

static void test_pairing(enum mu_trace_format format) {
    struct outcome got = convert(HEADER "3,,h,0,c,END,,\"node_id=3,parent_id=1,tid=9\"\n"
                                        "1,,h,0,a,START,,\"node_id=1,parent_id=0,tid=9\"\n"
                                        "2,,h,0,c,START,,\"node_id=3,parent_id=1,tid=9\"\n"
                                        "4,,h,0,a,END,,\"node_id=1,parent_id=0,tid=9\"\n"
                                        "5,,h,0,x,START,,\n"
                                        "6,,h,0,x,START,,\n"
                                        "7,,h,0,x,END,,\n"
                                        "8,,h,0,never,START,,\"node_id=8,tid=9\"\n",
                                 format, 0);
    CHECK_INT(got.counts.rows, 8);
    CHECK_INT(got.counts.slices, 3);
    CHECK_INT(got.counts.open, 2);
    CHECK_INT(got.notes[MU_NOTE_OPEN], 2);
    CHECK_INT(got.notes[MU_NOTE_END_ALONE] + got.notes[MU_NOTE_END_DROPPED], 0);
    CHECK(got.bytes > 100);
}

/* More ENDs without a START than are kept: the early ones are drawn by their length. */
static void test_pending_is_bounded(void) {
    enum { ENDS = MU_PENDING_MAX + 10 };
    char *rows = malloc(sizeof(HEADER) + (size_t)ENDS * 48);
    if (!CHECK(rows != NULL)) {
        return;
    }
    char *at = rows + sprintf(rows, HEADER);
    for (int i = 1; i <= ENDS; i++) {
        at += sprintf(at, "%d,,h,0,a,END,1.5,node_id=%d\n", i, i);
    }
    struct outcome got = convert(rows, MU_TRACE_JSON, 0);
    CHECK_INT(got.counts.slices, ENDS);
    CHECK_INT(got.notes[MU_NOTE_END_ALONE], ENDS);
    free(rows);
}

static void test_sorted(void) {
    const char *rows = HEADER "2,,h,0,a,START,,node_id=1\n3,,h,0,a,END,,node_id=1\n"
                              "1,,h,0,b,START,,node_id=2\n4,,h,0,b,END,,node_id=2\n";
    struct outcome plain = convert(rows, MU_TRACE_JSON, 0),
                   sorted = convert(rows, MU_TRACE_JSON, 1);
    CHECK_INT(plain.bytes, sorted.bytes);
}

static void test_sink_errors_stick(void) {
    struct mu_sink sink;
    struct mu_error err;
    CHECK_INT(mu_sink_init_fd(&sink, -1, 16, &err), MU_OK); /* no such descriptor */
    CHECK_INT(mu_sink_write(&sink, "0123456789", 10), MU_OK);
    CHECK_INT(mu_sink_write(&sink, "0123456789", 10), MU_ERR_IO);
    CHECK_INT(mu_sink_flush(&sink, &err), MU_ERR_IO);
    CHECK_INT(mu_sink_total(&sink), 20);
    mu_sink_reset(&sink);
}

int main(void) {
    test_pairing(MU_TRACE_JSON);
    test_pairing(MU_TRACE_SEED_JSON);
    test_pairing(MU_TRACE_PERFETTO);
    test_pending_is_bounded();
    test_sorted();
    test_sink_errors_stick();
    return check_report();
}
