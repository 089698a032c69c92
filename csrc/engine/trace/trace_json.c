/* Chrome's JSON trace events, as Perfetto and chrome://tracing read them.
 *
 * Every event starts with ",\n", which the output leaves out before the first. Stages are complete
 * events (`X`), written when their end is known, so their order does not matter; a stage without an
 * end is a `B` without an `E`. Times are microseconds with three decimals after `base_ns`.
 */
#include "trace/trace.h"

#include "base/digits.h"
#include "base/utf8.h"

#define PUT(out, literal)                                                                          \
    (memcpy((out), (literal), sizeof(literal) - 1), (out) + sizeof(literal) - 1)

static char *put_bytes(char *out, const char *text, size_t length) {
    memcpy(out, text, length);
    return out + length;
}

static char *put_start(char *out, const char *phase, const struct mu_track *track) {
    out = PUT(out, ",\n{\"ph\":\"");
    *out++ = *phase;
    out = PUT(out, "\",\"pid\":");
    out = mu_digits_put_i64(out, track->process->pid);
    out = PUT(out, ",\"tid\":");
    out = mu_digits_put_i64(out, track->tid);
    return PUT(out, ",\"ts\":");
}

static char *put_name(char *out, const struct mu_trace_name *name) {
    out = PUT(out, ",\"name\":\"");
    memcpy(out, name->json, MU_NAME_PADDING); /* a fixed size is one copy of registers */
    if (name->json_length > MU_NAME_PADDING) {
        memcpy(out, name->json, name->json_length);
    }
    out += name->json_length;
    *out++ = '"';
    return out;
}

static char *put_value(char *out, struct mu_trace_writer *writer, struct mu_span value) {
    switch (mu_metadata_kind(value)) {
    case MU_VALUE_INT:
    case MU_VALUE_FLOAT:
        return put_bytes(out, value.text, value.length);
    case MU_VALUE_BOOL:
        return (value.text[0] | 0x20) == 't' ? PUT(out, "true") : PUT(out, "false");
    case MU_VALUE_STRING:
        break;
    }
    value = mu_trace_clean(writer, value, 1);
    *out++ = '"';
    out = mu_utf8_put_json(out, value.text, value.length);
    *out++ = '"';
    return out;
}

static char *put_pairs(char *out, struct mu_trace_writer *writer, struct mu_span pairs,
                       struct mu_span written) {
    struct mu_span key, value;
    while (mu_metadata_next(&pairs, &key, &value)) {
        if (mu_metadata_has_key(written, key)) {
            continue;
        }
        int own = mu_trace_is_own_key(key);
        key = mu_trace_clean(writer, key, 0);
        out = PUT(out, ",\"");
        out = mu_utf8_put_json(out, key.text, key.length);
        out = own ? PUT(out, "_\":") : PUT(out, "\":");
        out = put_value(out, writer, value);
    }
    return out;
}

/* Nanoseconds as milliseconds with six decimals. */
static char *put_ms(char *out, int64_t ns) {
    if (ns < 0) {
        *out++ = '-';
        ns = -ns;
    }
    out = mu_digits_put_i64(out, ns / 1000000);
    char *decimals = mu_digits_put_i64(out, 1000000 + ns % 1000000);
    *out = '.'; /* over the leading 1 */
    return decimals;
}

static char *put_fields(char *out, struct mu_trace_writer *writer,
                        const struct mu_trace_event *event) {
    for (int i = 0; i < event->field_count; i++) {
        const struct mu_field *field = &event->fields[i];
        out = PUT(out, ",\"");
        out = put_bytes(out, field->key, strlen(field->key));
        out = PUT(out, "\":");
        out = field->unit == MU_FIELD_MS ? put_ms(out, field->ns)
                                         : put_value(out, writer, field->text);
    }
    return out;
}

/* The events of a step follow each other, so its text is kept. */
static char *put_step(char *out, struct mu_trace_writer *writer, int64_t step) {
    if (writer->step_length == 0 || writer->step != step) {
        char *end = PUT(writer->step_text, ",\"step\":");
        writer->step = step;
        writer->step_length = (size_t)(mu_digits_put_i64(end, step) - writer->step_text);
    }
    memcpy(out, writer->step_text, sizeof(writer->step_text));
    return out + writer->step_length;
}

static char *put_args(char *out, struct mu_trace_writer *writer,
                      const struct mu_trace_event *event) {
    out = PUT(out, ",\"args\":");
    char *open = out;
    if (event->has_step && !writer->hides_ids) {
        out = put_step(out, writer, event->step);
    }
    if (event->node >= 0 && !writer->hides_ids) {
        out = PUT(out, ",\"node_id\":");
        out = mu_digits_put_i64(out, event->node);
    }
    if (event->field_count > 0) {
        out = put_fields(out, writer, event);
    }
    if (event->user[0].length > 0) {
        out = put_pairs(out, writer, event->user[0], (struct mu_span){NULL, 0});
    }
    if (event->user[1].length > 0) {
        out = put_pairs(out, writer, event->user[1], event->user[0]);
    }
    out += out == open;
    *open = '{'; /* over the first comma */
    return PUT(out, "}");
}

static int has_args(const struct mu_trace_event *event) {
    return event->has_step || event->node >= 0 || event->field_count > 0 ||
           event->user[0].length > 0 || event->user[1].length > 0;
}

static void put_end(struct mu_trace_writer *writer, char *out, const struct mu_trace_event *event) {
    if (writer->with_args && has_args(event)) {
        out = put_args(out, writer, event);
    }
    *out++ = '}';
    mu_sink_commit(&writer->sink, out);
}

static void write_event(struct mu_trace_writer *writer, const char *phase,
                        const struct mu_track *track, const struct mu_trace_event *event) {
    char *out = mu_sink_reserve(&writer->sink, mu_trace_event_bytes_max(event));
    if (out == NULL) {
        return;
    }
    out = put_start(out, phase, track);
    out = mu_digits_put_us(out, event->begin_ns - writer->base_ns);
    out = put_name(out, event->name);
    if (*phase == 'i') {
        out = PUT(out, ",\"s\":\"t\"");
    }
    put_end(writer, out, event);
}

/* Asynchronous stages get our own ids, so that a number used twice does not connect two of them. */
static void write_async(struct mu_trace_writer *writer, const struct mu_track *track,
                        const struct mu_trace_event *event, int has_end) {
    uint64_t id = ++writer->async_count;
    for (int is_end = 0; is_end <= has_end; is_end++) {
        char *out = mu_sink_reserve(&writer->sink, mu_trace_event_bytes_max(event));
        if (out == NULL) {
            return;
        }
        out = put_start(out, is_end ? "e" : "b", track);
        out = mu_digits_put_us(out, (is_end ? event->end_ns : event->begin_ns) - writer->base_ns);
        out = PUT(out, ",\"cat\":\"async\",\"id2\":{\"local\":\"");
        out = mu_digits_put_u64(out, id);
        out = PUT(out, "\"}");
        out = put_name(out, event->name);
        if (!is_end) {
            put_end(writer, out, event);
        } else {
            *out++ = '}';
            mu_sink_commit(&writer->sink, out);
        }
    }
}

static void json_slice(struct mu_trace_writer *writer, struct mu_track *track,
                       const struct mu_trace_event *event) {
    if (track->kind == MU_TRACK_ASYNC) {
        write_async(writer, track, event, 1);
        return;
    }
    char *out = mu_sink_reserve(&writer->sink, mu_trace_event_bytes_max(event));
    if (out == NULL) {
        return;
    }
    memcpy(out, track->prefix, sizeof(track->prefix)); /* a fixed size is one copy of registers */
    out += track->prefix_length;
    out = mu_digits_put_us(out, event->begin_ns - writer->base_ns);
    out = PUT(out, ",\"dur\":");
    out = mu_digits_put_us(out, event->end_ns - event->begin_ns);
    out = put_name(out, event->name);
    put_end(writer, out, event);
}

static void json_slice_begin(struct mu_trace_writer *writer, struct mu_track *track,
                             const struct mu_trace_event *event) {
    if (track->kind == MU_TRACK_ASYNC) {
        write_async(writer, track, event, 0);
        return;
    }
    write_event(writer, "B", track, event);
}

static void json_instant(struct mu_trace_writer *writer, struct mu_track *track,
                         const struct mu_trace_event *event) {
    write_event(writer, "i", track, event);
}

/* Perfetto calls the track `NAME value`: it always adds the key. The names of counters of other
 * tools end with their own key. */
static void json_counter(struct mu_trace_writer *writer, struct mu_track *track, int64_t at_ns,
                         struct mu_span number) {
    const char *space = writer->hides_ids ? strrchr(track->name, ' ') : NULL;
    const char *key = space != NULL ? space + 1 : "value";
    size_t length = space != NULL ? (size_t)(space - track->name) : strlen(track->name);
    char *out = mu_sink_reserve(&writer->sink,
                                1024 + number.length + sizeof(track->name) * MU_UTF8_JSON_FACTOR);
    if (out == NULL) {
        return;
    }
    out = PUT(out, ",\n{\"ph\":\"C\",\"pid\":");
    out = mu_digits_put_i64(out, track->process->pid);
    out = PUT(out, ",\"ts\":");
    out = mu_digits_put_us(out, at_ns - writer->base_ns);
    out = PUT(out, ",\"name\":\"");
    out = mu_utf8_put_json(out, track->name, length);
    out = PUT(out, "\",\"args\":{\"");
    out = mu_utf8_put_json(out, key, strlen(key));
    out = PUT(out, "\":");
    out = put_bytes(out, number.text, number.length);
    mu_sink_commit(&writer->sink, PUT(out, "}}"));
}

enum { FLOW_ID_BITS = 48 }; /* readers in JavaScript know no longer integers */

/* A slice without length, so that the arrow has something to leave from, and the arrow's end. */
static void json_flow(struct mu_trace_writer *writer, struct mu_track *track,
                      const struct mu_trace_event *event, uint64_t id, int is_end) {
    json_slice(writer, track, event);
    char *out = mu_sink_reserve(&writer->sink, mu_trace_event_bytes_max(event));
    if (out == NULL) {
        return;
    }
    out = put_start(out, is_end ? "f" : "s", track);
    out = mu_digits_put_us(out, event->begin_ns - writer->base_ns);
    out = PUT(out, ",\"bp\":\"e\",\"cat\":\"flow\",\"id\":");
    out = mu_digits_put_u64(out, id >> (64 - FLOW_ID_BITS));
    out = put_name(out, event->name);
    mu_sink_commit(&writer->sink, PUT(out, "}"));
}

static char *put_metadata(char *out, const char *kind, int64_t pid, int64_t tid) {
    out = PUT(out, ",\n{\"ph\":\"M\",\"pid\":");
    out = mu_digits_put_i64(out, pid);
    if (tid >= 0) {
        out = PUT(out, ",\"tid\":");
        out = mu_digits_put_i64(out, tid);
    }
    out = PUT(out, ",\"name\":\"");
    out = put_bytes(out, kind, strlen(kind));
    return PUT(out, "\",\"args\":{\"");
}

static void write_text_metadata(struct mu_trace_writer *writer, const char *kind, const char *key,
                                int64_t pid, int64_t tid, const char *text) {
    char *out = mu_sink_reserve(&writer->sink, 256 + strlen(text) * MU_UTF8_JSON_FACTOR);
    if (out == NULL) {
        return;
    }
    out = put_metadata(out, kind, pid, tid);
    out = put_bytes(out, key, strlen(key));
    out = PUT(out, "\":\"");
    out = mu_utf8_put_json(out, text, strlen(text));
    mu_sink_commit(&writer->sink, PUT(out, "\"}}"));
}

static void write_order_metadata(struct mu_trace_writer *writer, const char *kind, int64_t pid,
                                 int64_t tid, int64_t order) {
    char *out = mu_sink_reserve(&writer->sink, 256);
    if (out == NULL) {
        return;
    }
    out = put_metadata(out, kind, pid, tid);
    out = PUT(out, "sort_index\":");
    out = mu_digits_put_i64(out, order);
    mu_sink_commit(&writer->sink, PUT(out, "}}"));
}

static void json_process(struct mu_trace_writer *writer, struct mu_process *process) {
    write_text_metadata(writer, "process_name", "name", process->pid, -1, process->name);
    write_order_metadata(writer, "process_sort_index", process->pid, -1, process->rank);
    if (process->label[0] != 0) {
        write_text_metadata(writer, "process_labels", "labels", process->pid, -1, process->label);
    }
}

static void json_track(struct mu_trace_writer *writer, struct mu_track *track) {
    if (track->kind == MU_TRACK_COUNTER || track->kind == MU_TRACK_ASYNC) {
        return; /* they have no thread; their names are in the events */
    }
    struct mu_process *process = track->process;
    write_text_metadata(writer, "thread_name", "name", process->pid, track->tid, track->name);
    write_order_metadata(writer, "thread_sort_index", process->pid, track->tid, track->order);
    char *end = put_start(track->prefix, "X", track);
    track->prefix_length = (uint32_t)(end - track->prefix);
}

static void json_header(struct mu_trace_writer *writer, struct mu_sink *target) {
    char text[256], *out = text;
    out = PUT(out, "{\"displayTimeUnit\":\"ns\",\"baseTimeNanoseconds\":");
    out = mu_digits_put_i64(out, writer->base_ns);
    out = PUT(out, ",\"otherData\":{\"tool\":\"my_utils.csv2trace\"},\"traceEvents\":[\n");
    mu_sink_write(target, text, (size_t)(out - text));
}

static void json_trailer(struct mu_trace_writer *writer, struct mu_sink *target) {
    (void)writer;
    mu_sink_write(target, "\n]}\n", 4);
}

const struct mu_trace_ops mu_trace_json_ops = {
    .header = json_header,
    .trailer = json_trailer,
    .process = json_process,
    .track = json_track,
    .slice = json_slice,
    .slice_begin = json_slice_begin,
    .instant = json_instant,
    .counter = json_counter,
    .flow = json_flow,
};
