/* The reader against journals made by hand: whole ones, and all that may be wrong with one. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "journal/journal_reader.h"
#include "tests/check.h"
#include "tests/journal/journal_builder.h"
#include "tests/stages/recorder_fixture.h"

/* --- helpers -------------------------------------------------------------------------------- */

/* The rows of an image, as a string that the caller frees. */
static char *rows_of_image(struct mu_journal_image *image, struct mu_recovered *recovered) {
    struct mu_csv_writer writer;
    mu_csv_writer_init(&writer);
    CHECK_INT(mu_journal_image_rows(image, &writer, recovered, NULL), MU_OK);
    char *text = calloc(1, writer.length + 1);
    if (text != NULL && writer.length > 0) {
        memcpy(text, writer.buffer, writer.length);
    }
    mu_csv_writer_free(&writer);
    return text;
}

static char *rows_of(const struct builder *builder, struct mu_recovered *recovered) {
    struct mu_journal_image image;
    memset(recovered, 0, sizeof(*recovered));
    if (!CHECK_INT(mu_journal_image_open(&image, builder->bytes, builder->size, NULL), MU_OK)) {
        return calloc(1, 1);
    }
    char *text = rows_of_image(&image, recovered);
    mu_journal_image_close(&image);
    return text;
}

static void check_refused(const struct builder *builder, size_t size, int code,
                          const char *message) {
    struct mu_journal_image image;
    struct mu_error err = {0};
    CHECK_INT(mu_journal_image_open(&image, builder->bytes, size, &err), code);
    CHECK_STR(err.message, message);
}

/* "<name>,<type>" of each row in its order, joined by blanks; the caller frees it. */
static char *order_of(const char *rows) {
    char *order = calloc(1, strlen(rows) + 1);
    for (const char *at = rows; order != NULL && *at != '\0'; at++) {
        const char *field = at;
        for (int comma = 0; comma < 4; comma++) {
            field = strchr(field, ',') + 1;
        }
        const char *type_end = strchr(strchr(field, ',') + 1, ',');
        strncat(order, field, (size_t)(type_end - field));
        strcat(order, " ");
        at = strchr(type_end, '\n');
    }
    return order;
}

static void check_order(const struct builder *builder, const char *wanted) {
    struct mu_recovered recovered;
    char *rows = rows_of(builder, &recovered);
    char *order = order_of(rows);
    CHECK_STR(order, wanted);
    CHECK_INT(recovered.bad_records, 0);
    free(order);
    free(rows);
}

/* Damage that costs the rows of its record and nothing else. */
static void check_bad(const struct builder *builder, uint64_t bad, const char *wanted) {
    struct mu_recovered recovered;
    char *rows = rows_of(builder, &recovered);
    char *order = order_of(rows);
    CHECK_STR(order, wanted);
    CHECK_INT(recovered.bad_records, bad);
    free(order);
    free(rows);
}

/* --- whole journals ------------------------------------------------------------------------- */

static void test_stages_and_open_stages(void) {
    struct builder builder;
    struct mu_recovered recovered;
    if (!CHECK(build_journal(&builder, 1))) {
        return;
    }
    uint32_t outer = build_string(&builder, "outer"), inner = build_string(&builder, "inner");
    build_open(&builder, 0, outer, 1000);
    build_stage(&builder, 0, inner, 2000, 5500)->depth = 1;
    char *rows = rows_of(&builder, &recovered);
    CHECK_INT(count_of(rows, "\n"), 3);
    CHECK_INT(count_of(rows, ",outer,START,,\"node_id=1,parent_id=0,tid=100\"\n"), 1);
    CHECK_INT(count_of(rows, "1750000000.000002000,"), 1);
    CHECK_INT(count_of(rows, "1750000000.000005500,"), 1);
    CHECK_INT(count_of(rows, ",inner,END,0.003500,\"node_id=2,"), 1);
    CHECK_INT(recovered.rows, 3);
    CHECK_INT(recovered.open_stages, 1);
    CHECK_INT(recovered.bad_records, 0);
    free(rows);
    free(builder.bytes);
}

static void test_threads_are_merged_by_time(void) {
    struct builder builder;
    build_journal(&builder, 3);
    uint32_t a = build_string(&builder, "a"), b = build_string(&builder, "b");
    build_stage(&builder, 2, b, 30, 60);
    build_stage(&builder, 0, a, 10, 40);
    check_order(&builder, "a,START b,START a,END b,END ");
    free(builder.bytes);
}

static void test_records_below_the_commit_are_in_the_csv(void) {
    struct builder builder;
    build_journal(&builder, 1);
    uint32_t a = build_string(&builder, "a"), b = build_string(&builder, "b");
    build_stage(&builder, 0, a, 10, 20);
    build_stage(&builder, 0, b, 30, 40);
    built_chunk(&builder, 0)->commits[0].drained = 1;
    atomic_store(&built_chunk(&builder, 0)->commits[0].epoch, 1);
    check_order(&builder, "b,START b,END ");
    free(builder.bytes);
}

/* A kill between the threads' commits of an epoch and that epoch's own: the older one counts. */
static void test_a_chunk_commit_of_a_later_epoch_does_not_count(void) {
    struct builder builder;
    build_journal(&builder, 1);
    uint32_t a = build_string(&builder, "a"), b = build_string(&builder, "b");
    struct mu_chunk_header *chunk = built_chunk(&builder, 0);
    build_stage(&builder, 0, a, 10, 20);
    build_stage(&builder, 0, b, 30, 40);
    chunk->commits[0].drained = 1;
    atomic_store(&chunk->commits[0].epoch, 1);
    chunk->commits[1].drained = 2;
    atomic_store(&chunk->commits[1].epoch, 2);
    check_order(&builder, "b,START b,END ");
    struct mu_commit *second = &built_header(&builder)->commits[0];
    second->real_offset_ns = BUILT_REAL_NS;
    atomic_store(&second->epoch, 2);
    check_order(&builder, "");
    free(builder.bytes);
}

static void test_the_newest_commit_counts_and_an_unfinished_one_does_not(void) {
    struct builder builder;
    struct mu_journal_image image;
    build_journal(&builder, 1);
    struct mu_commit *commits = built_header(&builder)->commits;
    commits[0].csv_bytes = 222;
    commits[0].csv_part = 3;
    commits[1].csv_bytes = 111;
    atomic_store(&commits[1].epoch, 7);
    for (uint64_t epoch = 0; epoch <= 8; epoch += 8) { /* 0: it was being written */
        atomic_store(&commits[0].epoch, epoch);
        CHECK_INT(mu_journal_image_open(&image, builder.bytes, builder.size, NULL), MU_OK);
        CHECK_INT(image.epoch, epoch == 0 ? 7 : 8);
        CHECK_INT(image.csv_bytes, epoch == 0 ? 111 : 222);
        CHECK_INT(image.csv_part, epoch == 0 ? 0 : 3);
    }
    free(builder.bytes);
}

/* The START of the outer stage is in the CSV: it is not written again, and the duration counts
 * from where that row put it. */
static void test_started_stages(void) {
    struct builder builder;
    struct mu_recovered recovered;
    build_journal(&builder, 1);
    uint32_t outer = build_string(&builder, "outer"), next = build_string(&builder, "next");
    struct mu_chunk_header *chunk = built_chunk(&builder, 0);
    struct mu_record *record = build_stage(&builder, 0, outer, 1000, 9000);
    build_open(&builder, 0, next, 9500);
    chunk->commits[0].started[0].node = record->node;
    chunk->commits[0].started[0].mono_ns = 1001;
    atomic_store(&chunk->commits[0].epoch, 1);
    char *rows = rows_of(&builder, &recovered);
    CHECK_INT(count_of(rows, "outer,START"), 0);
    CHECK_INT(count_of(rows, "outer,END,0.007999,"), 1);
    CHECK_INT(count_of(rows, "next,START"), 1);
    free(rows);
    free(builder.bytes);
}

/* Killed after the record was published and before the stage left the open ones. */
static void test_a_stage_that_is_both_finished_and_open_ends_once(void) {
    struct builder builder;
    build_journal(&builder, 1);
    uint32_t name = build_string(&builder, "s");
    struct mu_open_stage *open = build_open(&builder, 0, name, 10);
    build_stage(&builder, 0, name, 10, 20)->node = atomic_load(&open->node);
    check_order(&builder, "s,START s,END ");
    free(builder.bytes);
}

static void test_sixty_four_open_stages_and_deeper(void) {
    struct builder builder;
    struct mu_recovered recovered;
    build_journal(&builder, 1);
    uint32_t name = build_string(&builder, "deep");
    for (uint64_t i = 0; i < MU_OPEN_MAX; i++) {
        build_open(&builder, 0, name, 100 + i);
    }
    atomic_store(&built_chunk(&builder, 0)->depth, 4000000000);
    char *rows = rows_of(&builder, &recovered);
    CHECK_INT(count_of(rows, "deep,START"), MU_OPEN_MAX);
    CHECK_INT(recovered.open_stages, MU_OPEN_MAX);
    struct mu_journal_image image;
    struct mu_seen_thread *thread = malloc(sizeof(*thread));
    CHECK_INT(mu_journal_image_open(&image, builder.bytes, builder.size, NULL), MU_OK);
    CHECK(mu_journal_image_thread(&image, 0, thread));
    CHECK_INT(thread->depth, MU_OPEN_MAX);
    CHECK_INT(thread->open[63].start_ns, BUILT_REAL_NS + 163);
    free(thread);
    free(rows);
    free(builder.bytes);
}

/* Where a stage ended before younger ones, its slot is free until another takes it. */
static void test_open_stages_around_a_free_slot(void) {
    struct builder builder;
    struct mu_journal_image image;
    build_journal(&builder, 1);
    uint32_t old = build_string(&builder, "old"), young = build_string(&builder, "young");
    build_open(&builder, 0, young, 30); /* in a slot that was free */
    atomic_store(&build_open(&builder, 0, old, 10)->node, 0);
    build_open(&builder, 0, old, 20);
    check_order(&builder, "old,START young,START ");
    struct mu_seen_thread *thread = malloc(sizeof(*thread));
    CHECK_INT(mu_journal_image_open(&image, builder.bytes, builder.size, NULL), MU_OK);
    CHECK(mu_journal_image_thread(&image, 0, thread));
    CHECK_INT(thread->depth, 2);
    CHECK_INT(thread->open[0].start_ns, BUILT_REAL_NS + 20);
    CHECK_INT(thread->open[1].start_ns, BUILT_REAL_NS + 30);
    free(thread);
    free(builder.bytes);
}

/* Stages that overlap: rows are in the order of time, each START before its END. */
static void test_stages_that_overlap(void) {
    struct builder builder;
    build_journal(&builder, 1);
    uint32_t first = build_string(&builder, "first"), second = build_string(&builder, "second");
    uint32_t third = build_string(&builder, "third");
    build_stage(&builder, 0, first, 10, 40);
    build_stage(&builder, 0, second, 20, 60)->depth = 1;
    build_stage(&builder, 0, third, 50, 70);
    check_order(&builder, "first,START second,START first,END third,START second,END third,END ");
    free(builder.bytes);
}

static void test_an_event_over_the_end_of_the_ring(void) {
    struct builder builder;
    struct mu_recovered recovered;
    char metadata[1200];
    build_journal(&builder, 1);
    memcpy(metadata, "key=", 4);
    memset(metadata + 4, 'm', sizeof(metadata) - 5);
    metadata[sizeof(metadata) - 1] = '\0';
    struct mu_chunk_header *chunk = built_chunk(&builder, 0);
    uint64_t start = 5 * (uint64_t)MU_RING_SLOTS - 3;
    chunk->commits[0].drained = start;
    atomic_store(&chunk->commits[0].epoch, 1);
    atomic_store(&chunk->head, start);
    build_event(&builder, 0, 3, "over the end", metadata, 500);
    build_stage(&builder, 0, build_string(&builder, "after"), 600, 700);
    char *rows = rows_of(&builder, &recovered);
    CHECK_INT(count_of(rows, "over the end,INSTANT"), 1);
    CHECK_INT(count_of(rows, metadata), 1);
    CHECK_INT(count_of(rows, "after,END"), 1);
    CHECK_INT(recovered.bad_records, 0);
    free(rows);
    free(builder.bytes);
}

static void test_a_full_ring(void) {
    struct builder builder;
    struct mu_recovered recovered;
    build_journal(&builder, 1);
    uint32_t name = build_string(&builder, "s");
    for (uint64_t i = 0; i < MU_RING_SLOTS; i++) {
        build_stage(&builder, 0, name, 10 * i, 10 * i + 5);
    }
    char *rows = rows_of(&builder, &recovered);
    CHECK_INT(recovered.rows, 2 * MU_RING_SLOTS);
    free(rows);
    free(builder.bytes);
}

/* The thread is gone: what it recorded counts, what it had open does not. */
static void test_a_retired_chunk(void) {
    struct builder builder;
    struct mu_journal_image image;
    build_journal(&builder, 1);
    uint32_t name = build_string(&builder, "s");
    build_open(&builder, 0, name, 10);
    build_stage(&builder, 0, name, 20, 30)->depth = 1;
    atomic_store(&built_chunk(&builder, 0)->state, MU_CHUNK_RETIRED);
    check_order(&builder, "s,START s,END ");
    struct mu_seen_thread *thread = malloc(sizeof(*thread));
    CHECK_INT(mu_journal_image_open(&image, builder.bytes, builder.size, NULL), MU_OK);
    CHECK(!mu_journal_image_thread(&image, 0, thread));
    CHECK(!mu_journal_image_thread(&image, 1, thread));
    free(thread);
    free(builder.bytes);
}

/* The system's clock was set between the first anchor and the commit: durations stay, and times
 * are by the offset of the commit. */
static void test_a_step_of_the_clock(void) {
    struct builder builder;
    struct mu_recovered recovered;
    build_journal(&builder, 1);
    struct mu_journal_header *header = built_header(&builder);
    header->anchor_sets[0].anchors[1].real_ns =
        header->anchor_sets[0].anchors[1].mono_ns - 3600000000000;
    header->commits[1].real_offset_ns = BUILT_REAL_NS - 3600000000000;
    header->commits[1].user_offset_ns = 7;
    build_stage(&builder, 0, build_string(&builder, "s"), 1000, 3000);
    char *rows = rows_of(&builder, &recovered);
    CHECK_INT(count_of(rows, "1749996400.000001007,"), 1);
    CHECK_INT(count_of(rows, "1749996400.000003007,"), 1);
    CHECK_INT(count_of(rows, "s,END,0.002000,"), 1);
    free(rows);
    free(builder.bytes);
}

static void test_rows_that_waited_for_gpu_times(void) {
    struct builder builder;
    build_journal(&builder, 1);
    uint32_t held = build_string(&builder, "held"), written = build_string(&builder, "written");
    struct mu_chunk_header *chunk = built_chunk(&builder, 0);
    build_stage(&builder, 0, held, 10, 20);
    build_stage(&builder, 0, written, 30, 40);
    chunk->commits[0].drained = 2;
    chunk->commits[0].held_count = 1;
    chunk->commits[0].held[0] = 2;
    atomic_store(&chunk->commits[0].epoch, 1);
    check_order(&builder, "held,END ");
    chunk->commits[0].held[0] = 3; /* before the ring's first record */
    check_bad(&builder, 1, "");
    chunk->commits[0].held_count = UINT64_MAX;
    check_bad(&builder, 0, "");
    free(builder.bytes);
}

/* --- what is wrong with a journal ----------------------------------------------------------- */

static void test_foreign_and_newer_files(void) {
    struct builder builder;
    build_journal(&builder, 1);
    struct mu_journal_header *header = built_header(&builder);
    check_refused(&builder, 100, MU_ERR_FORMAT, "not a journal: only 100 bytes");
    check_refused(&builder, MU_JOURNAL_HEADER_BYTES, MU_ERR_FORMAT,
                  "the journal is cut short: 8192 bytes");
    header->version = 2;
    check_refused(&builder, builder.size, MU_ERR_VERSION,
                  "the journal has version 2; this program reads up to 1");
    header->version = 0;
    check_refused(&builder, builder.size, MU_ERR_FORMAT, "the journal's header is damaged");
    header->version = 1;
    header->byte_order = 0x04030201;
    check_refused(&builder, builder.size, MU_ERR_FORMAT,
                  "the journal was written on a machine of the other byte order");
    header->byte_order = MU_JOURNAL_BYTE_ORDER;
    header->magic[3] ^= 1;
    check_refused(&builder, builder.size, MU_ERR_FORMAT,
                  "not a journal: the first bytes are others");
    free(builder.bytes);
}

static void test_offsets_of_the_header(void) {
    struct builder builder;
    build_journal(&builder, 1);
    struct mu_journal_header *header = built_header(&builder);
    uint64_t *offsets[] = {&header->strings_offset, &header->blob_offset, &header->chunks_offset};
    for (int i = 0; i < 3; i++) {
        *offsets[i] += 1;
        check_refused(&builder, builder.size, MU_ERR_FORMAT, "the journal's header is damaged");
        *offsets[i] -= 1;
    }
    uint32_t *sizes[] = {&header->header_bytes, &header->chunk_bytes, &header->chunks_max};
    for (int i = 0; i < 3; i++) {
        *sizes[i] = 0xffffffff - *sizes[i];
        check_refused(&builder, builder.size, MU_ERR_FORMAT, "the journal's header is damaged");
        *sizes[i] = 0xffffffff - *sizes[i];
    }
    free(builder.bytes);
}

/* Chunks that the file has not are counted as bad, and the others read. */
static void test_a_cut_file_and_huge_counts(void) {
    struct builder builder;
    build_journal(&builder, 2);
    struct mu_journal_header *header = built_header(&builder);
    uint32_t name = build_string(&builder, "s");
    build_stage(&builder, 0, name, 10, 20);
    build_stage(&builder, 1, name, 30, 40);
    builder.size -= 1;
    check_bad(&builder, 1, "s,START s,END ");
    builder.size += 1;
    atomic_store(&header->chunk_count, 0xffffffff);
    check_bad(&builder, MU_CHUNKS_MAX - 2, "s,START s,END s,START s,END ");
    atomic_store(&header->chunk_count, 2);
    atomic_store(&header->string_count, 0xffffffff);
    header->anchor_sets[0].count = 0xffffffff;
    check_order(&builder, "s,START s,END s,START s,END ");
    free(builder.bytes);
}

static void test_strings_out_of_range(void) {
    struct builder builder;
    build_journal(&builder, 1);
    uint32_t name = build_string(&builder, "s");
    struct mu_string_entry *entry =
        (struct mu_string_entry *)(void *)(builder.bytes + MU_STRINGS_OFFSET) + name;
    build_stage(&builder, 0, name, 10, 20);
    struct mu_string_entry bad[] = {{MU_STRING_BLOB_BYTES, 1},
                                    {0, MU_STRING_BYTES_MAX + 1},
                                    {0xffffffff, 255},
                                    {1, 0xffffffff}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        *entry = bad[i];
        check_order(&builder, ",START ,END ");
    }
    built_slot(built_chunk(&builder, 0), 0)->name = 0xffff;
    check_order(&builder, ",START ,END ");
    free(builder.bytes);
}

static void test_heads_and_commits_that_do_not_fit(void) {
    struct builder builder;
    build_journal(&builder, 1);
    struct mu_chunk_header *chunk = built_chunk(&builder, 0);
    build_stage(&builder, 0, build_string(&builder, "s"), 10, 20);
    atomic_store(&chunk->commits[0].epoch, 1);
    uint64_t heads[] = {MU_RING_SLOTS + 1, UINT64_MAX, UINT64_MAX / 2};
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        atomic_store(&chunk->head, heads[i]);
        check_bad(&builder, 1, "");
    }
    atomic_store(&chunk->head, 1);
    chunk->commits[0].drained = 2; /* more than there is */
    check_bad(&builder, 1, "");
    free(builder.bytes);
}

static void test_lengths_of_records(void) {
    struct builder builder;
    build_journal(&builder, 1);
    uint32_t name = build_string(&builder, "s");
    build_stage(&builder, 0, name, 10, 20);
    struct mu_record *torn = build_stage(&builder, 0, name, 30, 40);
    torn->slots = 2; /* the last record reaches beyond the head */
    check_bad(&builder, 1, "s,START s,END ");
    torn->slots = 0;
    check_bad(&builder, 1, "s,START s,END ");
    torn->slots = 0xffff;
    check_bad(&builder, 1, "s,START s,END ");
    torn->slots = 1;
    torn->flags = MU_RECORD_INLINE_NAME; /* without a slot for it */
    check_bad(&builder, 2, "s,START s,END ");
    torn->flags = 0;
    torn->kind = 77;
    check_bad(&builder, 1, "s,START s,END ");
    free(builder.bytes);
}

static void test_lengths_of_payloads(void) {
    struct builder builder;
    build_journal(&builder, 1);
    struct mu_record *record = build_event(&builder, 0, 3, "name", "k=v", 10);
    struct mu_record_payload *payload = (void *)(record + 1);
    struct mu_record_payload bad[] = {{57, 0}, {0, 57}, {30, 27}, {0xffffffff, 2}, {2, 0xffffffff}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        *payload = bad[i];
        check_bad(&builder, 1, "");
    }
    *payload = (struct mu_record_payload){56, 0};
    record->event = 99; /* no such type */
    check_bad(&builder, 1, "");
    free(builder.bytes);
}

/* Sums of such times overflow: they wrap, and the rows are there. */
static void test_extreme_times(void) {
    struct builder builder;
    struct mu_recovered recovered;
    build_journal(&builder, 1);
    struct mu_journal_header *header = built_header(&builder);
    header->anchor_sets[0].anchors[0].mono_ns = INT64_MIN;
    header->anchor_sets[0].anchors[1].mono_ns = INT64_MAX;
    header->anchor_sets[0].anchors[1].ticks = 1;
    header->commits[1].real_offset_ns = INT64_MAX;
    header->commits[1].user_offset_ns = INT64_MAX;
    uint32_t name = build_string(&builder, "s");
    build_stage(&builder, 0, name, UINT64_MAX, 0);
    build_stage(&builder, 0, name, 0, UINT64_MAX);
    struct mu_record *event = build_event(&builder, 0, 4, "e", "value=1", UINT64_MAX);
    event->flags = MU_RECORD_REAL_TIME | MU_RECORD_HAS_DURATION;
    event->end = (uint64_t)INT64_MIN;
    event->parent = (uint64_t)INT64_MIN;
    event->step = INT64_MIN;
    char *rows = rows_of(&builder, &recovered);
    CHECK_INT((int)mu_csv_count_rows(rows, strlen(rows)), 5);
    struct mu_journal_image image;
    struct mu_seen_thread *thread = malloc(sizeof(*thread));
    CHECK_INT(mu_journal_image_open(&image, builder.bytes, builder.size, NULL), MU_OK);
    CHECK(mu_journal_image_thread(&image, 0, thread));
    free(thread);
    free(rows);
    free(builder.bytes);
}

/* Texts of the header need not end within their fields. */
static void test_texts_without_an_end(void) {
    struct builder builder;
    struct mu_journal_image image;
    char path[4096];
    build_journal(&builder, 1);
    struct mu_journal_header *header = built_header(&builder);
    memset(header->host, 'h', sizeof(header->host));
    memset(header->csv_name, 'c', sizeof(header->csv_name));
    memset(header->log_dir, 'd', sizeof(header->log_dir));
    build_stage(&builder, 0, build_string(&builder, "s"), 10, 20);
    check_order(&builder, "s,START s,END ");
    CHECK_INT(mu_journal_image_open(&image, builder.bytes, builder.size, NULL), MU_OK);
    mu_journal_image_csv_path(&image, "/x/rank_0.1.2.journal", path, sizeof(path));
    CHECK_STR(path, "");
    free(builder.bytes);
}

/* --- the CSV of a journal ------------------------------------------------------------------- */

static void check_csv_path(const struct builder *builder, const char *journal, const char *wanted) {
    struct mu_journal_image image;
    char path[4096];
    CHECK_INT(mu_journal_image_open(&image, builder->bytes, builder->size, NULL), MU_OK);
    mu_journal_image_csv_path(&image, journal, path, sizeof(path));
    CHECK_STR(path, wanted);
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void test_names_that_lead_elsewhere(void) {
    struct builder builder;
    build_journal(&builder, 0);
    char *name = built_header(&builder)->csv_name;
    const char *bad[] = {"", "../etc/passwd.csv", ".csv", "passwd", "a.csv/b"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        memset(name, 0, 128);
        memcpy(name, bad[i], strlen(bad[i]));
        check_csv_path(&builder, "/logs/rank_0.1.2.journal", "");
    }
    free(builder.bytes);
}

/* The commit speaks of the part that was current then, whatever that is called now. */
static void test_the_part_of_the_commit(void) {
    struct fixture fixture;
    struct builder builder;
    char journal[128], current[128], part[128];
    fixture_directory(&fixture);
    build_journal(&builder, 0);
    snprintf(journal, sizeof(journal), "%s/rank_0.1.2.journal", fixture.directory);
    snprintf(current, sizeof(current), "%s/profile_rank_0.csv", fixture.directory);
    snprintf(part, sizeof(part), "%s/profile_rank_0.part0003.csv", fixture.directory);
    built_header(&builder)->commits[1].csv_part = 2;
    write_file(current, "");
    check_csv_path(&builder, journal, current);
    write_file(part, "");
    check_csv_path(&builder, journal, part);
    fixture_remove(&fixture);
    memcpy(built_header(&builder)->log_dir, "/nowhere", 9);
    check_csv_path(&builder, journal, "/nowhere/profile_rank_0.csv");
    free(builder.bytes);
}

static void check_prefix(const char *csv, uint64_t committed, uint64_t wanted) {
    struct builder builder;
    struct mu_journal_image image;
    uint64_t bytes = 0;
    char path[] = "/tmp/mu-test-XXXXXX";
    int fd = mkstemp(path);
    CHECK(write(fd, csv, strlen(csv)) == (ssize_t)strlen(csv));
    build_journal(&builder, 0);
    built_header(&builder)->commits[1].csv_bytes = committed;
    CHECK_INT(mu_journal_image_open(&image, builder.bytes, builder.size, NULL), MU_OK);
    CHECK_INT(mu_journal_image_csv_prefix(&image, fd, &bytes, NULL), MU_OK);
    CHECK_INT(bytes, wanted);
    close(fd);
    unlink(path);
    free(builder.bytes);
}

static void test_how_much_of_the_csv_stands(void) {
    enum { LARGE = 200000 };
    char *csv = calloc(1, LARGE + 1000);
    size_t head = mu_csv_header_length;
    strcpy(csv, mu_csv_header);
    strcat(csv, "1,row\n2,row\n");
    check_prefix(csv, head + 6, head + 6);   /* the rest is not committed */
    check_prefix(csv, head + 12, head + 12); /* all of it is */
    check_prefix(csv, head + 5, head + 12);  /* not a row's end: another file */
    check_prefix(csv, head + 13, head + 12); /* more than there is */
    check_prefix(csv, UINT64_MAX, head + 12);
    check_prefix(csv, 0, head + 12); /* less than the header */
    memset(csv + head + 12, 'x', LARGE);
    csv[head + 12 + LARGE] = '\0';
    check_prefix(csv, head + 6, head + 6);
    free(csv);
}

/* --- files ---------------------------------------------------------------------------------- */

static void check_file_refused(const char *path, int code) {
    struct mu_journal_image image;
    struct mu_error err = {0};
    CHECK_INT(mu_journal_image_read(&image, path, &err), code);
    CHECK(err.message[0] != '\0');
    CHECK(image.owned == NULL);
}

static void test_files_that_are_no_journals(void) {
    struct fixture fixture;
    char path[128];
    fixture_directory(&fixture);
    check_file_refused(fixture.directory, MU_ERR_FORMAT);
    snprintf(path, sizeof(path), "%s/file", fixture.directory);
    check_file_refused(path, MU_ERR_IO);
    CHECK(!mu_journal_is_held(path));
    CHECK_INT(mkfifo(path, 0600), 0);
    check_file_refused(path, MU_ERR_FORMAT);
    unlink(path);
    write_file(path, "short");
    check_file_refused(path, MU_ERR_FORMAT);
    CHECK_INT(truncate(path, MU_JOURNAL_BYTES), 0);
    check_file_refused(path, MU_ERR_FORMAT);
    fixture_remove(&fixture);
}

static void write_journal(const struct builder *builder, const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(write(fd, builder->bytes, builder->size) == (ssize_t)builder->size);
    close(fd);
}

static void test_a_file_reads_as_its_bytes_do(void) {
    struct fixture fixture;
    struct builder builder;
    struct mu_journal_image image;
    struct mu_recovered recovered;
    char path[128];
    fixture_directory(&fixture);
    build_journal(&builder, 2);
    uint32_t name = build_string(&builder, "stage");
    build_open(&builder, 1, name, 5);
    build_stage(&builder, 0, name, 10, 20);
    build_event(&builder, 1, 4, "loss", "value=0.5", 15);
    snprintf(path, sizeof(path), "%s/file", fixture.directory);
    write_journal(&builder, path);
    char *wanted = rows_of(&builder, &recovered);
    CHECK_INT(mu_journal_image_read(&image, path, NULL), MU_OK);
    char *rows = rows_of_image(&image, &recovered);
    CHECK_STR(rows, wanted);
    CHECK_INT((int)mu_csv_count_rows(rows, strlen(rows)), 4);
    free(rows);
    mu_journal_image_close(&image);
    for (size_t size = MU_JOURNAL_HEADER_BYTES; size < builder.size; size += 99991) {
        CHECK_INT(truncate(path, (off_t)size), 0);
        int code = mu_journal_image_read(&image, path, NULL);
        CHECK_INT(code, size < MU_CHUNKS_OFFSET ? MU_ERR_FORMAT : MU_OK);
        mu_journal_image_close(&image);
    }
    free(wanted);
    free(builder.bytes);
    fixture_remove(&fixture);
}

/* Whether somebody has opened what is watched since it was asked last. */
static bool was_opened(int watch) {
    char events[4096];
    return read(watch, events, sizeof(events)) > 0;
}

/* A journal names where it moved to. Others may have made it: what is not a file is not even
 * opened.
 */
static void test_where_a_journal_moved_to(void) {
    struct fixture fixture;
    struct builder builder;
    char path[128];
    fixture_directory(&fixture);
    build_journal(&builder, 1);
    char *other = built_header(&builder)->moved_to;
    snprintf(other, MU_JOURNAL_PATH_BYTES, "%s/other", fixture.directory);
    snprintf(path, sizeof(path), "%s/file", fixture.directory);
    write_journal(&builder, path);
    CHECK(!mu_journal_has_moved(path));
    CHECK_INT(mkfifo(other, 0600), 0);
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    CHECK(inotify_add_watch(watch, other, IN_OPEN) >= 0);
    CHECK(!mu_journal_has_moved(path));
    CHECK(!was_opened(watch));
    close(watch);
    unlink(other);
    write_journal(&builder, other);
    CHECK(mu_journal_has_moved(path));
    check_file_refused(path, MU_ERR_FORMAT);
    free(builder.bytes);
    fixture_remove(&fixture);
}

static void test_the_last_finished_stages(void) {
    struct builder builder;
    struct mu_journal_image image;
    build_journal(&builder, 1);
    uint32_t name = build_string(&builder, "s");
    for (uint64_t i = 0; i < 40; i++) {
        build_stage(&builder, 0, name, 10 * i, 10 * i + 4);
        build_event(&builder, 0, 3, "e", "k=v", 10 * i + 5);
    }
    build_stage(&builder, 0, name, 50, 40); /* ends before it starts */
    struct mu_seen_thread *thread = malloc(sizeof(*thread));
    CHECK_INT(mu_journal_image_open(&image, builder.bytes, builder.size, NULL), MU_OK);
    CHECK(mu_journal_image_thread(&image, 0, thread));
    CHECK_INT(thread->last_count, MU_SEEN_LAST_MAX);
    for (int i = 0; i < thread->last_count; i++) {
        CHECK_INT(thread->last[i].start_ns, BUILT_REAL_NS + 10 * (39 - i));
    }
    free(thread);
    free(builder.bytes);
}

int main(void) {
    test_stages_and_open_stages();
    test_threads_are_merged_by_time();
    test_records_below_the_commit_are_in_the_csv();
    test_a_chunk_commit_of_a_later_epoch_does_not_count();
    test_the_newest_commit_counts_and_an_unfinished_one_does_not();
    test_started_stages();
    test_a_stage_that_is_both_finished_and_open_ends_once();
    test_sixty_four_open_stages_and_deeper();
    test_open_stages_around_a_free_slot();
    test_stages_that_overlap();
    test_an_event_over_the_end_of_the_ring();
    test_a_full_ring();
    test_a_retired_chunk();
    test_a_step_of_the_clock();
    test_rows_that_waited_for_gpu_times();
    test_foreign_and_newer_files();
    test_offsets_of_the_header();
    test_a_cut_file_and_huge_counts();
    test_strings_out_of_range();
    test_heads_and_commits_that_do_not_fit();
    test_lengths_of_records();
    test_lengths_of_payloads();
    test_extreme_times();
    test_texts_without_an_end();
    test_names_that_lead_elsewhere();
    test_the_part_of_the_commit();
    test_how_much_of_the_csv_stands();
    test_files_that_are_no_journals();
    test_a_file_reads_as_its_bytes_do();
    test_where_a_journal_moved_to();
    test_the_last_finished_stages();
    return check_report();
}
