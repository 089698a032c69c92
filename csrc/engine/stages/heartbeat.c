#include "stages/heartbeat.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "journal/journal_reader.h"
#include "stages/state.h"

enum { TEXT_BYTES = 32 * 1024 };

struct text {
    char *bytes;
    size_t length;
    bool full;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text->bytes + text->length, TEXT_BYTES - text->length, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= TEXT_BYTES - text->length) {
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

static void add_thread(struct text *text, const struct mu_seen_thread *thread, bool first) {
    add(text, "%s{\"tid\":%u,\"thread\":", first ? "" : ",", thread->tid);
    add_string(text, thread->thread_name,
               thread->thread_name == NULL ? 0 : thread->thread_name_length);
    add(text, ",\"tag\":");
    add_string(text, thread->tag, thread->tag == NULL ? 0 : thread->tag_length);
    add(text, ",\"step\":%lld", (long long)thread->step);
    if (thread->last_count > 0) {
        add(text, ",\"ended\":%.6f", (double)thread->last[0].end_ns / 1e9);
    }
    add(text, ",\"open\":[");
    for (int i = 0; i < thread->depth; i++) {
        const struct mu_seen_stage *stage = &thread->open[i];
        add(text, "%s{\"name\":", i == 0 ? "" : ",");
        add_string(text, stage->name, stage->name == NULL ? 0 : stage->name_length);
        add(text, ",\"step\":%lld,\"since\":%.6f}", (long long)stage->step,
            (double)stage->start_ns / 1e9);
    }
    add(text, "]}");
}

/* Unix time of the process's start by this host's clock; 0 when it is not known. */
static double process_began(const struct mu_journal_header *header) {
    if (header->process_start == 0) {
        return 0;
    }
    double booted_s = (double)mu_clock_offset(CLOCK_REALTIME, CLOCK_BOOTTIME) / 1e9;
    return booted_s + (double)header->process_start / (double)sysconf(_SC_CLK_TCK);
}

static void describe(struct mu_recorder *recorder, bool closed, struct text *text) {
    const struct mu_journal_header *header = mu_journal_header(&recorder->journal);
    add(text, "{\"version\":1,\"rank\":%d,\"world_size\":%d,\"pid\":%d,\"attempt\":%u,\"host\":",
        header->rank, header->world_size, header->pid, header->attempt);
    add_string(text, header->host, strnlen(header->host, sizeof(header->host)));
    add(text, ",\"label\":");
    add_string(text, header->label, strnlen(header->label, sizeof(header->label)));
    add(text, ",\"time\":%.6f,\"began\":%.2f,\"time_offset\":%.9f,\"closed\":%s,",
        (double)mu_clock_ns(CLOCK_REALTIME) / 1e9, process_began(header),
        (double)recorder->user_offset_ns / 1e9, closed ? "true" : "false");
    add(text, "\"dropped\":%llu,\"lanes\":[",
        (unsigned long long)atomic_load(&recorder->troubles.dropped_records));
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
    text->full = false;
    add(text, "]}\n");
}

static bool replace_file(const char *path, const char *bytes, size_t length) {
    char temporary[MU_PATH_BYTES + 8];
    snprintf(temporary, sizeof(temporary), "%s.tmp", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        return false;
    }
    bool written = write(fd, bytes, length) == (ssize_t)length;
    close(fd);
    if (!written || rename(temporary, path) != 0) {
        unlink(temporary);
        return false;
    }
    return true;
}

static void heartbeat_path(char path[MU_PATH_BYTES], const char *log_dir, const char *label) {
    snprintf(path, MU_PATH_BYTES, "%s/%s.heartbeat.json", log_dir, label);
}

void mu_heartbeat_write(struct mu_recorder *recorder, bool closed) {
    struct text text = {.bytes = malloc(TEXT_BYTES)};
    if (text.bytes == NULL) {
        return;
    }
    char path[MU_PATH_BYTES];
    heartbeat_path(path, recorder->config.log_dir, recorder->opened.label);
    describe(recorder, closed, &text);
    replace_file(path, text.bytes, text.length);
    free(text.bytes);
}

uint32_t mu_heartbeat_read_attempt(const char *log_dir, const char *label) {
    static const char key[] = "\"attempt\":";
    char path[MU_PATH_BYTES], start[512];
    heartbeat_path(path, log_dir, label);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    ssize_t got = read(fd, start, sizeof(start) - 1);
    close(fd);
    if (got <= 0) {
        return 0;
    }
    start[got] = '\0';
    const char *found = strstr(start, key);
    unsigned long attempt = found == NULL ? 0 : strtoul(found + sizeof(key) - 1, NULL, 10);
    return attempt > UINT16_MAX ? 0 : (uint32_t)attempt;
}
