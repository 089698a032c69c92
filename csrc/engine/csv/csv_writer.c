#include "csv/csv_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/event.h"
#include "base/local_time.h"

const char mu_csv_header[] = "timestamp_unix,readable_time,machine_id,step,event_name,event_type,"
                             "duration_ms,metadata\n";
const size_t mu_csv_header_length = sizeof(mu_csv_header) - 1;

enum { ROW_FIXED_MAX = 256 }; /* all columns but machine, name and metadata */

static const char digit_pairs[] = "00010203040506070809101112131415161718192021222324"
                                  "25262728293031323334353637383940414243444546474849"
                                  "50515253545556575859606162636465666768697071727374"
                                  "75767778798081828384858687888990919293949596979899";

void mu_csv_writer_init(struct mu_csv_writer *writer) {
    memset(writer, 0, sizeof(*writer));
    writer->second = INT64_MIN;
    writer->step = INT64_MIN;
    mu_csv_writer_set_machine(writer, "");
}

void mu_csv_writer_free(struct mu_csv_writer *writer) {
    free(writer->buffer);
    writer->buffer = NULL;
    writer->length = writer->allocated = 0;
}

size_t mu_csv_quote(char *out, const char *text, size_t length) {
    bool plain = true;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        plain = plain && c != ',' && c != '"' && c != '\n' && c != '\r';
    }
    if (plain) {
        memcpy(out, text, length);
        return length;
    }
    char *at = out;
    *at++ = '"';
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '"') {
            *at++ = '"';
        }
        *at++ = text[i];
    }
    *at++ = '"';
    return (size_t)(at - out);
}

void mu_csv_writer_set_machine(struct mu_csv_writer *writer, const char *machine) {
    size_t length = strnlen(machine, (MU_CSV_MACHINE_MAX - 4) / 2);
    char *at = writer->machine;
    *at++ = ',';
    at += mu_csv_quote(at, machine, length);
    *at++ = ',';
    writer->machine_length = (size_t)(at - writer->machine);
}

size_t mu_metadata_encode(char *out, const char *text, size_t length) {
    static const char hex[] = "0123456789ABCDEF";
    char *at = out;
    for (size_t i = 0; i < length; i++) {
        uint8_t c = (uint8_t)text[i];
        if (c == ',' || c == '=' || c == '"' || c == '%' || c == '\r' || c == '\n') {
            *at++ = '%';
            *at++ = hex[c >> 4];
            *at++ = hex[c & 15];
        } else {
            *at++ = (char)c;
        }
    }
    return (size_t)(at - out);
}

static char *put_bytes(char *at, const char *bytes, size_t length) {
    memcpy(at, bytes, length);
    return at + length;
}

#define PUT(at, literal) put_bytes(at, literal, sizeof(literal) - 1)

static char *put_pair(char *at, uint32_t value) {
    memcpy(at, digit_pairs + 2 * value, 2);
    return at + 2;
}

static char *put_u64(char *at, uint64_t value) {
    char digits[20];
    int i = 20;
    while (value >= 100) {
        uint64_t rest = value / 100;
        i -= 2;
        put_pair(digits + i, (uint32_t)(value - rest * 100));
        value = rest;
    }
    if (value >= 10) {
        i -= 2;
        put_pair(digits + i, (uint32_t)value);
    } else {
        digits[--i] = (char)('0' + value);
    }
    return put_bytes(at, digits + i, (size_t)(20 - i));
}

static char *put_i64(char *at, int64_t value) {
    uint64_t magnitude = (uint64_t)value;
    if (value < 0) {
        *at++ = '-';
        magnitude = 0 - magnitude;
    }
    return put_u64(at, magnitude);
}

static char *put_six(char *at, uint32_t value) {
    uint32_t high = value / 10000, low = value % 10000;
    at = put_pair(at, high);
    at = put_pair(at, low / 100);
    return put_pair(at, low % 100);
}

static char *put_nine(char *at, uint32_t value) {
    at = put_six(at, value / 1000);
    uint32_t low = value % 1000;
    *at++ = (char)('0' + low / 100);
    return put_pair(at, low % 100);
}

/* Milliseconds with six decimals. */
static char *put_ms(char *at, int64_t ns) {
    uint64_t magnitude = (uint64_t)ns;
    if (ns < 0) {
        *at++ = '-';
        magnitude = 0 - magnitude;
    }
    at = put_u64(at, magnitude / 1000000);
    *at++ = '.';
    return put_six(at, (uint32_t)(magnitude % 1000000));
}

/* Negative times: the digits are those of the magnitude, and the date is that of the floor. */
static void set_second(struct mu_csv_writer *writer, int64_t second) {
    writer->second = second;
    writer->second_length =
        (uint8_t)(PUT(put_i64(writer->second_text, second), ".") - writer->second_text);
    size_t length = mu_local_time_text(second, ",%Y-%m-%d %H:%M:%S", writer->readable_text,
                                       sizeof(writer->readable_text));
    writer->readable_text[length] = '.';
    writer->readable_length = (uint8_t)(length + 1);
}

static void set_step(struct mu_csv_writer *writer, int64_t step) {
    writer->step = step;
    writer->step_length = (uint8_t)(PUT(put_i64(writer->step_text, step), ",") - writer->step_text);
}

MU_MUST_CHECK static bool grow(struct mu_csv_writer *writer, size_t bytes) {
    if (writer->failed) {
        return false;
    }
    size_t wanted = writer->allocated == 0 ? 16384 : writer->allocated;
    while (wanted < writer->length + bytes) {
        wanted *= 2;
    }
    char *buffer = realloc(writer->buffer, wanted);
    if (buffer == NULL) {
        writer->failed = MU_ERR_NO_MEMORY;
        return false;
    }
    writer->buffer = buffer;
    writer->allocated = wanted;
    return true;
}

/* Writes the row's beginning, through the step. NULL when memory ran out. `variable` is the
 * greatest length of what follows, without the fixed columns. */
static char *begin_row(struct mu_csv_writer *writer, int64_t real_ns, int64_t step,
                       size_t variable) {
    size_t bytes = ROW_FIXED_MAX + writer->machine_length + variable;
    if (writer->length + bytes > writer->allocated && !grow(writer, bytes)) {
        return NULL;
    }
    int64_t second = real_ns / 1000000000;
    int64_t rest = real_ns - second * 1000000000;
    if (rest < 0) {
        second--;
        rest += 1000000000;
    }
    if (second != writer->second) {
        set_second(writer, second);
    }
    if (step != writer->step) {
        set_step(writer, step);
    }
    char *at = writer->buffer + writer->length;
    if (second >= 0) {
        at = put_bytes(at, writer->second_text, writer->second_length);
        at = put_nine(at, (uint32_t)rest);
    } else {
        uint64_t magnitude = 0 - (uint64_t)real_ns;
        *at++ = '-';
        at = PUT(put_u64(at, magnitude / 1000000000), ".");
        at = put_nine(at, (uint32_t)(magnitude % 1000000000));
    }
    at = put_bytes(at, writer->readable_text, writer->readable_length);
    at = put_six(at, (uint32_t)(rest / 1000));
    at = put_bytes(at, writer->machine, writer->machine_length);
    return put_bytes(at, writer->step_text, writer->step_length);
}

static void end_row(struct mu_csv_writer *writer, char *at) {
    *at++ = '\n';
    writer->length = (size_t)(at - writer->buffer);
}

static char *put_node(char *at, const struct mu_csv_stage_row *row) {
    at = put_u64(PUT(at, "node_id="), row->node);
    at = put_u64(PUT(at, ",parent_id="), row->parent);
    return put_bytes(at, row->track, row->track_length);
}

void mu_csv_write_start(struct mu_csv_writer *writer, const struct mu_csv_stage_row *row) {
    char *at = begin_row(writer, row->real_ns, row->step, row->name_length + row->track_length);
    if (at == NULL) {
        return;
    }
    at = put_bytes(at, row->name, row->name_length);
    at = put_node(PUT(at, ",START,,\""), row);
    *at++ = '"';
    end_row(writer, at);
}

void mu_csv_write_end(struct mu_csv_writer *writer, const struct mu_csv_stage_row *row,
                      int64_t duration_ns, const char *extra, size_t extra_length) {
    char *at = begin_row(writer, row->real_ns, row->step,
                         row->name_length + row->track_length + extra_length);
    if (at == NULL) {
        return;
    }
    at = put_bytes(at, row->name, row->name_length);
    at = put_ms(PUT(at, ",END,"), duration_ns);
    at = put_node(PUT(at, ",\""), row);
    at = put_bytes(at, extra, extra_length);
    *at++ = '"';
    end_row(writer, at);
}

size_t mu_csv_track_text(char out[MU_CSV_TRACK_MAX], uint32_t tid, const char *tag,
                         size_t tag_length) {
    char *at = put_u64(PUT(out, ",tid="), tid);
    if (tag_length > 0) {
        if (tag_length > 64) {
            tag_length = 64;
        }
        at = PUT(at, ",tag=");
        at += mu_metadata_encode(at, tag, tag_length);
    }
    return (size_t)(at - out);
}

static char *put_quoted(char *at, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '"') {
            *at++ = '"';
        }
        *at++ = text[i];
    }
    return at;
}

static char *put_event_metadata(char *at, const struct mu_csv_event_row *row) {
    static const char own_node[] = "node_id=";
    bool node_first = row->metadata_length >= sizeof(own_node) - 1 &&
                      memcmp(row->metadata, own_node, sizeof(own_node) - 1) == 0;
    *at++ = '"';
    if (node_first) {
        at = put_quoted(at, row->metadata, row->metadata_length);
        at = put_bytes(at, row->track, row->track_length);
    } else {
        at = put_bytes(at, row->track + 1, row->track_length - 1);
        if (row->metadata_length > 0) {
            *at++ = ',';
        }
        at = put_quoted(at, row->metadata, row->metadata_length);
    }
    *at++ = '"';
    return at;
}

/* Without the metadata, which the row that follows has. */
static void write_opening(struct mu_csv_writer *writer, const struct mu_csv_event_row *row,
                          const char *type) {
    char *at = begin_row(writer, row->real_ns, row->step, 2 * row->name_length);
    if (at == NULL) {
        return;
    }
    at += mu_csv_quote(at, row->name, row->name_length);
    at = PUT(at, ",START,,\"" MU_CSV_OPENS);
    at = put_bytes(at, type, strlen(type));
    *at++ = '"';
    end_row(writer, at);
}

void mu_csv_write_text(struct mu_csv_writer *writer, const char *rows, size_t length) {
    if (length > 0 && (writer->length + length <= writer->allocated || grow(writer, length))) {
        writer->length =
            (size_t)(put_bytes(writer->buffer + writer->length, rows, length) - writer->buffer);
    }
}

/* A line end within quotes is part of a name. */
static size_t count_ends(const char *text, size_t length) {
    size_t ends = 0;
    bool quoted = false;
    for (size_t i = 0; i < length; i++) {
        quoted ^= text[i] == '"';
        ends += text[i] == '\n' && !quoted;
    }
    return ends;
}

size_t mu_csv_count_rows(const char *text, size_t length) {
    static const char opening[] = ",START,,\"" MU_CSV_OPENS;
    if (length == 0) { /* text may be NULL */
        return 0;
    }
    size_t count = count_ends(text, length);
    const char *end = text + length, *at = text;
    while (at < end &&
           (at = memmem(at, (size_t)(end - at), opening, sizeof(opening) - 1)) != NULL) {
        at += sizeof(opening) - 1;
        count--;
    }
    return count;
}

void mu_csv_write_event(struct mu_csv_writer *writer, const struct mu_csv_event_row *row) {
    const char *type = mu_event_name(row->type);
    if (type == NULL) {
        return;
    }
    if (row->type != MU_EVENT_START && row->type != MU_EVENT_END) {
        write_opening(writer, row, type);
    }
    char *at = begin_row(writer, row->real_ns, row->step,
                         2 * (row->name_length + row->metadata_length) + row->track_length);
    if (at == NULL) {
        return;
    }
    at += mu_csv_quote(at, row->name, row->name_length);
    *at++ = ',';
    at = put_bytes(at, type, strlen(type));
    *at++ = ',';
    if (row->has_duration) {
        at = put_ms(at, row->duration_ns);
    }
    *at++ = ',';
    at = put_event_metadata(at, row);
    end_row(writer, at);
}

void mu_csv_write_own(struct mu_csv_writer *writer, int64_t real_ns, int32_t pid, const char *name,
                      const char *metadata) {
    char track[MU_CSV_TRACK_MAX];
    struct mu_csv_event_row row = {
        .real_ns = real_ns,
        .type = MU_EVENT_INSTANT,
        .name = name,
        .name_length = strlen(name),
        .metadata = metadata,
        .metadata_length = strlen(metadata),
        .track = track,
        .track_length = mu_csv_track_text(track, (uint32_t)pid, NULL, 0),
    };
    mu_csv_write_event(writer, &row);
}
