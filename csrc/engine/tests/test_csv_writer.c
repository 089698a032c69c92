/* Rows as bytes. The local time zone is UTC here. */
#include "../csv_writer.h"

#include <stdlib.h>
#include <time.h>

#include "../event.h"
#include "check.h"

static void check_text(struct mu_csv_writer *writer, const char *wanted) {
    char *text = strndup(writer->buffer, writer->length);
    CHECK_STR(text, wanted);
    free(text);
    writer->length = 0;
}

static const char track[] = ",tid=77,tag=a";

static struct mu_csv_stage_row stage_row(int64_t real_ns) {
    struct mu_csv_stage_row row = {.real_ns = real_ns,
                                   .step = 12,
                                   .name = "forward",
                                   .name_length = 7,
                                   .node = 18446744073709551615u,
                                   .parent = 100,
                                   .track = track,
                                   .track_length = sizeof(track) - 1};
    return row;
}

static void test_stage_rows(void) {
    struct mu_csv_writer writer;
    mu_csv_writer_init(&writer);
    mu_csv_writer_set_machine(&writer, "node, \"0\"");
    struct mu_csv_stage_row row = stage_row(1750000000000000009);
    mu_csv_write_start(&writer, &row);
    check_text(&writer,
               "1750000000.000000009,2025-06-15 15:06:40.000000,\"node, \"\"0\"\"\",12,forward,"
               "START,,\"node_id=18446744073709551615,parent_id=100,tid=77,tag=a\"\n");
    mu_csv_writer_set_machine(&writer, "n");
    row.real_ns = 1750000001999999999;
    row.step = -3;
    mu_csv_write_end(&writer, &row, 1234567891, ",closed=step", 12);
    check_text(&writer, "1750000001.999999999,2025-06-15 15:06:41.999999,n,-3,forward,END,"
                        "1234.567891,\"node_id=18446744073709551615,parent_id=100,tid=77,tag=a,"
                        "closed=step\"\n");
    mu_csv_writer_free(&writer);
}

static void test_times_before_1970(void) {
    struct mu_csv_writer writer;
    mu_csv_writer_init(&writer);
    mu_csv_writer_set_machine(&writer, "n");
    struct mu_csv_stage_row row = stage_row(-1);
    mu_csv_write_end(&writer, &row, -5, "", 0);
    check_text(&writer, "-0.000000001,1969-12-31 23:59:59.999999,n,12,forward,END,-0.000005,"
                        "\"node_id=18446744073709551615,parent_id=100,tid=77,tag=a\"\n");
    mu_csv_writer_free(&writer);
}

static void check_event(const char *name, const char *metadata, bool duration, const char *tail) {
    struct mu_csv_writer writer;
    mu_csv_writer_init(&writer);
    mu_csv_writer_set_machine(&writer, "n");
    struct mu_csv_event_row row = {.real_ns = 0,
                                   .step = 1,
                                   .type = MU_EVENT_COUNTER,
                                   .name = name,
                                   .name_length = strlen(name),
                                   .has_duration = duration,
                                   .duration_ns = 1500000,
                                   .metadata = metadata,
                                   .metadata_length = strlen(metadata),
                                   .track = track,
                                   .track_length = sizeof(track) - 1};
    char wanted[256];
    snprintf(wanted, sizeof(wanted), "0.000000000,1970-01-01 00:00:00.000000,n,1,%s\n", tail);
    mu_csv_write_event(&writer, &row);
    check_text(&writer, wanted);
    row.type = 99;
    mu_csv_write_event(&writer, &row);
    CHECK_INT(writer.length, 0);
    mu_csv_writer_free(&writer);
}

static void test_events(void) {
    check_event("loss", "value=1", false, "loss,COUNTER,,\"tid=77,tag=a,value=1\"");
    check_event("a,\"b\"", "", true, "\"a,\"\"b\"\"\",COUNTER,1.500000,\"tid=77,tag=a\"");
    check_event("x", "node_id=5,parent_id=1", false,
                "x,COUNTER,,\"node_id=5,parent_id=1,tid=77,tag=a\"");
    check_event("x", "say=\"hi\"", false, "x,COUNTER,,\"tid=77,tag=a,say=\"\"hi\"\"\"");
}

static void test_encoding(void) {
    char out[64];
    size_t length = mu_metadata_encode(out, "a=b,\"c\"%\r\n", 10);
    out[length] = '\0';
    CHECK_STR(out, "a%3Db%2C%22c%22%25%0D%0A");
    char text[MU_CSV_TRACK_MAX];
    length = mu_csv_track_text(text, 5, "x,y", 3);
    text[length] = '\0';
    CHECK_STR(text, ",tid=5,tag=x%2Cy");
}

int main(void) {
    setenv("TZ", "UTC", 1);
    tzset();
    test_stage_rows();
    test_times_before_1970();
    test_events();
    test_encoding();
    return check_report();
}
