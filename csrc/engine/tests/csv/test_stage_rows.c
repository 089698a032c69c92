/* Rows of stages out of a profile CSV: what each kind has, and what is torn or not understood. */
#include "csv/stage_rows.h"

#include "tests/check.h"

static void open_text(struct mu_stage_rows *rows, const char *text) {
    struct mu_error err;
    struct mu_csv_input input = {.name = "text", .fd = -1, .data = text, .length = strlen(text)};
    CHECK_INT(mu_stage_rows_init(rows, &input, &err), MU_OK);
}

static enum mu_stage_row_kind next(struct mu_stage_rows *rows, struct mu_stage_row *row) {
    struct mu_error err;
    mu_stage_rows_next(rows, row, &err);
    return row->kind;
}

static void test_kinds(void) {
    struct mu_stage_rows rows;
    struct mu_stage_row row;
    open_text(&rows, "10.0,,h,3,iter,START,,\"node_id=1,tid=7,tag=a\"\n"
                     "10.1,,h,3,loss,COUNTER,,\"value=2\"\n"
                     "10.2,,h,0,my_utils.process,INSTANT,,\"pid=4,attempt=12\"\n"
                     "10.3,,h,0,my_utils.process,INSTANT,,\"pid=4\"\n"
                     "10.5,,h,-3,in,END,500.000001,\"node_id=2,parent_id=1,tid=7,cuda_ms=1.5\"\n"
                     "10.6,,h,3,open,END,,\n");
    CHECK(mu_stage_rows_at_hand(&rows) == 0); /* nothing is read before it is asked for */
    CHECK_INT(next(&rows, &row), MU_STAGE_ROW_START);
    CHECK_INT(row.node, 1);
    CHECK_INT(row.parent, -1);
    CHECK(mu_span_equals(row.name, "iter") && mu_span_equals(row.tag, "a"));
    CHECK(mu_stage_rows_at_hand(&rows) != 0);
    CHECK_INT(next(&rows, &row), MU_STAGE_ROW_PROCESS);
    CHECK_INT(row.attempt, 12);
    CHECK_INT(next(&rows, &row), MU_STAGE_ROW_PROCESS);
    CHECK_INT(row.attempt, -1);
    CHECK_INT(next(&rows, &row), MU_STAGE_ROW_END);
    CHECK_INT(row.line, 5);
    CHECK_INT(row.bad, 0);
    CHECK_INT(row.step, -3);
    CHECK_INT(row.end_ns, 10500000000);
    CHECK_INT(row.duration_ns, 500000001);
    CHECK_INT(row.cuda_ns, 1500000);
    CHECK_INT(row.tid, 7);
    CHECK_INT(next(&rows, &row), MU_STAGE_ROW_END);
    CHECK(!row.has_duration && !row.has_cuda && row.node == -1 && row.bad == 0);
    CHECK_INT(next(&rows, &row), MU_STAGE_ROW_NONE);
    CHECK_INT(next(&rows, &row), MU_STAGE_ROW_NONE);
    mu_stage_rows_reset(&rows);
}

static void test_bad_rows(void) {
    struct mu_stage_rows rows;
    struct mu_stage_row row;
    open_text(&rows, "few,columns\n"
                     "1,,h,0,a,END,1,\"node_id=1\",more\n"
                     "x,,h,y,a,END,-1,\"node_id=1,cuda_ms=z\"\n"
                     "1,,h,0,a,END");
    CHECK_INT(next(&rows, &row), MU_STAGE_ROW_BAD);
    CHECK(strcmp(row.problem, "the row has too few columns") == 0);
    CHECK_INT(next(&rows, &row), MU_STAGE_ROW_BAD);
    CHECK(strcmp(row.problem, "the row has too many columns") == 0);
    CHECK_INT(row.line, 2);
    CHECK_INT(next(&rows, &row), MU_STAGE_ROW_END);
    CHECK_INT(row.bad, MU_BAD_STEP | MU_BAD_DURATION | MU_BAD_CUDA | MU_BAD_TIME);
    CHECK_INT(row.duration_ns, 0);
    CHECK_INT(next(&rows, &row), MU_STAGE_ROW_BAD);
    CHECK(strcmp(row.problem, MU_STAGE_ROW_UNFINISHED) == 0);
    CHECK_INT(next(&rows, &row), MU_STAGE_ROW_NONE);
    mu_stage_rows_reset(&rows);
}

static void test_a_file_that_cannot_be_read(void) {
    struct mu_stage_rows rows;
    struct mu_stage_row row;
    struct mu_error err;
    struct mu_csv_input input = {.name = "gone", .fd = 1 << 20, .limit = UINT64_MAX};
    CHECK_INT(mu_stage_rows_init(&rows, &input, &err), MU_OK);
    mu_stage_rows_next(&rows, &row, &err);
    CHECK_INT(row.kind, MU_STAGE_ROW_FAILED);
    CHECK_INT(err.code, MU_ERR_IO);
    mu_stage_rows_reset(&rows);
}

int main(void) {
    test_kinds();
    test_bad_rows();
    test_a_file_that_cannot_be_read();
    return check_report();
}
