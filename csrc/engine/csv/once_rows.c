#include "csv/once_rows.h"

#include <string.h>

#include "base/event.h"
#include "base/hash_table.h"

bool mu_once_row_is_kept(struct mu_span name) {
    return mu_span_equals(name, "my_utils.run") || mu_span_equals(name, "my_utils.sync") ||
           mu_span_equals(name, "my_utils.workload") || mu_span_equals(name, "my_utils.bucket") ||
           mu_span_equals(name, "my_utils.group") || mu_span_equals(name, "my_utils.launch");
}

static struct mu_span name_of(const struct mu_csv_event_row *row) {
    return (struct mu_span){row->name, row->name_length};
}

static bool is_replaced(const struct mu_csv_event_row *row) {
    struct mu_span name = name_of(row);
    return mu_span_equals(name, "my_utils.clock_sync") || mu_span_equals(name, "my_utils.run_end");
}

static bool is_once(const struct mu_csv_event_row *row) {
    return row->type == MU_EVENT_INSTANT && (mu_once_row_is_kept(name_of(row)) || is_replaced(row));
}

static uint64_t hash_of(const struct mu_csv_event_row *row) {
    uint64_t name = mu_hash_bytes(row->name, row->name_length);
    return is_replaced(row)
               ? name
               : name ^ mu_hash_u64(mu_hash_bytes(row->metadata, row->metadata_length));
}

/* Whether there is such a row already. One that a later row replaces is removed. */
static bool is_kept(struct mu_once_rows *once, uint64_t hash, bool replaced) {
    size_t at = 0;
    for (uint32_t i = 0; i < once->count; i++) {
        size_t next = at + once->rows[i].bytes;
        if (once->rows[i].hash != hash) {
            at = next;
            continue;
        }
        if (replaced) {
            memmove(once->writer.buffer + at, once->writer.buffer + next,
                    once->writer.length - next);
            once->writer.length -= next - at;
            memmove(&once->rows[i], &once->rows[i + 1],
                    (once->count - i - 1) * sizeof(once->rows[0]));
            once->count--;
        }
        return !replaced;
    }
    return false;
}

size_t mu_copy_track(char out[MU_COPY_TRACK_MAX], const char *track, size_t length) {
    static const char repeated[] = ",repeated=1";
    memcpy(out, track, length);
    memcpy(out + length, repeated, sizeof(repeated) - 1);
    return length + sizeof(repeated) - 1;
}

void mu_once_rows_add(struct mu_once_rows *once, const struct mu_csv_writer *writer,
                      const struct mu_csv_event_row *row) {
    char track[MU_COPY_TRACK_MAX];
    if (!is_once(row)) {
        return;
    }
    uint64_t hash = hash_of(row);
    if (is_kept(once, hash, is_replaced(row)) || once->count == MU_ONCE_ROWS_MAX) {
        return;
    }
    if (once->writer.allocated == 0) {
        mu_csv_writer_init(&once->writer);
    }
    memcpy(once->writer.machine, writer->machine, sizeof(writer->machine));
    once->writer.machine_length = writer->machine_length;
    struct mu_csv_event_row copy = *row;
    copy.track = track;
    copy.track_length = mu_copy_track(track, row->track, row->track_length);
    size_t before = once->writer.length;
    mu_csv_write_event(&once->writer, &copy);
    if (once->writer.failed || once->writer.length > MU_ONCE_BYTES_MAX) {
        once->writer.failed = 0;
        once->writer.length = before;
        return;
    }
    once->rows[once->count++] =
        (struct mu_once_row){.hash = hash, .bytes = (uint32_t)(once->writer.length - before)};
}

void mu_once_rows_free(struct mu_once_rows *once) {
    mu_csv_writer_free(&once->writer);
    once->count = 0;
}
