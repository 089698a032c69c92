/* The layout of the first version's script: begin and end events as the rows come, pid the machine,
 * tid `step_<n>`, whole microseconds of Unix time, category MyTimer.
 *
 * Two suffixes keep stages of different threads and ranks apart: a pid has the rank when there are
 * several, and a tid has the thread when it is not the first.
 */
#include "trace/trace.h"

#include "base/digits.h"
#include "base/utf8.h"

#define PUT(out, literal)                                                                          \
    (memcpy((out), (literal), sizeof(literal) - 1), (out) + sizeof(literal) - 1)

static char *put_text(char *out, struct mu_trace_writer *writer, struct mu_span text) {
    size_t length = text.length;
    if (length * MU_UTF8_CLEAN_FACTOR > writer->scratch_size[0]) {
        mu_trace_clean(writer, text, 0); /* makes the scratch large enough */
    }
    if (writer->scratch[0] == NULL) {
        return out;
    }
    length = mu_utf8_clean(writer->scratch[0], text.text, length, &writer->bad_bytes);
    return mu_utf8_put_json(out, writer->scratch[0], length);
}

static char *put_pid(char *out, struct mu_trace_writer *writer, const struct mu_track *track,
                     struct mu_span machine) {
    out = PUT(out, ",\"pid\":\"");
    out = put_text(out, writer, machine);
    if (track->process->is_one_of_many) {
        out = PUT(out, " rank ");
        out = mu_digits_put_i64(out, track->process->rank);
        out = PUT(out, " process ");
        out = mu_digits_put_i64(out, track->process->pid);
    }
    return PUT(out, "\"");
}

static char *put_tid(char *out, const struct mu_track *track, int64_t step) {
    out = PUT(out, ",\"tid\":\"step_");
    out = mu_digits_put_i64(out, step);
    if (track->order > MU_TRACK_ORDER_FIRST) {
        *out++ = ' ';
        out = mu_utf8_put_json(out, track->name, strlen(track->name));
    }
    return PUT(out, "\"");
}

static char *put_args(char *out, struct mu_trace_writer *writer, const struct mu_trace_event *event,
                      int64_t duration_ns) {
    out = PUT(out, ",\"args\":{\"step\":");
    out = mu_digits_put_i64(out, event->step);
    out = PUT(out, ",\"duration_ms\":");
    out = mu_digits_put_i64(out, duration_ns / 1000000);
    char *decimals = mu_digits_put_i64(out, 1000000 + duration_ns % 1000000);
    *out = '.'; /* over the leading 1 */
    out = PUT(decimals, ",\"metadata\":\"");
    out = put_text(out, writer, event->metadata);
    out = PUT(out, "\"");
    if (event->node >= 0) {
        out = PUT(out, ",\"node_id\":");
        out = mu_digits_put_i64(out, event->node);
    }
    return PUT(out, "}");
}

static void write_event(struct mu_trace_writer *writer, const struct mu_track *track,
                        const struct mu_trace_event *event, char phase) {
    char *out = mu_sink_reserve(&writer->sink, mu_trace_event_bytes_max(event) * 2);
    if (out == NULL) {
        return;
    }
    out = PUT(out, ",\n{\"ph\":\"");
    *out++ = phase;
    out = PUT(out, "\",\"ts\":");
    int64_t at_ns = phase == 'E' ? event->end_ns : event->begin_ns;
    out = mu_digits_put_i64(out, at_ns / 1000 - (at_ns % 1000 < 0));
    out = put_pid(out, writer, track, event->machine);
    out = put_tid(out, track, event->step);
    out = PUT(out, ",\"cat\":\"MyTimer\",\"name\":\"");
    memcpy(out, event->name->json, event->name->json_length);
    out = PUT(out + event->name->json_length, "\"");
    if (phase == 'i') {
        out = PUT(out, ",\"s\":\"t\"");
    }
    out = put_args(out, writer, event, phase == 'E' ? event->duration_ns : 0);
    mu_sink_commit(&writer->sink, PUT(out, "}"));
}

static void seed_begin(struct mu_trace_writer *writer, struct mu_track *track,
                       const struct mu_trace_event *event) {
    write_event(writer, track, event, 'B');
}

static void seed_end(struct mu_trace_writer *writer, struct mu_track *track,
                     const struct mu_trace_event *event) {
    write_event(writer, track, event, 'E');
}

static void seed_slice(struct mu_trace_writer *writer, struct mu_track *track,
                       const struct mu_trace_event *event) {
    if (track->kind == MU_TRACK_THREAD) { /* this layout has no steps and no GPU */
        seed_begin(writer, track, event);
        seed_end(writer, track, event);
    }
}

static void seed_instant(struct mu_trace_writer *writer, struct mu_track *track,
                         const struct mu_trace_event *event) {
    write_event(writer, track, event, 'i');
}

static void seed_counter(struct mu_trace_writer *writer, struct mu_track *track, int64_t at_ns,
                         struct mu_span number) {
    (void)writer, (void)track, (void)at_ns, (void)number; /* this layout has no counters */
}

static void seed_flow(struct mu_trace_writer *writer, struct mu_track *track,
                      const struct mu_trace_event *event, uint64_t id, int is_end) {
    (void)id, (void)is_end; /* nor arrows */
    write_event(writer, track, event, 'i');
}

static void seed_process(struct mu_trace_writer *writer, struct mu_process *process) {
    (void)writer, (void)process;
}

static void seed_track(struct mu_trace_writer *writer, struct mu_track *track) {
    (void)writer, (void)track;
}

static void seed_header(struct mu_trace_writer *writer, struct mu_sink *target) {
    (void)writer;
    static const char text[] = "{\"traceEvents\":[\n";
    mu_sink_write(target, text, sizeof(text) - 1);
}

static void seed_trailer(struct mu_trace_writer *writer, struct mu_sink *target) {
    (void)writer;
    mu_sink_write(target, "\n]}\n", 4);
}

const struct mu_trace_ops mu_trace_seed_ops = {
    .begins_at_start = 1,
    .header = seed_header,
    .trailer = seed_trailer,
    .process = seed_process,
    .track = seed_track,
    .slice = seed_slice,
    .slice_begin = seed_begin,
    .slice_end = seed_end,
    .instant = seed_instant,
    .counter = seed_counter,
    .flow = seed_flow,
};
