/* Files made to do harm, from the grammar of each format that the engine reads: profile CSVs whose
 * tracks cross, whose ids are used again, with huge numbers and rows that are cut, and journals
 * with fields overwritten. A reader may refuse them. It may not crash, nor take more than a bounded
 * time for one of them, nor keep memory. With many rows in one file its time grows with them, not
 * with their square.
 *
 *   test_hostile [COUNT [SEED]]    the defaults are 3000 and 1; input n has the seed SEED + n, so
 *                                  what was cut off goes on with a later SEED
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "journal/journal_reader.h"
#include "tests/check.h"
#include "tests/journal/journal_builder.h"
#include "trace/convert.h"

enum { ROWS_MAX = 160, ROW_BYTES = 400, PATCHES_MAX = 24, CHUNKS = 2 };

#define LONGEST_S 10.0 /* of the processor, for one input; a sanitizer's is slower */

static uint64_t state;

static uint64_t chance(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static void begin(uint64_t seed) {
    state = seed * 0x9E3779B97F4A7C15u ^ 0xD1B54A32D192ED03u;
    state += state == 0;
    chance(2);
}

static double processor_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

struct text {
    char *bytes; /* owned */
    size_t length, size;
};

static void put_row(struct text *csv, const char *time, const char *step, const char *name,
                    const char *type, const char *duration, const char *metadata) {
    if (csv->size - csv->length < ROW_BYTES) {
        return;
    }
    int length = snprintf(csv->bytes + csv->length, ROW_BYTES, "%s,,host,%s,%s,%s,%s,\"%s\"\n",
                          time, step, name, type, duration, metadata);
    csv->length += (size_t)(length < ROW_BYTES ? length : ROW_BYTES - 1);
}

/* --- the grammar of profile CSVs --- */

static const char *const numbers[] = {
    "0",
    "-1",
    "1",
    "4611686018.427387904",
    "9223372036.854775807",
    "-4611686018.4",
    "9223372036854775807",
    "-9223372036854775808",
    "99999999999999999999999",
    "1e999",
    "nan",
    "1750000000.5",
    "",
    "0.0000000000000000001",
};

static const char *a_number(void) {
    return numbers[chance(sizeof(numbers) / sizeof(numbers[0]))];
}

static const char *const types[] = {"START",      "END",      "START",       "END",
                                    "INSTANT",    "COUNTER",  "ASYNC_START", "ASYNC_END",
                                    "FLOW_START", "FLOW_END", "MARK",        ""};

static void a_row(struct text *csv) {
    char time[64], step[32], name[40], duration[64], metadata[200];
    bool odd = chance(8) == 0;
    snprintf(time, sizeof(time), "%s17500000%02" PRIu64 ".%09" PRIu64,
             odd && chance(4) == 0 ? "9" : "", chance(3), chance(60) * 1000);
    snprintf(step, sizeof(step), "%s", odd ? a_number() : chance(2) == 0 ? "1" : "2");
    snprintf(name, sizeof(name), chance(9) == 0 ? "my_utils.process" : "s%" PRIu64, chance(5));
    snprintf(duration, sizeof(duration), "%s", chance(3) == 0 ? a_number() : "0.5");
    snprintf(metadata, sizeof(metadata),
             "node_id=%" PRIu64 ",parent_id=%" PRIu64 ",tid=%" PRIu64
             ",cuda_ts=%s,cuda_ms=%s,stream=%" PRIu64 ",id=%" PRIu64,
             chance(12) == 0 ? chance(1u << 20) << 40 | chance(9) : chance(9), chance(9), chance(4),
             chance(2) == 0 ? a_number() : "1750000000.5", chance(2) == 0 ? a_number() : "3",
             chance(3), chance(4));
    put_row(csv, time, step, name, types[chance(sizeof(types) / sizeof(types[0]))], duration,
            metadata);
}

static void cut_and_flip(struct text *csv) {
    for (uint64_t i = chance(4); i > 0 && csv->length > 2; i--) {
        size_t at = chance(csv->length), length = chance(80);
        length = length < csv->length - at ? length : csv->length - at;
        if (chance(2) == 0) {
            csv->bytes[at] ^= (char)(1 << chance(8));
        } else {
            memmove(csv->bytes + at, csv->bytes + at + length, csv->length - at - length);
            csv->length -= length;
        }
    }
}

static void convert(const struct text *csv, enum mu_trace_format format,
                    struct mu_convert_counts *counts) {
    struct mu_trace_job job;
    struct mu_converter converter;
    struct mu_convert_options options = {.rank = 1, .with_args = 1};
    struct mu_csv_input input = {
        .name = "hostile", .fd = -1, .data = csv->bytes, .length = csv->length};
    CHECK_INT(mu_trace_job_init(&job, -1, format, format == MU_TRACE_JSON, NULL), MU_OK);
    if (mu_converter_init(&converter, &job, &options, NULL) == MU_OK &&
        mu_converter_part(&converter, &input, NULL) == MU_OK) {
        mu_error_kept(mu_converter_finish(&converter, NULL));
    }
    *counts = converter.counts;
    mu_converter_reset(&converter);
    mu_error_kept(mu_trace_job_finish(&job, NULL));
    mu_trace_job_reset(&job);
}

static void read_a_csv(struct text *csv) {
    static const enum mu_trace_format formats[] = {MU_TRACE_JSON, MU_TRACE_PERFETTO,
                                                   MU_TRACE_SEED_JSON};
    struct mu_convert_counts counts;
    csv->length = 0;
    for (uint64_t rows = chance(ROWS_MAX); rows > 0; rows--) {
        a_row(csv);
    }
    if (chance(2) == 0) {
        cut_and_flip(csv);
    }
    convert(csv, formats[chance(3)], &counts);
    CHECK(counts.slices <= 3 * counts.rows + 1); /* with its CUDA stream and its step */
}

/* --- journals: fields overwritten, the end cut off --- */

static size_t a_place(void) {
    size_t chunk = MU_CHUNKS_OFFSET + chance(CHUNKS) * MU_CHUNK_BYTES;
    switch (chance(4)) {
    case 0:
        return chance(MU_JOURNAL_HEADER_BYTES - 8);
    case 1:
        return MU_STRINGS_OFFSET + chance(256);
    case 2:
        return chunk + chance(MU_CHUNK_HEADER_BYTES - 8);
    default:
        return chunk + MU_CHUNK_HEADER_BYTES + chance(64 * (size_t)MU_SLOT_BYTES);
    }
}

static void read_image(const uint8_t *bytes, size_t size) {
    static struct mu_seen_thread thread;
    struct mu_journal_image image;
    struct mu_csv_writer writer;
    struct mu_recovered recovered;
    if (mu_journal_image_open(&image, bytes, size, NULL) != MU_OK) {
        return;
    }
    mu_csv_writer_init(&writer);
    mu_error_kept(mu_journal_image_rows(&image, &writer, &recovered, NULL));
    for (uint32_t i = 0; i < image.chunk_count; i++) {
        mu_journal_image_thread(&image, i, &thread);
    }
    mu_csv_writer_free(&writer);
    mu_journal_image_close(&image);
}

static void read_a_journal(struct builder *builder) {
    static const uint64_t odd[] = {0, 1, UINT64_MAX, INT64_MAX, (uint64_t)1 << 63, 1u << 31, 4096};
    size_t places[PATCHES_MAX];
    uint64_t before[PATCHES_MAX], count = chance(PATCHES_MAX);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t value = chance(2) == 0 ? odd[chance(sizeof(odd) / sizeof(odd[0]))] : state;
        places[i] = a_place();
        memcpy(&before[i], builder->bytes + places[i], sizeof(before[i]));
        memcpy(builder->bytes + places[i], &value, (size_t)1 << chance(4));
    }
    read_image(builder->bytes, chance(16) == 0 ? chance(builder->size) : builder->size);
    while (count-- > 0) {
        memcpy(builder->bytes + places[count], &before[count], sizeof(before[count]));
    }
}

static bool fill(struct builder *builder) {
    if (!build_journal(builder, CHUNKS)) {
        return false;
    }
    uint32_t outer = build_string(builder, "outer"), inner = build_string(builder, "inner, \"x\"");
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
        build_open(builder, chunk, outer, 10);
        for (uint64_t i = 0; i < 6; i++) {
            build_stage(builder, chunk, inner, 100 * i + 20, 100 * i + 70)->depth = 1;
        }
    }
    return true;
}

static void test_no_input_does_harm(uint64_t count, uint64_t seed) {
    struct text csv = {.bytes = malloc((size_t)ROWS_MAX * ROW_BYTES),
                       .size = (size_t)ROWS_MAX * ROW_BYTES};
    struct builder builder;
    double longest = 0;
    if (!CHECK(csv.bytes != NULL) || !CHECK(fill(&builder))) {
        free(csv.bytes);
        return;
    }
    for (uint64_t i = 0; i < count && check_failed == 0; i++) {
        double began = processor_s();
        begin(seed + i);
        if (i % 2 == 0) {
            read_a_csv(&csv);
        } else {
            read_a_journal(&builder);
        }
        double took = processor_s() - began;
        longest = took > longest ? took : longest;
        if (!CHECK(took < LONGEST_S) || check_failed > 0) {
            printf("(the input of seed %" PRIu64 ") ", seed + i);
        }
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("(%" PRIu64 " inputs, the longest %.0f ms, %ld MiB at most) ", count, longest * 1e3,
           usage.ru_maxrss / 1024);
    CHECK(usage.ru_maxrss < 1024L * 1024);
    free(csv.bytes);
    free(builder.bytes);
}

/* --- many rows that a square would take too long for --- */

enum { MANY = 20000 };

static void timed_row(struct text *csv, uint64_t at, const char *type, uint64_t node,
                      uint64_t tid) {
    char time[64], metadata[100];
    snprintf(time, sizeof(time), "1750000000.%09" PRIu64, at * 1000);
    snprintf(metadata, sizeof(metadata), "node_id=%" PRIu64 ",parent_id=0,tid=%" PRIu64, node, tid);
    put_row(csv, time, "1", "s", type, "", metadata);
}

static void crossing(struct text *csv, uint64_t n) {
    timed_row(csv, n, "START", n + 1, 1);
}

static void crossing_end(struct text *csv, uint64_t n) {
    timed_row(csv, MANY + n, "END", n + 1, 1);
}

static void own_thread(struct text *csv, uint64_t n) {
    timed_row(csv, n, "START", n + 1, n + 1);
}

static void ended_elsewhere(struct text *csv, uint64_t n) {
    timed_row(csv, MANY + n, "END", n + 1, MANY + 1);
}

static void same_id(struct text *csv, uint64_t n) {
    timed_row(csv, n, "START", 7, n + 1);
}

static void same_id_end(struct text *csv, uint64_t n) {
    timed_row(csv, MANY + n, "END", 7, MANY + 1);
}

static void only_end(struct text *csv, uint64_t n) {
    timed_row(csv, n, "END", 7, n + 1);
}

static void later_start(struct text *csv, uint64_t n) {
    timed_row(csv, MANY + n, "START", 7, MANY + 1);
}

/* All rows of `first`, then all of `second`. */
static void check_many(void (*first)(struct text *, uint64_t),
                       void (*second)(struct text *, uint64_t), uint64_t slices) {
    struct text csv = {.size = (size_t)2 * MANY * 128 + ROW_BYTES};
    csv.bytes = malloc(csv.size);
    struct mu_convert_counts counts;
    if (!CHECK(csv.bytes != NULL)) {
        return;
    }
    for (uint64_t n = 0; n < MANY; n++) {
        first(&csv, n);
    }
    for (uint64_t n = 0; n < MANY; n++) {
        second(&csv, n);
    }
    double began = processor_s();
    convert(&csv, MU_TRACE_PERFETTO, &counts);
    CHECK(processor_s() - began < LONGEST_S);
    CHECK_INT(counts.rows, 2 * MANY);
    CHECK_INT(counts.slices, slices);
    free(csv.bytes);
}

int main(int argc, char **argv) {
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 3000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    check_many(crossing, crossing_end, MANY);
    check_many(own_thread, ended_elsewhere, MANY);
    check_many(same_id, same_id_end, MANY);
    check_many(only_end, later_start, MANY);
    test_no_input_does_harm(count, seed);
    return check_report();
}
