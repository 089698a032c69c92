#include "csv/once_rows.h"

#include <stdio.h>
#include <string.h>

#include "base/event.h"
#include "tests/check.h"

static void add(struct mu_once_rows *once, const char *name, const char *metadata) {
    struct mu_csv_writer writer;
    mu_csv_writer_init(&writer);
    mu_csv_writer_set_machine(&writer, "host-a");
    const struct mu_csv_event_row row = {.real_ns = 1500000000,
                                         .type = MU_EVENT_INSTANT,
                                         .name = name,
                                         .name_length = strlen(name),
                                         .metadata = metadata,
                                         .metadata_length = strlen(metadata),
                                         .track = ",tid=7",
                                         .track_length = 6};
    mu_once_rows_add(once, &writer, &row);
    mu_csv_writer_free(&writer);
}

static int has(const struct mu_once_rows *once, const char *text) {
    return memmem(once->writer.buffer, once->writer.length, text, strlen(text)) != NULL;
}

static void test_rows_are_kept_with_their_mark(void) {
    static struct mu_once_rows once;
    add(&once, "my_utils.sync", "stage=a");
    add(&once, "my_utils.sync", "stage=a");
    add(&once, "my_utils.sync", "stage=b");
    add(&once, "my_utils.ready", "step=1");
    add(&once, "mine", "");
    CHECK_INT(once.count, 2);
    CHECK_INT(mu_csv_count_rows(once.writer.buffer, once.writer.length), 2);
    CHECK(has(&once, ",host-a,0,my_utils.sync,INSTANT,,\"tid=7,repeated=1,stage=a\"\n"));
    mu_once_rows_free(&once);
}

static void test_of_some_kinds_the_last_row_counts(void) {
    static struct mu_once_rows once;
    add(&once, "my_utils.clock_sync", "error_ns=1");
    add(&once, "my_utils.group", "label=a");
    add(&once, "my_utils.clock_sync", "error_ns=22");
    add(&once, "my_utils.run_end", "error=A");
    add(&once, "my_utils.clock_sync", "error_ns=333");
    CHECK_INT(once.count, 3);
    CHECK(!has(&once, "error_ns=1\""));
    CHECK(!has(&once, "error_ns=22\""));
    CHECK(has(&once, "error_ns=333\""));
    CHECK(has(&once, "label=a"));
    size_t bytes = 0;
    for (uint32_t i = 0; i < once.count; i++) {
        bytes += once.rows[i].bytes;
    }
    CHECK_INT(bytes, once.writer.length);
    mu_once_rows_free(&once);
}

static void test_they_are_bounded(void) {
    static struct mu_once_rows once;
    static char metadata[30000];
    memset(metadata, 'x', sizeof(metadata) - 1);
    for (int i = 0; i < 100; i++) {
        snprintf(metadata, sizeof(metadata), "%07d", i);
        metadata[7] = 'x';
        add(&once, "my_utils.bucket", metadata);
    }
    CHECK(once.count > 30 && once.count < 40);
    CHECK(once.writer.length <= MU_ONCE_BYTES_MAX);
    for (int i = 0; i < MU_ONCE_ROWS_MAX + 5; i++) {
        snprintf(metadata, sizeof(metadata), "label=%d", i);
        add(&once, "my_utils.group", metadata);
    }
    CHECK(once.count <= MU_ONCE_ROWS_MAX);
    CHECK(once.writer.length <= MU_ONCE_BYTES_MAX);
    mu_once_rows_free(&once);
}

int main(void) {
    test_rows_are_kept_with_their_mark();
    test_of_some_kinds_the_last_row_counts();
    test_they_are_bounded();
    return check_report();
}
