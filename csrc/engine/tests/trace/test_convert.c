/* Rows in, a trace out: what is paired, what is open, what is said. */
#include "trace/convert.h"
#include "trace/trace.h"

#include "tests/check.h"

#include <stdbool.h>
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

/* One node id is open on two tracks, under other stages, and the one that began first ends first.
 */
static void test_a_node_id_open_on_two_tracks(enum mu_trace_format format) {
    struct outcome got = convert(HEADER "1,,h,0,a,START,,\"node_id=7,tid=1\"\n"
                                        "2,,h,0,b,START,,\"node_id=7,tid=2\"\n"
                                        "3,,h,0,on_a,START,,\"node_id=1,tid=1\"\n"
                                        "4,,h,0,on_b,START,,\"node_id=2,tid=2\"\n"
                                        "5,,h,0,on_a,END,,\"node_id=1,tid=1\"\n"
                                        "6,,h,0,a,END,,\"node_id=7,tid=1\"\n"
                                        "7,,h,0,on_b,END,,\"node_id=2,tid=2\"\n"
                                        "8,,h,0,b,END,,\"node_id=7,tid=2\"\n"
                                        "9,,h,0,c,START,,\"node_id=7,tid=1\"\n"
                                        "10,,h,0,c,END,,\"node_id=7,tid=3\"\n",
                                 format, 0);
    CHECK_INT(got.counts.slices, 5);
    CHECK_INT(got.counts.open, 0);
    CHECK_INT(got.notes[MU_NOTE_END_DROPPED], 0);
}

static uint32_t random_below(uint64_t *state, uint32_t limit) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33) % limit;
}

/* Rows of few node ids on few tracks, most of them in the order of time. Whatever the order, each
 * START meets one END of its id while there are any. */
static void test_random_rows_that_share_node_ids(enum mu_trace_format format, uint64_t seed) {
    enum { ROWS = 60, NODES = 4, TRACKS = 3 };
    char text[sizeof(HEADER) + ROWS * 64] = HEADER, *at = text + strlen(text);
    uint64_t begun[NODES + 1] = {0}, ended[NODES + 1] = {0}, met = 0;
    for (int i = 0; i < ROWS; i++) {
        uint32_t node = 1 + random_below(&seed, NODES), track = 1 + random_below(&seed, TRACKS);
        bool start = random_below(&seed, 2) == 0;
        int time = random_below(&seed, 8) == 0 ? 1 + i / 2 : 100 + i;
        at += sprintf(at, "%d,,h,0,n%u,%s,,\"node_id=%u,tid=%u\"\n", time, node,
                      start ? "START" : "END", node, track);
        *(start ? &begun[node] : &ended[node]) += 1;
    }
    struct outcome got = convert(text, format, 0);
    uint64_t starts = 0, ends = 0;
    for (int node = 1; node <= NODES; node++) {
        starts += begun[node];
        ends += ended[node];
        met += begun[node] < ended[node] ? begun[node] : ended[node];
    }
    CHECK_INT(got.counts.rows, ROWS);
    CHECK_INT(got.counts.slices, met);
    CHECK_INT(got.counts.open, starts - met);
    CHECK_INT(got.notes[MU_NOTE_END_DROPPED], ends - met);
}

static void test_shared_node_ids(enum mu_trace_format format) {
    enum { CASES = 500 };
    test_a_node_id_open_on_two_tracks(format);
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        test_random_rows_that_share_node_ids(format, seed);
    }
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
    mu_sink_write(&sink, "0123456789", 10);
    CHECK_INT(sink.error.code, MU_OK);
    mu_sink_write(&sink, "0123456789", 10);
    CHECK_INT(sink.error.code, MU_ERR_IO);
    CHECK_INT(mu_sink_flush(&sink, &err), MU_ERR_IO);
    CHECK_INT(mu_sink_total(&sink), 20);
    mu_sink_reset(&sink);
}

int main(void) {
    test_pairing(MU_TRACE_JSON);
    test_pairing(MU_TRACE_SEED_JSON);
    test_pairing(MU_TRACE_PERFETTO);
    test_shared_node_ids(MU_TRACE_JSON);
    test_shared_node_ids(MU_TRACE_SEED_JSON);
    test_shared_node_ids(MU_TRACE_PERFETTO);
    test_pending_is_bounded();
    test_sorted();
    test_sink_errors_stick();
    return check_report();
}
