/* Perfetto's protobuf trace: TrackEvents, one packet sequence a track.
 *
 * A sequence starts with its track, its defaults and its clocks; names are interned in it when they
 * first occur. Time stamps are differences to the packet before (clock 64), or absolute after
 * `base_ns` (clock 65) where time goes back. Numbers of fields and enums are those of
 * protos/perfetto/trace/{trace_packet,clock_snapshot,interned_data/interned_data,
 * track_event/{track_event,track_descriptor,debug_annotation}}.proto, Perfetto v50.
 */
#include "trace/trace.h"

#include "base/digits.h"
#include "base/protobuf.h"

#include <locale.h>
#include <stdlib.h>

enum { TRACE_PACKET = 1 };

enum packet_field {
    PACKET_CLOCK_SNAPSHOT = 6,
    PACKET_TIMESTAMP = 8,
    PACKET_SEQUENCE_ID = 10,
    PACKET_TRACK_EVENT = 11,
    PACKET_INTERNED_DATA = 12,
    PACKET_SEQUENCE_FLAGS = 13,
    PACKET_CLOCK_ID = 58,
    PACKET_DEFAULTS = 59,
    PACKET_TRACK_DESCRIPTOR = 60,
};

enum { SEQUENCE_CLEARED = 1, SEQUENCE_NEEDS_STATE = 2 };
enum { DEFAULTS_TRACK_EVENT = 11, DEFAULTS_EVENT_TRACK = 11 };

enum { SNAPSHOT_CLOCKS = 1 };
enum { CLOCK_ID = 1, CLOCK_TIMESTAMP = 2, CLOCK_IS_INCREMENTAL = 3 };
enum { CLOCK_REALTIME_ID = 1, CLOCK_BOOTTIME_ID = 6, CLOCK_DELTA = 64, CLOCK_AFTER_BASE = 65 };

enum event_field {
    EVENT_ANNOTATION = 4,
    EVENT_TYPE = 9,
    EVENT_NAME_ID = 10,
    EVENT_NAME = 23,
    EVENT_COUNTER = 30,
    EVENT_DOUBLE_COUNTER = 44,
    EVENT_FLOW = 47,
    EVENT_FLOW_ENDS = 48,
};

enum event_type { TYPE_BEGIN = 1, TYPE_END = 2, TYPE_INSTANT = 3, TYPE_COUNTER = 4 };

enum annotation_field {
    ANNOTATION_NAME_ID = 1,
    ANNOTATION_BOOL = 2,
    ANNOTATION_INT = 4,
    ANNOTATION_DOUBLE = 5,
    ANNOTATION_STRING = 6,
    ANNOTATION_NAME = 10,
};

enum {
    INTERNED_EVENT_NAMES = 2,
    INTERNED_ANNOTATION_NAMES = 3,
    INTERNED_ID = 1,
    INTERNED_NAME = 2
};

/* Ids of the names of arguments, interned at the start of each sequence. */
enum { ARG_STEP = 1, ARG_NODE, ARG_PARENT };

enum descriptor_field {
    DESCRIPTOR_UUID = 1,
    DESCRIPTOR_NAME = 2,
    DESCRIPTOR_PROCESS = 3,
    DESCRIPTOR_THREAD = 4,
    DESCRIPTOR_PARENT = 5,
    DESCRIPTOR_COUNTER = 8,
    DESCRIPTOR_RANK = 12,
    DESCRIPTOR_MERGE = 15,
};

enum { PROCESS_PID = 1, PROCESS_NAME = 6, PROCESS_LABELS = 8 };
enum { THREAD_PID = 1, THREAD_TID = 2, THREAD_NAME = 5 };
enum { MERGE_NONE = 2 };
enum { NAME_WORDS = MU_TRACE_NAMES_MAX / 64, PACKET_BYTES_MAX = 1024 };

static char *put_clock(char *out, unsigned id, int64_t value, int is_incremental) {
    char *body;
    out = pb_open(out, SNAPSHOT_CLOCKS, &body);
    out = pb_uint(out, CLOCK_ID, id);
    out = pb_int(out, CLOCK_TIMESTAMP, value);
    if (is_incremental) {
        out = pb_uint(out, CLOCK_IS_INCREMENTAL, 1);
    }
    return pb_close(body, out);
}

/* The trace's own time (BOOTTIME) starts at `base_ns` of the wall clock. */
static char *put_clocks(char *out, const struct mu_trace_writer *writer, int of_sequence) {
    char *body;
    out = pb_open(out, PACKET_CLOCK_SNAPSHOT, &body);
    out = put_clock(out, CLOCK_BOOTTIME_ID, 0, 0);
    out = put_clock(out, CLOCK_REALTIME_ID, writer->base_ns, 0);
    if (of_sequence) {
        out = put_clock(out, CLOCK_DELTA, 0, 1);
        out = put_clock(out, CLOCK_AFTER_BASE, 0, 0);
    }
    return pb_close(body, out);
}

static char *put_defaults(char *out, uint32_t uuid) {
    char *body, *event;
    out = pb_open(out, PACKET_DEFAULTS, &body);
    out = pb_open(out, DEFAULTS_TRACK_EVENT, &event);
    out = pb_uint(out, DEFAULTS_EVENT_TRACK, uuid);
    out = pb_close(event, out);
    out = pb_uint(out, PACKET_CLOCK_ID, CLOCK_DELTA);
    return pb_close(body, out);
}

static char *put_interned(char *out, unsigned list, uint64_t id, const char *text, size_t length) {
    char *body;
    out = pb_open(out, list, &body);
    out = pb_uint(out, INTERNED_ID, id);
    out = pb_bytes(out, INTERNED_NAME, text, length);
    return pb_close(body, out);
}

static char *put_arg_names(char *out) {
    static const char *const names[] = {
        [ARG_STEP] = "step", [ARG_NODE] = "node_id", [ARG_PARENT] = "parent_id"};
    char *body;
    out = pb_open(out, PACKET_INTERNED_DATA, &body);
    for (unsigned id = ARG_STEP; id <= ARG_PARENT; id++) {
        out = put_interned(out, INTERNED_ANNOTATION_NAMES, id, names[id], strlen(names[id]));
    }
    return pb_close(body, out);
}

static char *put_thread(char *out, const struct mu_track *track) {
    char *body;
    out = pb_open(out, DESCRIPTOR_THREAD, &body);
    out = pb_int(out, THREAD_PID, track->process->pid);
    out = pb_int(out, THREAD_TID, track->tid);
    out = pb_bytes(out, THREAD_NAME, track->name, strlen(track->name));
    return pb_close(body, out);
}

static char *put_descriptor(char *out, const struct mu_track *track) {
    char *body, *counter;
    out = pb_open(out, PACKET_TRACK_DESCRIPTOR, &body);
    out = pb_uint(out, DESCRIPTOR_UUID, track->uuid);
    out = pb_uint(out, DESCRIPTOR_PARENT, track->process->uuid);
    out = pb_uint(out, DESCRIPTOR_RANK, track->order);
    if (track->kind == MU_TRACK_COUNTER || track->kind == MU_TRACK_ASYNC) {
        out = pb_bytes(out, DESCRIPTOR_NAME, track->name, strlen(track->name));
        out = pb_uint(out, DESCRIPTOR_MERGE, MERGE_NONE);
    } else {
        out = put_thread(out, track);
    }
    if (track->kind == MU_TRACK_COUNTER) {
        out = pb_open(out, DESCRIPTOR_COUNTER, &counter);
        out = pb_close(counter, out);
    }
    return pb_close(body, out);
}

static void pb_process(struct mu_trace_writer *writer, struct mu_process *process) {
    char *out = mu_sink_reserve(&writer->sink, PACKET_BYTES_MAX), *packet, *body, *inner;
    if (out == NULL) {
        return;
    }
    out = pb_open(out, TRACE_PACKET, &packet);
    out = pb_open(out, PACKET_TRACK_DESCRIPTOR, &body);
    out = pb_uint(out, DESCRIPTOR_UUID, process->uuid);
    out = pb_open(out, DESCRIPTOR_PROCESS, &inner);
    out = pb_int(out, PROCESS_PID, process->pid);
    out = pb_bytes(out, PROCESS_NAME, process->name, strlen(process->name));
    if (process->label[0] != 0) {
        out = pb_bytes(out, PROCESS_LABELS, process->label, strlen(process->label));
    }
    out = pb_close(inner, out);
    out = pb_close(body, out);
    out = pb_uint(out, PACKET_SEQUENCE_ID, process->uuid);
    mu_sink_commit(&writer->sink, pb_close(packet, out));
}

static void start_sequence(struct mu_trace_writer *writer, struct mu_track *track) {
    char *out = mu_sink_reserve(&writer->sink, PACKET_BYTES_MAX), *packet;
    track->names_known = calloc(NAME_WORDS, sizeof(*track->names_known));
    if (out == NULL || track->names_known == NULL) {
        mu_error_no_memory(&writer->sink.error, "names of a track");
        return;
    }
    out = pb_open(out, TRACE_PACKET, &packet);
    out = pb_uint(out, PACKET_SEQUENCE_ID, track->uuid);
    out = pb_uint(out, PACKET_SEQUENCE_FLAGS, SEQUENCE_CLEARED);
    out = put_defaults(out, track->uuid);
    out = put_clocks(out, writer, 1);
    mu_sink_commit(&writer->sink, pb_close(packet, out));
    out = mu_sink_reserve(&writer->sink, PACKET_BYTES_MAX);
    if (out == NULL) {
        return;
    }
    out = pb_open(out, TRACE_PACKET, &packet);
    out = pb_uint(out, PACKET_SEQUENCE_ID, track->uuid);
    out = pb_uint(out, PACKET_SEQUENCE_FLAGS, SEQUENCE_NEEDS_STATE);
    out = put_arg_names(out);
    mu_sink_commit(&writer->sink, pb_close(packet, out));
}

static void pb_track(struct mu_trace_writer *writer, struct mu_track *track) {
    char *out = mu_sink_reserve(&writer->sink, PACKET_BYTES_MAX), *packet;
    if (out == NULL) {
        return;
    }
    out = pb_open(out, TRACE_PACKET, &packet);
    out = put_descriptor(out, track);
    out = pb_uint(out, PACKET_SEQUENCE_ID, track->uuid);
    mu_sink_commit(&writer->sink, pb_close(packet, out));
    if (track->names_known == NULL) {
        start_sequence(writer, track);
    }
}

static char *open_packet(char *out, struct mu_trace_writer *writer, struct mu_track *track,
                         int64_t at_ns, char **packet) {
    int64_t after_base = at_ns - writer->base_ns;
    if (after_base < 0) {
        mu_notes_add(writer->notes, MU_NOTE_BEFORE_BASE, "", 0,
                     "events lie before the start of the trace; drawn at its start");
        after_base = 0;
    }
    out = pb_open(out, TRACE_PACKET, packet);
    if (after_base >= track->clock_ns) {
        out = pb_uint(out, PACKET_TIMESTAMP, (uint64_t)after_base - (uint64_t)track->clock_ns);
        track->clock_ns = after_base;
    } else {
        out = pb_uint(out, PACKET_TIMESTAMP, (uint64_t)after_base);
        out = pb_uint(out, PACKET_CLOCK_ID, CLOCK_AFTER_BASE);
    }
    out = pb_uint(out, PACKET_SEQUENCE_ID, track->uuid);
    return pb_uint(out, PACKET_SEQUENCE_FLAGS, SEQUENCE_NEEDS_STATE);
}

/* In the packet that first uses the name; 0 stays for names without a number. */
static char *put_new_name(char *out, struct mu_track *track, const struct mu_trace_name *name) {
    if (name->number < 0 || track->names_known == NULL) {
        return out;
    }
    uint64_t *word = &track->names_known[name->number / 64], bit = 1ull << name->number % 64;
    if (*word & bit) {
        return out;
    }
    *word |= bit;
    char *body;
    out = pb_open(out, PACKET_INTERNED_DATA, &body);
    out = put_interned(out, INTERNED_EVENT_NAMES, (uint64_t)name->number + 1, name->clean,
                       name->clean_length);
    return pb_close(body, out);
}

static char *put_name(char *out, const struct mu_trace_name *name) {
    if (name->number < 0) {
        return pb_bytes(out, EVENT_NAME, name->clean, name->clean_length);
    }
    return pb_uint(out, EVENT_NAME_ID, (uint64_t)name->number + 1);
}

static char *put_own_arg(char *out, unsigned name_id, int64_t value) {
    char *body;
    out = pb_open(out, EVENT_ANNOTATION, &body);
    out = pb_uint(out, ANNOTATION_NAME_ID, name_id);
    out = pb_int(out, ANNOTATION_INT, value);
    return pb_close(body, out);
}

/* `number` has the grammar of JSON, so it ends where strtod stops. */
static double to_double(const struct mu_trace_writer *writer, struct mu_span number) {
    char text[128];
    size_t length = number.length < sizeof(text) - 1 ? number.length : sizeof(text) - 1;
    memcpy(text, number.text, length);
    text[length] = 0;
    return strtod_l(text, NULL, writer->c_locale);
}

static char *put_value(char *out, struct mu_trace_writer *writer, struct mu_span value) {
    int64_t integer = 0;
    switch (mu_metadata_kind(value)) {
    case MU_VALUE_INT:
        mu_digits_parse(value.text, value.length, 0, &integer);
        return pb_int(out, ANNOTATION_INT, integer);
    case MU_VALUE_FLOAT:
        return pb_double(out, ANNOTATION_DOUBLE, to_double(writer, value));
    case MU_VALUE_BOOL:
        return pb_uint(out, ANNOTATION_BOOL, (value.text[0] | 0x20) == 't');
    case MU_VALUE_STRING:
        break;
    }
    value = mu_trace_clean(writer, value, 1);
    return pb_bytes(out, ANNOTATION_STRING, value.text, value.length);
}

static char *put_key(char *out, struct mu_trace_writer *writer, struct mu_span key) {
    int taken = mu_trace_is_own_key(key);
    key = mu_trace_clean(writer, key, 0);
    out = pb_varint(pb_tag(out, ANNOTATION_NAME, PB_BYTES), key.length + (size_t)taken);
    memcpy(out, key.text, key.length);
    out += key.length;
    if (taken) {
        *out++ = '_';
    }
    return out;
}

static char *put_pairs(char *out, struct mu_trace_writer *writer, struct mu_span pairs,
                       struct mu_span written) {
    struct mu_span key, value;
    while (mu_metadata_next(&pairs, &key, &value)) {
        if (mu_metadata_has_key(written, key)) {
            continue;
        }
        char *body;
        out = pb_open(out, EVENT_ANNOTATION, &body);
        out = put_key(out, writer, key);
        out = put_value(out, writer, value);
        out = pb_close(body, out);
    }
    return out;
}

static char *put_fields(char *out, struct mu_trace_writer *writer,
                        const struct mu_trace_event *event) {
    for (int i = 0; i < event->field_count; i++) {
        const struct mu_field *field = &event->fields[i];
        char *body;
        out = pb_open(out, EVENT_ANNOTATION, &body);
        out = pb_bytes(out, ANNOTATION_NAME, field->key, strlen(field->key));
        out = field->unit == MU_FIELD_MS
                  ? pb_double(out, ANNOTATION_DOUBLE, (double)field->ns / 1e6)
                  : put_value(out, writer, field->text);
        out = pb_close(body, out);
    }
    return out;
}

static char *put_args(char *out, struct mu_trace_writer *writer,
                      const struct mu_trace_event *event) {
    if (!writer->with_args) {
        return out;
    }
    if (event->has_step && !writer->hides_ids) {
        out = put_own_arg(out, ARG_STEP, event->step);
    }
    if (event->node >= 0 && !writer->hides_ids) {
        out = put_own_arg(out, ARG_NODE, event->node);
    }
    if (event->parent >= 0 && !writer->hides_ids) {
        out = put_own_arg(out, ARG_PARENT, event->parent);
    }
    out = put_fields(out, writer, event);
    out = put_pairs(out, writer, event->user[0], (struct mu_span){NULL, 0});
    return put_pairs(out, writer, event->user[1], event->user[0]);
}

static char *put_begin(char *out, struct mu_trace_writer *writer, struct mu_track *track,
                       const struct mu_trace_event *event) {
    char *packet, *body;
    out = open_packet(out, writer, track, event->begin_ns, &packet);
    out = put_new_name(out, track, event->name);
    out = pb_open(out, PACKET_TRACK_EVENT, &body);
    out = pb_uint(out, EVENT_TYPE, TYPE_BEGIN);
    out = put_name(out, event->name);
    out = put_args(out, writer, event);
    return pb_close(packet, pb_close(body, out));
}

static char *put_end(char *out, struct mu_trace_writer *writer, struct mu_track *track,
                     const struct mu_trace_event *event, int with_args) {
    char *packet, *body;
    out = open_packet(out, writer, track, event->end_ns, &packet);
    if (event->named_end) {
        out = put_new_name(out, track, event->name);
    }
    out = pb_open(out, PACKET_TRACK_EVENT, &body);
    out = pb_uint(out, EVENT_TYPE, TYPE_END);
    if (event->named_end) {
        out = put_name(out, event->name);
    }
    if (with_args && writer->with_args) {
        out = put_fields(out, writer, event);
        out = put_pairs(out, writer, event->user[0], (struct mu_span){NULL, 0});
    }
    return pb_close(packet, pb_close(body, out));
}

static void pb_slice(struct mu_trace_writer *writer, struct mu_track *track,
                     const struct mu_trace_event *event) {
    char *out = mu_sink_reserve(&writer->sink, mu_trace_event_bytes_max(event) * 2);
    if (out != NULL) {
        out = put_begin(out, writer, track, event);
        mu_sink_commit(&writer->sink, put_end(out, writer, track, event, 0));
    }
}

static void pb_slice_begin(struct mu_trace_writer *writer, struct mu_track *track,
                           const struct mu_trace_event *event) {
    char *out = mu_sink_reserve(&writer->sink, mu_trace_event_bytes_max(event));
    if (out != NULL) {
        mu_sink_commit(&writer->sink, put_begin(out, writer, track, event));
    }
}

static void pb_slice_end(struct mu_trace_writer *writer, struct mu_track *track,
                         const struct mu_trace_event *event) {
    char *out = mu_sink_reserve(&writer->sink, mu_trace_event_bytes_max(event));
    if (out != NULL) {
        mu_sink_commit(&writer->sink, put_end(out, writer, track, event, 1));
    }
}

/* flow_field 0: an instant without an arrow. */
static void write_instant(struct mu_trace_writer *writer, struct mu_track *track,
                          const struct mu_trace_event *event, unsigned flow_field, uint64_t flow) {
    char *out = mu_sink_reserve(&writer->sink, mu_trace_event_bytes_max(event)), *packet, *body;
    if (out == NULL) {
        return;
    }
    out = open_packet(out, writer, track, event->begin_ns, &packet);
    out = put_new_name(out, track, event->name);
    out = pb_open(out, PACKET_TRACK_EVENT, &body);
    out = pb_uint(out, EVENT_TYPE, TYPE_INSTANT);
    out = put_name(out, event->name);
    if (flow_field != 0) {
        out = pb_fixed64(out, flow_field, flow);
    }
    out = put_args(out, writer, event);
    mu_sink_commit(&writer->sink, pb_close(packet, pb_close(body, out)));
}

static void pb_instant(struct mu_trace_writer *writer, struct mu_track *track,
                       const struct mu_trace_event *event) {
    write_instant(writer, track, event, 0, 0);
}

static void pb_flow(struct mu_trace_writer *writer, struct mu_track *track,
                    const struct mu_trace_event *event, uint64_t id, int is_end) {
    write_instant(writer, track, event, is_end ? EVENT_FLOW_ENDS : EVENT_FLOW, id);
}

static void pb_counter(struct mu_trace_writer *writer, struct mu_track *track, int64_t at_ns,
                       struct mu_span number) {
    char *out = mu_sink_reserve(&writer->sink, PACKET_BYTES_MAX), *packet, *body;
    if (out == NULL) {
        return;
    }
    out = open_packet(out, writer, track, at_ns, &packet);
    out = pb_open(out, PACKET_TRACK_EVENT, &body);
    out = pb_uint(out, EVENT_TYPE, TYPE_COUNTER);
    int64_t integer = 0;
    if (mu_metadata_kind(number) == MU_VALUE_INT) {
        mu_digits_parse(number.text, number.length, 0, &integer);
        out = pb_int(out, EVENT_COUNTER, integer);
    } else {
        out = pb_double(out, EVENT_DOUBLE_COUNTER, to_double(writer, number));
    }
    mu_sink_commit(&writer->sink, pb_close(packet, pb_close(body, out)));
}

static void pb_header(struct mu_trace_writer *writer, struct mu_sink *target) {
    char text[256], *packet, *out = pb_open(text, TRACE_PACKET, &packet);
    out = put_clocks(out, writer, 0);
    out = pb_uint(out, PACKET_SEQUENCE_ID,
                  atomic_fetch_add_explicit(&writer->ids->next_track, 1, memory_order_relaxed));
    out = pb_close(packet, out);
    mu_sink_write(target, text, (size_t)(out - text));
}

static void pb_trailer(struct mu_trace_writer *writer, struct mu_sink *target) {
    (void)writer;
    (void)target; /* packets follow each other; nothing closes them */
}

const struct mu_trace_ops mu_trace_perfetto_ops = {
    .eager_ties = 1,
    .header = pb_header,
    .trailer = pb_trailer,
    .process = pb_process,
    .track = pb_track,
    .slice = pb_slice,
    .slice_begin = pb_slice_begin,
    .slice_end = pb_slice_end,
    .instant = pb_instant,
    .counter = pb_counter,
    .flow = pb_flow,
};
