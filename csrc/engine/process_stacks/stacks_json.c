/* Writes a record of stacks as JSON, in the form that my_utils/analysis/process_stacks/record.py
 * reads. */
#include "process_stacks/stack_record.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/utf8.h"

enum { TASK_BYTES = 256 };

static void put_string(FILE *out, const char *text, size_t length) {
    char clean[MU_FRAME_TEXT_MAX * 2 * MU_UTF8_CLEAN_FACTOR];
    char json[sizeof(clean) * MU_UTF8_JSON_FACTOR];
    size_t most = sizeof(clean) / MU_UTF8_CLEAN_FACTOR, bad = 0;
    size_t n = mu_utf8_clean(clean, text, length < most ? length : most, &bad);
    fprintf(out, "\"%.*s\"", (int)(mu_utf8_put_json(json, clean, n) - json), json);
}

static void put_text(FILE *out, const char *key, const char *text) {
    fprintf(out, "\"%s\":", key);
    put_string(out, text, strlen(text));
    fputc(',', out);
}

static void put_codes(FILE *out, const struct mu_frame_names *names) {
    fputs("\"functions\":[", out);
    for (uint32_t i = 0; i < names->code_count; i++) {
        const struct mu_code_name *name = &names->codes[i];
        fputs(i == 0 ? "\n[" : ",\n[", out);
        put_string(out, name->function, name->function_length);
        fputc(',', out);
        put_string(out, name->file, name->file_length);
        fprintf(out, ",%" PRId64 "]", name->key.first_line);
    }
    fputs("],\n\"frames\":[", out);
    for (uint32_t i = 0; i < names->place_count; i++) {
        const struct mu_frame_place *place = &names->places[i];
        fprintf(out, "%s[%" PRIu32 ",%" PRId32 "]", i == 0 ? "" : ",", place->code - 1,
                place->line);
    }
    fputs("],\n", out);
}

/* Frames of a stack by their place in "frames", -1 for those that could not be read. */
static void put_stacks(FILE *out, const struct mu_stack_record *record) {
    fputs("\"stacks\":[", out);
    for (uint32_t i = 0; i < record->stack_count; i++) {
        struct mu_stack_span span = record->stacks[i];
        fputs(i == 0 ? "\n[" : ",\n[", out);
        for (uint32_t k = 0; k < span.count; k++) {
            fprintf(out, "%s%" PRId64, k == 0 ? "" : ",", (int64_t)record->ids[span.first + k] - 1);
        }
        fputc(']', out);
    }
    fputs("],\n", out);
}

static void put_samples(FILE *out, const struct mu_stack_record *record) {
    fputs("\"samples\":[", out);
    for (uint32_t i = 0; i < record->sample_count; i++) {
        const struct mu_stack_sample *sample = &record->samples[i];
        fprintf(out, "%s[%" PRId64 ",%" PRIu32 ",%" PRIu32 ",%" PRIu32 "]", i == 0 ? "" : ",",
                sample->time_ns, sample->tid, sample->stack - 1, sample->flags);
    }
    fputs("]", out);
}

/* The beginning of /proc/self/task/<tid>/<name>, "" when there is none. */
static void read_task(uint32_t tid, const char *name, char text[TASK_BYTES]) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%" PRIu32 "/%s", tid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, text, TASK_BYTES - 1);
    if (fd >= 0) {
        close(fd);
    }
    text[got > 0 ? got : 0] = '\0';
}

static void put_thread(FILE *out, uint32_t tid) {
    char name[TASK_BYTES], stat[TASK_BYTES];
    read_task(tid, "comm", name);
    read_task(tid, "stat", stat);
    const char *state = strrchr(stat, ')');
    bool has_state = state != NULL && state[1] == ' ' && state[2] >= 'A' && state[2] <= 'Z';
    fprintf(out, "[%" PRIu32 ",", tid);
    put_string(out, name, strcspn(name, "\n"));
    fprintf(out, ",\"%.1s\"]", has_state ? state + 2 : "");
}

static int compare_tids(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

/* The threads that have samples: tid, name, and the state now by the letter of /proc. */
static void put_threads(FILE *out, const struct mu_stack_record *record) {
    uint32_t count = record->sample_count;
    uint32_t *tids = malloc(sizeof(*tids) * (count + 1));
    fputs("\"threads\":[", out);
    for (uint32_t i = 0; tids != NULL && i < count; i++) {
        tids[i] = record->samples[i].tid;
    }
    if (tids != NULL) {
        qsort(tids, count, sizeof(*tids), compare_tids);
    }
    bool first = true;
    for (uint32_t i = 0; tids != NULL && i < count; i++) {
        if (i == 0 || tids[i] != tids[i - 1]) {
            fputs(first ? "" : ",", out);
            put_thread(out, tids[i]);
            first = false;
        }
    }
    free(tids);
    fputs("],\n", out);
}

void mu_stack_record_write(const struct mu_stack_record *record,
                           const struct mu_stack_origin *origin, FILE *out) {
    const struct mu_stack_reader *reader = record->reader;
    fputs("{\"my_utils\":\"stacks\",\"version\":1,", out);
    put_text(out, "id", origin->id);
    put_text(out, "kind", origin->kind);
    put_text(out, "label", origin->label);
    put_text(out, "host", origin->host);
    fprintf(out, "\"rank\":%d,\"pid\":%d,\"python\":\"%d.%d\",", origin->rank, (int)getpid(),
            reader->python_major, reader->python_minor);
    fprintf(out, "\"time_ns\":%" PRId64 ",\"interval_ns\":%" PRId64 ",\"spent_ns\":%" PRId64 ",",
            mu_clock_ns(CLOCK_REALTIME) + origin->time_offset_ns, origin->interval_ns,
            record->spent_ns);
    fprintf(out,
            "\"rounds\":%" PRIu64 ",\"torn\":%" PRIu64 ",\"cut\":%" PRIu64
            ",\"incomplete\":%" PRIu64 ",\"dropped\":%" PRIu64 ",\n",
            record->rounds, record->torn, record->cut, record->incomplete, record->dropped);
    put_threads(out, record);
    put_codes(out, &record->names);
    put_stacks(out, record);
    put_samples(out, record);
    fputs("}\n", out);
}
