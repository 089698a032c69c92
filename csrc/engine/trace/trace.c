#include "trace/trace.h"

#include "base/utf8.h"

#include <locale.h>
#include <stdlib.h>

enum { WRITER_BUFFER = 128 * 1024, EVENT_BYTES_FIXED = 1024, WRITTEN_PER_BYTE = 32 };

int mu_trace_writer_init(struct mu_trace_writer *writer, const struct mu_trace_ops *ops,
                         struct mu_shared_output *output, struct mu_error *err) {
    memset(writer, 0, sizeof(*writer));
    writer->ops = ops;
    writer->with_args = 1;
    writer->c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (writer->c_locale == NULL) {
        return mu_error_sys(err, "newlocale", "C");
    }
    return mu_sink_init_shared(&writer->sink, output, WRITER_BUFFER, err);
}

void mu_trace_writer_reset(struct mu_trace_writer *writer) {
    if (writer->c_locale != NULL) {
        freelocale(writer->c_locale);
    }
    free(writer->scratch[0]);
    free(writer->scratch[1]);
    writer->scratch[0] = writer->scratch[1] = NULL;
    writer->c_locale = NULL;
    mu_sink_reset(&writer->sink);
}

static char *scratch_of(struct mu_trace_writer *writer, int place, size_t size) {
    if (size > writer->scratch_size[place]) {
        char *scratch = realloc(writer->scratch[place], size * 2);
        if (scratch == NULL) {
            mu_error_no_memory(&writer->sink.error, "text of an event");
            return NULL;
        }
        writer->scratch[place] = scratch;
        writer->scratch_size[place] = size * 2;
    }
    return writer->scratch[place];
}

struct mu_span mu_trace_clean(struct mu_trace_writer *writer, struct mu_span text, int place) {
    char *raw = scratch_of(writer, place, text.length * (1 + MU_UTF8_CLEAN_FACTOR) + 1);
    if (raw == NULL) {
        return (struct mu_span){"", 0};
    }
    size_t length = mu_utf8_percent_decode(raw, text.text, text.length);
    char *clean = raw + length;
    return (struct mu_span){clean, mu_utf8_clean(clean, raw, length, &writer->bad_bytes)};
}

int mu_trace_is_own_key(struct mu_span key) {
    return mu_span_equals(key, "step") || mu_span_equals(key, "node_id") ||
           mu_span_equals(key, "parent_id");
}

size_t mu_trace_event_bytes_max(const struct mu_trace_event *event) {
    size_t text = event->user[0].length + event->user[1].length + event->metadata.length +
                  event->machine.length;
    for (int i = 0; i < event->field_count; i++) {
        text += event->fields[i].text.length;
    }
    return EVENT_BYTES_FIXED + (size_t)event->name->json_length * 2 + text * WRITTEN_PER_BYTE;
}
