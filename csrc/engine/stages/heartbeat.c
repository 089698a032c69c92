#include "stages/heartbeat.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/own_files.h"
#include "base/process.h"
#include "journal/journal_reader.h"
#include "stages/drain_state.h"
#include "stages/state.h"

enum { TEXT_BYTES = 32 * 1024, BLOCK_BYTES = 4096, END_BYTES = 64 };

struct text {
    char *bytes;
    size_t size; /* what it may grow to, with a NUL */
    size_t length;
    bool full;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text->bytes + text->length, text->size - text->length, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= text->size - text->length) {
        text->full = true;
        return;
    }
    text->length += (size_t)n;
}

static void add_string(struct text *text, const char *string, size_t length) {
    add(text, "\"");
    for (size_t i = 0; i < length && !text->full; i++) {
        unsigned char c = (unsigned char)string[i];
        if (c == '"' || c == '\\' || c < 0x20) {
            add(text, "\\u%04x", c);
        } else {
            add(text, "%c", c);
        }
    }
    add(text, "\"");
}

/* Seconds with `decimals` of 1 to 9, and a point whatever the locale has. */
static void add_seconds(struct text *text, int64_t ns, int decimals) {
    static const uint64_t below[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
    uint64_t size = ns < 0 ? -(uint64_t)ns : (uint64_t)ns;
    add(text, "%s%" PRIu64 ".%0*" PRIu64, ns < 0 ? "-" : "", size / 1000000000, decimals,
        size % 1000000000 / below[9 - decimals]);
}

static void add_thread(struct text *text, const struct mu_seen_thread *thread, bool first) {
    add(text, "%s{\"tid\":%u,\"thread\":", first ? "" : ",", thread->tid);
    add_string(text, thread->thread_name,
               thread->thread_name == NULL ? 0 : thread->thread_name_length);
    add(text, ",\"tag\":");
    add_string(text, thread->tag, thread->tag == NULL ? 0 : thread->tag_length);
    add(text, ",\"step\":%lld", (long long)thread->step);
    if (thread->last_count > 0) {
        add(text, ",\"ended\":");
        add_seconds(text, thread->last[0].end_ns, 6);
    }
    add(text, ",\"open\":[");
    for (int i = 0; i < thread->depth; i++) {
        const struct mu_seen_stage *stage = &thread->open[i];
        add(text, "%s{\"name\":", i == 0 ? "" : ",");
        add_string(text, stage->name, stage->name == NULL ? 0 : stage->name_length);
        add(text, ",\"step\":%lld,\"since\":", (long long)stage->step);
        add_seconds(text, stage->start_ns, 6);
        add(text, "}");
    }
    add(text, "]}");
}

/* What was lost, and the steps of which no row of the CSV says that they are not whole. */
static void add_lost(struct text *text, const struct mu_recorder *recorder) {
    const struct mu_troubles *troubles = &recorder->troubles;
    const struct mu_lost_rows *lost = &recorder->drain->lost;
    uint64_t rows = atomic_load(&troubles->lost_rows) - recorder->lost_rows_before;
    uint64_t records = atomic_load(&troubles->dropped_records) +
                       atomic_load(&troubles->unplaced_records) +
                       atomic_load(&troubles->lost_records) - recorder->lost_records_before;
    add(text, ",\"dropped\":%" PRIu64 ",\"lost_rows\":%" PRIu64 ",\"lost_steps\":[", records + rows,
        rows);
    for (uint32_t i = 0; i < lost->range_count; i++) {
        add(text, "%s[%" PRId64 ",%" PRId64 "]", i == 0 ? "" : ",", lost->ranges[i].first,
            lost->ranges[i].last);
    }
    add(text, "]");
}

/* All but its end. Threads that do not fit are left out. */
static void describe(struct mu_recorder *recorder, bool closed, struct text *text) {
    const struct mu_journal_header *header = mu_journal_header(&recorder->journal);
    add(text,
        "{\"sequence\":%" PRIu64
        ",\"version\":1,\"rank\":%d,\"world_size\":%d,\"pid\":%d,\"attempt\":%u,\"host\":",
        recorder->beats, header->rank, header->world_size, header->pid, header->attempt);
    add_string(text, header->host, strnlen(header->host, sizeof(header->host)));
    add(text, ",\"label\":");
    add_string(text, header->label, strnlen(header->label, sizeof(header->label)));
    add(text, ",\"time\":");
    add_seconds(text, mu_clock_ns(CLOCK_REALTIME), 6);
    add(text, ",\"began\":");
    add_seconds(text, mu_process_began_ns(header->process_start), 2);
    add(text, ",\"time_offset\":");
    add_seconds(text, recorder->user_offset_ns, 9);
    add(text, ",\"closed\":%s", closed ? "true" : "false");
    add_lost(text, recorder);
    add(text, ",\"lanes\":[");
    text->size -= END_BYTES;
    struct mu_journal_image image;
    struct mu_seen_thread *thread = malloc(sizeof(*thread));
    bool first = true;
    if (thread != NULL &&
        mu_journal_image_open(&image, recorder->journal.base, MU_JOURNAL_BYTES, NULL) == MU_OK) {
        for (uint32_t i = 0; i < image.chunk_count && !text->full; i++) {
            if (mu_journal_image_thread(&image, i, thread)) {
                size_t before = text->length;
                add_thread(text, thread, first);
                text->length = text->full ? before : text->length;
                first = false;
            }
        }
    }
    free(thread);
    text->size += END_BYTES;
    text->full = false;
    add(text, "]");
}

/* The file's text: `length` bytes, filled up with spaces between what is said and its end, for
 * which there is to be room. */
static bool write_text(const struct mu_recorder *recorder, int fd, const struct text *text,
                       size_t length) {
    char end[END_BYTES];
    int end_length = snprintf(end, sizeof(end), ",\"end\":%" PRIu64 "}\n", recorder->beats);
    size_t room = length - (size_t)end_length;
    memset(text->bytes + text->length, ' ', room - text->length);
    memcpy(text->bytes + room, end, (size_t)end_length);
    return pwrite(fd, text->bytes, length, 0) == (ssize_t)length;
}

static bool write_shortened(struct mu_recorder *recorder, bool closed, int fd, char *bytes,
                            size_t length) {
    struct text text = {.bytes = bytes, .size = length - END_BYTES};
    describe(recorder, closed, &text);
    return write_text(recorder, fd, &text, length);
}

/* Writes over the file, which needs no space on a full disk. It grows by blocks where it must;
 * where it cannot, the text is shortened. A file that never had space does not stay. */
static void write_over(struct mu_recorder *recorder, bool closed, const char *path, int fd,
                       char *bytes) {
    struct stat status;
    if (fstat(fd, &status) != 0) {
        return;
    }
    struct text text = {.bytes = bytes, .size = TEXT_BYTES - 2 * END_BYTES};
    describe(recorder, closed, &text);
    size_t before = status.st_size > TEXT_BYTES ? TEXT_BYTES : (size_t)status.st_size;
    size_t wanted = (text.length + 2 * END_BYTES + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    size_t length = wanted > before ? wanted : before;
    bool cannot_grow = false;
    if (!write_text(recorder, fd, &text, length)) {
        cannot_grow = before >= BLOCK_BYTES && before < length &&
                      write_shortened(recorder, closed, fd, bytes, before);
        length = before;
    }
    int cut = 0;
    if (length == 0) {
        unlink(path);
    } else if (cannot_grow || status.st_size > TEXT_BYTES) {
        cut = ftruncate(fd, (off_t)length);
    }
    (void)cut; /* what is behind the text is of an older one, and the next beat tries again */
}

static void heartbeat_path(char path[MU_PATH_BYTES], const char *log_dir, const char *label) {
    snprintf(path, MU_PATH_BYTES, "%s/%s.heartbeat.json", log_dir, label);
}

void mu_heartbeat_write(struct mu_recorder *recorder, bool closed) {
    char path[MU_PATH_BYTES];
    heartbeat_path(path, recorder->config.log_dir, recorder->opened.label);
    int fd = mu_open_own(path, O_WRONLY | O_CREAT, 0644, recorder->output.user);
    if (fd < 0 && mu_is_of_others(errno)) {
        fd = mu_above_streams(mu_open_instead(path, 0644));
    }
    char *bytes = fd < 0 ? NULL : malloc(TEXT_BYTES);
    if (bytes != NULL) {
        recorder->beats++;
        write_over(recorder, closed, path, fd, bytes);
    }
    free(bytes);
    if (fd >= 0) {
        close(fd);
    }
}

/* What follows a key in the file's text, NULL where it is not there. No string holds a key: quotes
 * are escaped in them. */
static const char *value_of(const char *text, const char *key) {
    const char *found = strstr(text, key);
    return found == NULL ? NULL : found + strlen(key);
}

/* Nanoseconds of what add_seconds wrote; 0 for anything else, and for half of the range and more,
 * so that two of them can be added. */
static int64_t read_ns(const char *text) {
    char *rest = NULL;
    int64_t unit = 100000000;
    bool negative = text != NULL && *text == '-';
    long long seconds = text == NULL ? -1 : strtoll(text + negative, &rest, 10);
    if (seconds < 0 || seconds >= INT64_MAX / 2000000000 || *rest != '.') {
        return 0;
    }
    int64_t ns = (int64_t)seconds * 1000000000;
    for (rest++; *rest >= '0' && *rest <= '9' && unit > 0; rest++, unit /= 10) {
        ns += (*rest - '0') * unit;
    }
    return negative ? -ns : ns;
}

static ssize_t read_start(const char *log_dir, const char *label, char *bytes, size_t size) {
    char path[MU_PATH_BYTES];
    heartbeat_path(path, log_dir, label);
    int fd = mu_open_regular(path, O_RDONLY, 0);
    if (fd < 0) {
        return -1;
    }
    ssize_t got = read(fd, bytes, size);
    close(fd);
    return got;
}

void mu_heartbeat_read(const char *log_dir, const char *label, struct mu_last_beat *last) {
    char start[BLOCK_BYTES];
    memset(last, 0, sizeof(*last));
    ssize_t got = read_start(log_dir, label, start, sizeof(start) - 1);
    if (got <= 0) {
        return;
    }
    start[got] = '\0';
    const char *attempt = value_of(start, "\"attempt\":"), *pid = value_of(start, "\"pid\":");
    const char *closed = value_of(start, "\"closed\":");
    unsigned long number = attempt == NULL ? 0 : strtoul(attempt, NULL, 10);
    last->attempt = number > UINT16_MAX ? 0 : (uint32_t)number;
    last->pid = pid == NULL ? 0 : (int32_t)strtol(pid, NULL, 10);
    last->closed = closed != NULL && strncmp(closed, "true", 4) == 0;
    last->began_ns = read_ns(value_of(start, "\"began\":"));
    int64_t time_ns = read_ns(value_of(start, "\"time\":"));
    if (time_ns > 0) {
        last->seen_ns = time_ns + read_ns(value_of(start, "\"time_offset\":"));
    }
}
