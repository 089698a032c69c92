/* Rows of a profile CSV to columns: paths, times without a START, restarts, bounds. */
#include "csv/stage_table.h"

#include "tests/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define HEADER                                                                                     \
    "timestamp_unix,readable_time,machine_id,step,event_name,event_type,duration_ms,metadata\n"

static int read_text(struct mu_stage_table *table, const char *text, struct mu_error *err) {
    struct mu_csv_input input = {
        .name = "text", .fd = -1, .data = text, .length = strlen(text), .has_header = 1};
    return mu_stage_table_read(table, &input, err);
}

/* 1 when the path of a row is the names given, the innermost first. */
static int path_is(const struct mu_stage_table *table, size_t row, const char *name,
                   const char *around) {
    const struct mu_stage_path *path = &table->paths[table->path[row]];
    const struct mu_stage_path *parent = &table->paths[path->parent];
    int is_named = path->length == strlen(name) && memcmp(path->name, name, path->length) == 0;
    if (around == NULL) {
        return is_named && parent == path;
    }
    return is_named && parent->length == strlen(around) &&
           memcmp(parent->name, around, parent->length) == 0;
}

static void test_nested(void) {
    struct mu_stage_table table;
    struct mu_error err;
    CHECK_INT(mu_stage_table_init(&table, &err), MU_OK);
    const char *text =
        HEADER "10.0,,h,3,iter,START,,\"node_id=1,tid=7\"\n"
               "10.1,,h,3,forward,START,,\"node_id=2,parent_id=1,tid=7\"\n"
               "10.3,,h,3,forward,END,200,\"node_id=2,parent_id=1,tid=7,cuda_ms=1.5\"\n"
               "10.4,,h,3,loss,COUNTER,,\"value=2\"\n"
               "10.5,,h,3,iter,END,500.000001,\"node_id=1,tid=7\"\n";
    CHECK_INT(read_text(&table, text, &err), MU_OK);
    CHECK_INT(table.count, 2);
    CHECK(path_is(&table, 0, "forward", "iter"));
    CHECK(path_is(&table, 1, "iter", NULL));
    CHECK_INT(table.step[0], 3);
    CHECK_INT(table.begin_ns[0], 10100000000);
    CHECK_INT(table.end_ns[0], 10300000000);
    CHECK_INT(table.begin_ns[1], 9999999999);
    CHECK_INT(table.tid[1], 7);
    CHECK(table.cuda_ms[0] == 1.5);
    CHECK(isnan(table.cuda_ms[1]));
    CHECK_INT(table.counts.rows, 5);
    CHECK_INT(table.open_by_node.count, 0);
    mu_stage_table_reset(&table);
}

static void test_parts_meet(void) {
    struct mu_stage_table table;
    struct mu_error err;
    CHECK_INT(mu_stage_table_init(&table, &err), MU_OK);
    CHECK_INT(read_text(&table,
                        HEADER "1,,h,0,iter,START,,\"node_id=1\"\n"
                               "1,,h,0,a,START,,\"node_id=2,parent_id=1\"\n",
                        &err),
              MU_OK);
    CHECK_INT(read_text(&table,
                        HEADER "2,,h,0,a,END,,\"node_id=2,parent_id=1\"\n"
                               "3,,h,0,iter,END,,\"node_id=1\"\n",
                        &err),
              MU_OK);
    CHECK_INT(table.count, 2);
    CHECK(path_is(&table, 0, "a", "iter"));
    CHECK_INT(table.end_ns[0] - table.begin_ns[0], 1000000000);
    CHECK_INT(read_text(&table, "no,profile\n1,2\n", &err), MU_ERR_FORMAT);
    CHECK_INT(read_text(&table, HEADER "4,,h,0,alone,END,1000,\n", &err), MU_OK);
    CHECK_INT(table.count, 3);
    CHECK(path_is(&table, 2, "alone", NULL));
    CHECK_INT(table.tid[2], -1);
    mu_stage_table_reset(&table);
}

static void test_a_restart_ends_what_was_open(void) {
    struct mu_stage_table table;
    struct mu_error err;
    CHECK_INT(mu_stage_table_init(&table, &err), MU_OK);
    const char *text =
        HEADER "1,,h,0,my_utils.process,INSTANT,,\"pid=5,rank=2,world_size=8,attempt=1,host=a\"\n"
               "1,,h,0,iter,START,,\"node_id=1\"\n"
               "2,,h,0,my_utils.process,INSTANT,,\"pid=6,rank=2,world_size=8,attempt=2,host=b,"
               "label=pp%3D1\"\n"
               "2,,h,0,my_utils.clock_sync,INSTANT,,\"offset_ns=5,error_ns=42\"\n"
               "2,,h,0,my_utils.dropped,INSTANT,,\"count=3,reason=full\"\n"
               "2,,h,0,my_utils.clock_step,INSTANT,,\"delta_ns=-7000000\"\n"
               "3,,h,0,fwd,END,1000,\"node_id=9,parent_id=1\"\n";
    CHECK_INT(read_text(&table, text, &err), MU_OK);
    CHECK_INT(table.counts.open, 1);
    CHECK(path_is(&table, 0, "fwd", NULL));
    CHECK_INT(table.attempt[0], 2);
    CHECK_INT(table.process.world_size, 8);
    CHECK_INT(table.process.clock_error_ns, 42);
    CHECK_INT(table.process.dropped, 3);
    CHECK_INT(table.clock_steps.moved_ns, -7000000);
    CHECK(strcmp(table.process.host, "b") == 0);
    CHECK(strcmp(table.process.label, "pp%3D1") == 0);
    mu_stage_table_reset(&table);
}

static void check_steps(const char *text, const int64_t *begins_ns, size_t count) {
    struct mu_stage_table table;
    struct mu_error err;
    CHECK_INT(mu_stage_table_init(&table, &err), MU_OK);
    CHECK_INT(read_text(&table, text, &err), MU_OK);
    CHECK_INT(table.counts.bad_rows, 0);
    CHECK_INT(table.count, count);
    for (size_t i = 0; i < count; i++) {
        CHECK_INT(table.begin_ns[i], begins_ns[i]);
    }
    mu_stage_table_reset(&table);
}

#define PROCESS(attempt) ",,h,0,my_utils.process,INSTANT,,\"pid=5,rank=2,attempt=" attempt "\"\n"
#define STEP(pairs) ",,h,0,my_utils.clock_step,INSTANT,,\"tid=5," pairs "\"\n"

static void test_steps_of_the_clock_are_undone(void) {
    static const int64_t two[] = {10000000000, 11000000000, 12000000000};
    /* Forwards inside a stage, then backwards by more; the third row is timed by its START. */
    check_steps(
        HEADER "9" PROCESS(
            "1") "10.5,,h,0,a,END,500,\n"
                 "10.6,,h,1,b,START,,\"node_id=1\"\n"
                 "16" STEP("delta_ns=5000000000") "16.5,,h,1,b,END,500,"
                                                  "\"node_id=1\"\n"
                                                  "6" STEP(
                                                      "delta_ns=-11000000000") "6,,h,2,c,START,,"
                                                                               "\"node_id=2\"\n"
                                                                               "6.5,,h,2,c,END,,"
                                                                               "\"node_id=2\"\n",
        two, 3);
    /* The sum counts where the row has it: a part with older steps was removed. A restart goes on
     * from where the process before it was, and a part that repeats the process's row does not. */
    static const int64_t sums[] = {10000000000, 20000000000, 30000000000};
    check_steps(HEADER "14" PROCESS("1") "14" STEP("delta_ns=0,total_ns=4000000000") //
                "15,,h,0,a,END,1000,\n"
                "28" PROCESS("2") "30" STEP("delta_ns=2000000000,total_ns=2000000000") //
                "31" PROCESS("2") "31" STEP("delta_ns=0,total_ns=2000000000")          //
                "27,,h,0,a,END,1000,\n"
                "37,,h,0,a,END,1000,\n",
                sums, 3);
    /* An offset that changes was measured after the step. */
    static const int64_t offsets[] = {10000000000, 20000000000};
    check_steps(HEADER
                "9" PROCESS("1") "9,,h,0,my_utils.time_offset,INSTANT,,\"offset_ns=7\"\n"
                                 "14" STEP("delta_ns=4000000000") "15,,h,0,a,END,1000,\n"
                                                                  "20,,h,0,my_utils.time_offset,"
                                                                  "INSTANT,,\"offset_ns=9\"\n"
                                                                  "21,,h,0,a,END,1000,\n",
                offsets, 2);
}

static void test_a_step_beyond_all_times(void) {
    static const int64_t begins[] = {10000000000};
    check_steps(HEADER "1" STEP("delta_ns=9223372036854775807") //
                "1" STEP("delta_ns=x") "1" STEP("") "11,,h,0,a,END,1000,\n",
                begins, 1);
    struct mu_stage_table table;
    struct mu_error err;
    CHECK_INT(mu_stage_table_init(&table, &err), MU_OK);
    CHECK_INT(read_text(&table,
                        HEADER
                        "1" STEP("delta_ns=4611686018000000000") "-4000000000,,h,0,a,END,1,\n",
                        &err),
              MU_OK);
    CHECK_INT(table.counts.bad_rows, 1);
    mu_stage_table_reset(&table);
}

static void test_bad_rows_are_counted(void) {
    struct mu_stage_table table;
    struct mu_error err;
    CHECK_INT(mu_stage_table_init(&table, &err), MU_OK);
    const char *text = HEADER "x,,h,0,a,END,1,\n"   /* no time */
                              "1,,h,,a,END,1,\n"    /* no step */
                              "1,,h,0,a,BEGIN,1,\n" /* no type */
                              "1,,h,0,a,END,,\n"    /* neither duration nor START */
                              "1,,h,0,a,END,-5,\n"  /* a negative duration */
                              "-4611686017,,h,0,a,END,9223372036854,\n"
                              "1,,h,0\n" /* cut */
                              "1,,h,0,a,END,1,\n";
    CHECK_INT(read_text(&table, text, &err), MU_OK);
    CHECK_INT(table.count, 1);
    CHECK_INT(table.counts.bad_rows, 7);
    mu_stage_table_reset(&table);
}

static void test_gpu_times_and_tags(void) {
    struct mu_stage_table table;
    struct mu_error err;
    CHECK_INT(mu_stage_table_init(&table, &err), MU_OK);
    const char *text =
        HEADER "2,,h,0,a,END,1000,\"node_id=1,tid=7,tag=run,cuda_ms=1.5,cuda_ts=3.000000001,"
               "cuda_err_ms=0.02\"\n"
               "3,,h,0,b,END,1000,\"node_id=2,tid=7\"\n"
               "4,,h,0,c,END,1000,\"node_id=3,tid=7,tag=own\"\n"
               "5,,h,0,d,END,1000,\"node_id=4,tid=7,tag=run\"\n";
    CHECK_INT(read_text(&table, text, &err), MU_OK);
    CHECK_INT(table.cuda_begin_ns[0], 3000000001);
    CHECK_INT(table.cuda_error_ns[0], 20000);
    CHECK(table.cuda_begin_ns[1] == MU_STAGE_NO_TIME);
    CHECK_INT(table.cuda_error_ns[1], -1);
    CHECK_INT(table.tags.count, 3);
    CHECK_INT(table.tag[0], 1);
    CHECK_INT(table.tag[1], 0);
    CHECK_INT(table.tag[2], 2);
    CHECK_INT(table.tag[3], 1);
    CHECK(mu_span_equals(table.tags.names[2], "own"));
    mu_stage_table_reset(&table);
}

static void test_counters_and_rows_about_the_run(void) {
    struct mu_stage_table table;
    struct mu_error err;
    CHECK_INT(mu_stage_table_init(&table, &err), MU_OK);
    const char *text =
        HEADER "1,,h,0,my_utils.process,INSTANT,,\"pid=5,rank=2,attempt=3\"\n"
               "1,,h,0,my_utils.sync,INSTANT,,\"tid=7,stage=backward,kind=ddp,members=0-3%2C8\"\n"
               "1,,h,0,my_utils.run,INSTANT,,\"\"\n"
               "1,,h,0,my_utils.other,INSTANT,,\"a=b\"\n"
               "1,,h,7,memory,COUNTER,,\"tid=7,rss_bytes=12,allocated_bytes=0.5,bad=x\"\n"
               "1,,h,8,loss,COUNTER,,\"tid=7,value=-1e3\"\n"
               "1,,h,8,memory,COUNTER,,\"tid=7,rss_bytes=13\"\n";
    CHECK_INT(read_text(&table, text, &err), MU_OK);
    const struct mu_run_rows *rows = &table.run_rows;
    CHECK_INT(rows->note_count, 3);
    CHECK_STR(rows->notes[0].text, "my_utils.process pid=5,rank=2,attempt=3");
    CHECK_STR(rows->notes[1].text, "my_utils.sync stage=backward,kind=ddp,members=0-3%2C8");
    CHECK_STR(rows->notes[2].text, "my_utils.run ");
    CHECK_INT(rows->notes[1].attempt, 3);
    CHECK_INT(rows->notes[1].at_ns, 1000000000);
    CHECK_INT(rows->notes[1].tid, 7);
    CHECK_INT(rows->notes[2].tid, -1);
    CHECK_INT(rows->count, 4);
    CHECK_INT(rows->names.count, 4);
    CHECK(mu_span_equals(rows->names.names[1], "memory.rss_bytes"));
    CHECK(mu_span_equals(rows->names.names[3], "loss"));
    CHECK(rows->value[0] == 12.0 && rows->value[1] == 0.5 && rows->value[2] == -1000.0);
    CHECK_INT(rows->step[0], 7);
    CHECK_INT(rows->name[3], 1);
    CHECK_INT(rows->attempt[3], 3);
    CHECK_INT(table.counts.bad_rows, 0);
    mu_stage_table_reset(&table);
}

static void test_only_notes_are_taken(void) {
    struct mu_stage_table table;
    struct mu_error err;
    CHECK_INT(mu_stage_table_init(&table, &err), MU_OK);
    table.only_notes = true;
    const char *text = HEADER "1,,h,0,my_utils.process,INSTANT,,\"attempt=3,host=a\"\n"
                              "1,,h,0,a,START,,\"node_id=1,tid=7\"\n"
                              "2,,h,0,my_utils.ready,INSTANT,,\"tid=7,step=4\"\n"
                              "3,,h,0,my_utils.ready_gpu,INSTANT,,\"tid=7,step=4\"\n"
                              "3,,h,0,a,END,2.000000,\"node_id=1,tid=7\"\n"
                              "3,,h,0,loss,COUNTER,,\"value=1\"\n";
    CHECK_INT(read_text(&table, text, &err), MU_OK);
    CHECK_INT(table.run_rows.note_count, 3);
    CHECK_INT(table.run_rows.notes[1].at_ns, 2000000000);
    CHECK_INT(table.process.attempt, 3);
    CHECK_INT(table.count + table.run_rows.count + table.open_by_node.count, 0);
    mu_stage_table_reset(&table);
}

/* A CSV without rows, in memory of `size` bytes. The caller frees it. */
static char *header_with_room(size_t size) {
    char *text = malloc(size);
    if (text == NULL) {
        abort();
    }
    memcpy(text, HEADER, sizeof(HEADER));
    return text;
}

/* Each part begins with copies of rows of the parts before it. */
static void test_copies_of_notes_count_once(void) {
    const char *text = HEADER "1,,h,0,my_utils.process,INSTANT,,\"attempt=1\"\n"
                              "1,,h,0,my_utils.sync,INSTANT,,\"tid=7,repeated=1,stage=a\"\n"
                              "1,,h,0,my_utils.sync,INSTANT,,\"tid=7,stage=b\"\n"
                              "1,,h,0,my_utils.sync,INSTANT,,\"tid=7,repeated=1,stage=a\"\n"
                              "1,,h,0,my_utils.sync,INSTANT,,\"tid=7,repeated=1,stage=b\"\n"
                              "2,,h,0,my_utils.process,INSTANT,,\"attempt=2\"\n"
                              "2,,h,0,my_utils.sync,INSTANT,,\"tid=7,repeated=1,stage=b\"\n";
    struct mu_stage_table table;
    struct mu_error err;
    CHECK_INT(mu_stage_table_init(&table, &err), MU_OK);
    CHECK_INT(read_text(&table, text, &err), MU_OK);
    if (CHECK_INT(table.run_rows.note_count, 5)) {
        CHECK_STR(table.run_rows.notes[1].text, "my_utils.sync stage=a");
        CHECK_STR(table.run_rows.notes[2].text, "my_utils.sync stage=b");
        CHECK_STR(table.run_rows.notes[3].text, "my_utils.process attempt=2");
        CHECK_INT(table.run_rows.notes[4].attempt, 2);
    }
    mu_stage_table_reset(&table);
}

/* Names and notes without end. */
static void test_names_and_notes_are_bounded(void) {
    enum { ROWS = MU_RUN_NOTES_MAX + 5 };
    static const char dropped[] = "1,,h,0,my_utils.dropped,INSTANT,,\"count=3\"\n";
    size_t size = (size_t)ROWS * 128 + sizeof(HEADER), at = sizeof(HEADER) - 1;
    struct mu_stage_table table;
    struct mu_error err;
    char *text = header_with_room(size);
    CHECK_INT(mu_stage_table_init(&table, &err), MU_OK);
    for (int i = 0; i < ROWS; i++) {
        at += (size_t)snprintf(text + at, size - at,
                               "1,,h,0,c%d,COUNTER,,\"value=1\"\n"
                               "1,,h,0,my_utils.ready,INSTANT,,\"step=%d\"\n",
                               i, i);
    }
    memcpy(text + at, dropped, sizeof(dropped));
    CHECK_INT(read_text(&table, text, &err), MU_OK);
    CHECK_INT(table.run_rows.count, MU_NAMES_MAX - 1);
    CHECK_INT(table.run_rows.note_count, MU_RUN_NOTES_MAX + 1); /* no step has many of the others */
    CHECK_INT(table.process.dropped, 3);
    free(text);
    mu_stage_table_reset(&table);
}

/* Names without end: the paths are bounded, and so are open stages. */
static void test_bounds(void) {
    enum { STAGES = 70000 };
    size_t size = (size_t)STAGES * 64 + sizeof(HEADER), at = sizeof(HEADER) - 1;
    struct mu_stage_table table;
    struct mu_error err;
    char *text = header_with_room(size);
    CHECK_INT(mu_stage_table_init(&table, &err), MU_OK);
    for (int i = 1; i <= STAGES; i++) {
        at += (size_t)snprintf(text + at, size - at, "1,,h,0,n%d,START,,\"node_id=%d\"\n", i, i);
    }
    CHECK_INT(read_text(&table, text, &err), MU_OK);
    CHECK_INT(table.open_by_node.count, MU_STAGE_OPEN_MAX);
    CHECK_INT(table.path_count, MU_STAGE_PATHS_MAX);
    CHECK_INT(read_text(&table,
                        HEADER "2,,h,0,n66000,END,1,\"node_id=66000\"\n"
                               "2,,h,0,n5,END,1,\"node_id=5\"\n",
                        &err),
              MU_OK);
    CHECK_INT(table.path[0], MU_STAGE_OTHER);
    CHECK(path_is(&table, 1, "n5", NULL));
    mu_stage_table_reset(&table);
    free(text);
}

int main(void) {
    test_nested();
    test_parts_meet();
    test_a_restart_ends_what_was_open();
    test_steps_of_the_clock_are_undone();
    test_a_step_beyond_all_times();
    test_bad_rows_are_counted();
    test_gpu_times_and_tags();
    test_counters_and_rows_about_the_run();
    test_only_notes_are_taken();
    test_copies_of_notes_count_once();
    test_names_and_notes_are_bounded();
    test_bounds();
    return check_report();
}
