/* Turns rows into events: reads each row's fields, and calls the function that draws its kind. */
#include "trace/convert.h"

#include "base/digits.h"
#include "csv/csv_fields.h"
#include "trace/convert_internal.h"

#include <stdio.h>
#include <stdlib.h>

enum { TEXT_IN_NOTE = 60 };

int mu_converter_init(struct mu_converter *converter, struct mu_trace_job *job,
                      const struct mu_convert_options *options, struct mu_error *err) {
    memset(converter, 0, sizeof(*converter));
    converter->job = job;
    converter->options = *options;
    converter->file = "";
    int code =
        mu_trace_writer_init(&converter->writer, mu_trace_ops_of(job->format), &job->output, err);
    if (code == MU_OK) {
        code = mu_trace_names_init(&converter->names, err);
    }
    if (code == MU_OK) {
        code = mu_id_map_init(&converter->tracks, err);
    }
    if (code == MU_OK) {
        code = mu_id_map_init(&converter->taken_tids, err);
    }
    if (code == MU_OK) {
        code = mu_id_map_init(&converter->open_by_key, err);
    }
    if (code == MU_OK) {
        code = mu_id_map_init(&converter->pending_by_key, err);
    }
    if (code == MU_OK) {
        code = mu_id_map_init(&converter->open_flows, err);
    }
    converter->names.filter = options->filter;
    converter->names.filter_context = options->filter_context;
    converter->writer.ids = &job->ids;
    converter->writer.notes = &converter->notes;
    converter->writer.with_args = options->with_args;
    converter->writer.hides_ids = options->is_foreign;
    return code;
}

void mu_converter_reset(struct mu_converter *converter) {
    mu_stages_reset(converter);
    mu_flows_reset(converter);
    mu_tracks_reset(converter);
    mu_trace_names_reset(&converter->names);
    mu_id_map_reset(&converter->tracks);
    mu_id_map_reset(&converter->taken_tids);
    mu_id_map_reset(&converter->open_by_key);
    mu_id_map_reset(&converter->pending_by_key);
    mu_id_map_reset(&converter->open_flows);
    mu_trace_writer_reset(&converter->writer);
    free(converter->offsets);
    converter->offsets = NULL;
}

static void note_text(struct mu_converter *converter, enum mu_note_kind kind, uint64_t line,
                      const char *what, struct mu_span text) {
    int length = (int)(text.length < TEXT_IN_NOTE ? text.length : TEXT_IN_NOTE);
    mu_notes_add(&converter->notes, kind, converter->file, line, "%s: '%.*s'; row skipped", what,
                 length, text.text);
}

/* Returns 0 when memory is out. */
static int take_texts(struct mu_converter *converter, struct mu_event_row *row,
                      struct mu_span name) {
    mu_metadata_parse(row->metadata_text, &row->metadata);
    row->name = mu_trace_names_get(&converter->names, name.text, name.length);
    if (row->name == NULL) {
        mu_error_no_memory(&converter->error, "names of stages");
    }
    return row->name != NULL;
}

/* Returns 0 when the row cannot be used, and notes that. */
static int parse_row(struct mu_converter *converter, const struct mu_csv_row *csv,
                     struct mu_event_row *row) {
    struct mu_span time = mu_csv_field(csv, MU_CSV_TIMESTAMP),
                   step = mu_csv_field(csv, MU_CSV_STEP);
    struct mu_span type = mu_csv_field(csv, MU_CSV_EVENT_TYPE),
                   name = mu_csv_field(csv, MU_CSV_EVENT_NAME);
    row->line = csv->line;
    if (!mu_csv_time(&converter->second, time, &row->at_ns)) {
        note_text(converter, MU_NOTE_BAD_TIMESTAMP, row->line,
                  "timestamp_unix is not a decimal number", time);
        return 0;
    }
    if (!mu_csv_step(step, &row->step)) {
        note_text(converter, MU_NOTE_BAD_STEP, row->line, "step is not an integer", step);
        return 0;
    }
    row->type = mu_csv_event_type(type);
    if (row->type == 0) {
        note_text(converter, MU_NOTE_BAD_TYPE, row->line, "event_type is unknown", type);
        return 0;
    }
    row->metadata_text = mu_csv_field(csv, MU_CSV_METADATA);
    if (row->type == MU_EVENT_INSTANT) {
        mu_clock_steps_take(&converter->clock_steps, name, row->metadata_text);
    }
    if (!mu_clock_steps_undo(&converter->clock_steps, &row->at_ns)) {
        note_text(converter, MU_NOTE_BAD_TIMESTAMP, row->line,
                  "steps of the clock make timestamp_unix no time", time);
        return 0;
    }
    row->machine = mu_csv_field(csv, MU_CSV_MACHINE_ID);
    row->duration = mu_csv_field(csv, MU_CSV_DURATION);
    if (!take_texts(converter, row, name)) {
        return 0;
    }
    if (__builtin_sub_overflow(row->metadata.cuda_begin_ns, converter->clock_steps.moved_ns,
                               &row->metadata.cuda_begin_ns)) {
        row->metadata.has &= ~(unsigned)MU_HAS_CUDA_TS;
    }
    return 1;
}

static void add_offset(struct mu_converter *converter, const struct mu_event_row *row) {
    int64_t offset_ns;
    if (__builtin_sub_overflow(converter->clock_steps.offset_ns, converter->clock_steps.moved_ns,
                               &offset_ns)) {
        return;
    }
    size_t size = (converter->offset_count + 1) * sizeof(*converter->offsets);
    struct mu_offset *offsets = realloc(converter->offsets, size);
    if (offsets == NULL) {
        mu_error_no_memory(&converter->error, "time offsets");
        return;
    }
    converter->offsets = offsets;
    offsets[converter->offset_count++] = (struct mu_offset){row->at_ns, offset_ns};
}

/* The process counted what it lost. The row is drawn, too. */
static void add_dropped(struct mu_converter *converter, const struct mu_event_row *row) {
    struct mu_span rest = row->metadata.user, key, value;
    int64_t count = 0;
    while (mu_metadata_next(&rest, &key, &value)) {
        if (mu_span_equals(key, "count")) {
            count = mu_digits_small(value.text, value.length);
        }
    }
    mu_notes_add(&converter->notes, MU_NOTE_DROPPED, converter->file, row->line,
                 "the process lost a record, which is in no row");
    mu_notes_count(&converter->notes, MU_NOTE_DROPPED, count > 1 ? (uint64_t)count - 1 : 0);
}

/* 1 when the row names a process or a thread and is not drawn. */
static int take_own_row(struct mu_converter *converter, const struct mu_event_row *row) {
    const struct mu_trace_name *name = row->name;
    if (!mu_span_is_own((struct mu_span){name->raw, name->raw_length})) {
        return 0;
    }
    if (mu_trace_name_is(name, "my_utils.process", 16)) {
        mu_process_row(converter, row);
        return 1;
    }
    if (mu_trace_name_is(name, "my_utils.thread", 15)) {
        mu_thread_row(converter, row);
        return 1;
    }
    if (mu_trace_name_is(name, "my_utils.time_offset", 20) ||
        mu_trace_name_is(name, "my_utils.clock_step", 19)) {
        add_offset(converter, row);
    }
    if (mu_trace_name_is(name, "my_utils.dropped", 16)) {
        add_dropped(converter, row);
    }
    return 0;
}

static void draw_instant(struct mu_converter *converter, struct mu_track *track,
                         const struct mu_event_row *row) {
    struct mu_trace_event event;
    mu_fill_instant(&event, row);
    converter->writer.ops->instant(&converter->writer, track, &event);
    converter->counts.instants++;
}

static void draw_value(struct mu_converter *converter, struct mu_process *process,
                       const struct mu_event_row *row, struct mu_span key, struct mu_span value) {
    enum mu_value_kind kind = mu_metadata_kind(value);
    if (kind != MU_VALUE_INT && kind != MU_VALUE_FLOAT) {
        mu_notes_add(&converter->notes, MU_NOTE_BAD_VALUE, converter->file, row->line,
                     "counter value is not a number: '%.*s'; left out",
                     (int)(value.length < TEXT_IN_NOTE ? value.length : TEXT_IN_NOTE), value.text);
        return;
    }
    char name[256];
    struct mu_span clean = mu_trace_clean(&converter->writer, key, 0);
    if (key.length == 0) {
        snprintf(name, sizeof(name), "%.*s", (int)row->name->clean_length, row->name->clean);
    } else {
        snprintf(name, sizeof(name), "%.*s.%.*s", (int)row->name->clean_length, row->name->clean,
                 (int)clean.length, clean.text);
    }
    int64_t hash = (int64_t)mu_hash_bytes(name, strlen(name));
    struct mu_track *track = mu_track_of_kind(converter, process, MU_TRACK_COUNTER, hash, name);
    if (track != NULL) {
        converter->writer.ops->counter(&converter->writer, track, row->at_ns, value);
        converter->counts.counters++;
    }
}

/* A single `value` is the counter itself, anything else a series of it. */
static void draw_counter(struct mu_converter *converter, struct mu_process *process,
                         const struct mu_event_row *row) {
    struct mu_span rest = row->metadata.user, key, value;
    int count = 0, named_value = 0;
    while (mu_metadata_next(&rest, &key, &value)) {
        count++;
        named_value = mu_span_equals(key, "value");
    }
    rest = row->metadata.user;
    while (mu_metadata_next(&rest, &key, &value)) {
        if (count == 1 && named_value) {
            key.length = 0;
        }
        draw_value(converter, process, row, key, value);
    }
}

static int has_id(struct mu_converter *converter, const struct mu_event_row *row) {
    if (row->metadata.id < 0) {
        mu_notes_add(&converter->notes, MU_NOTE_NO_ID, converter->file, row->line,
                     "%s of '%.*s' has no id; row skipped", mu_event_name(row->type),
                     (int)row->name->clean_length, row->name->clean);
    }
    return row->metadata.id >= 0;
}

static void async_row(struct mu_converter *converter, struct mu_process *process,
                      struct mu_event_row *row) {
    char name[256];
    snprintf(name, sizeof(name), "%.*s", (int)row->name->clean_length, row->name->clean);
    struct mu_track *track =
        mu_track_of_kind(converter, process, MU_TRACK_ASYNC, (int64_t)row->name->hash, name);
    if (track == NULL || !has_id(converter, row)) {
        mu_trace_names_release(row->name);
    } else if (row->type == MU_EVENT_ASYNC_START) {
        mu_async_start(converter, track, row);
    } else {
        mu_async_end(converter, track, row);
    }
}

/* Takes over row->name. */
static void stage_row(struct mu_converter *converter, struct mu_process *process,
                      struct mu_event_row *row) {
    const struct mu_metadata *metadata = &row->metadata;
    struct mu_track *track = mu_track_of_thread(converter, process, metadata->tid, metadata->tag);
    int is_start = row->type == MU_EVENT_START;
    if (track == NULL || (is_start && mu_stage_is_repeated(converter, track, row))) {
        mu_trace_names_release(row->name);
    } else if (is_start) {
        mu_step_marker(converter, track, row);
        mu_stage_start(converter, track, row);
    } else {
        mu_stage_end(converter, track, row);
    }
}

static void point_row(struct mu_converter *converter, struct mu_process *process,
                      const struct mu_event_row *row) {
    const struct mu_metadata *metadata = &row->metadata;
    if (!mu_row_is_wanted(converter, row->name, row->step)) {
        return;
    }
    if (row->type == MU_EVENT_COUNTER) {
        draw_counter(converter, process, row);
        return;
    }
    struct mu_track *track = mu_track_of_thread(converter, process, metadata->tid, metadata->tag);
    if (track == NULL) {
        return;
    }
    if (row->type == MU_EVENT_INSTANT) {
        if ((metadata->has & MU_HAS_REPEATED) == 0) { /* an older part has it */
            draw_instant(converter, track, row);
        }
    } else if (has_id(converter, row)) {
        mu_flow_row(converter, track, row);
    }
}

static void dispatch(struct mu_converter *converter, struct mu_event_row *row) {
    if (row->type == MU_EVENT_INSTANT && take_own_row(converter, row)) {
        mu_trace_names_release(row->name);
        return;
    }
    struct mu_process *process = mu_process_of(converter, row->metadata.node, row->machine);
    if (process == NULL) {
        mu_trace_names_release(row->name);
        return;
    }
    if (row->type == MU_EVENT_START || row->type == MU_EVENT_END) {
        stage_row(converter, process, row);
    } else if (row->type == MU_EVENT_ASYNC_START || row->type == MU_EVENT_ASYNC_END) {
        async_row(converter, process, row);
    } else {
        point_row(converter, process, row);
        mu_trace_names_release(row->name);
    }
    if (row->at_ns > process->last_ns) {
        process->last_ns = row->at_ns;
    }
}

static void draw_row(struct mu_converter *converter, struct mu_event_row *row) {
    if (!converter->has_base) {
        converter->writer.base_ns = mu_trace_job_base(converter->job, row->at_ns);
        converter->has_base = 1;
    }
    if (mu_csv_only_opens(row->type, row->metadata_text)) {
        mu_trace_names_release(row->name);
        return;
    }
    size_t bad = converter->writer.bad_bytes;
    size_t bad_in_name = row->name->bad_bytes;
    converter->counts.rows++;
    dispatch(converter, row);
    if (bad_in_name > 0 || converter->writer.bad_bytes > bad) {
        mu_notes_add(&converter->notes, MU_NOTE_INVALID_UTF8, converter->file, row->line,
                     "invalid UTF-8; the bytes are written as \\xNN");
    }
}

static void take_row(struct mu_converter *converter, const struct mu_csv_row *csv) {
    struct mu_event_row row;
    if (csv->skipped_nul) {
        mu_notes_add(&converter->notes, MU_NOTE_NUL_BYTES, converter->file, csv->line,
                     "NUL bytes stand before the row; left out");
    }
    if (parse_row(converter, csv, &row)) {
        draw_row(converter, &row);
    }
}

static void note_too_long(struct mu_converter *converter, uint64_t line) {
    mu_notes_add(&converter->notes, MU_NOTE_ROW_TOO_LONG, converter->file, line,
                 "the row is longer than %d bytes; skipped", MU_CSV_ROW_MAX);
}

static void note_skipped(struct mu_converter *converter, const struct mu_csv_reader *reader,
                         const struct mu_csv_row *row) {
    switch (row->problem) {
    case MU_CSV_TOO_LONG:
        note_too_long(converter, row->line);
        break;
    case MU_CSV_CUT:
        mu_notes_add(&converter->notes, MU_NOTE_ROW_CUT, converter->file, row->line,
                     "the row is cut off; skipped");
        break;
    case MU_CSV_FEW_COLUMNS:
        mu_notes_add(&converter->notes, MU_NOTE_FEW_COLUMNS, converter->file, row->line,
                     "the row has %d columns where the header has %d; skipped", row->column_count,
                     reader->header_count);
        break;
    case MU_CSV_FINE:
        break;
    }
}

/* Whether to go on. */
MU_MUST_CHECK static int check_state(const struct mu_converter *converter, struct mu_error *err) {
    if (converter->error.code != MU_OK || converter->writer.sink.error.code != MU_OK) {
        *err = converter->error.code != MU_OK ? converter->error : converter->writer.sink.error;
        return err->code;
    }
    if (atomic_load_explicit(&converter->job->cancelled, memory_order_relaxed)) {
        return mu_error_set(err, MU_ERR_STATE, "the conversion was cancelled");
    }
    return MU_OK;
}

MU_MUST_CHECK static int read_rows(struct mu_converter *converter, struct mu_csv_reader *reader,
                                   struct mu_error *err) {
    struct mu_csv_row row;
    for (;;) {
        enum mu_csv_status status = mu_csv_reader_next(reader, &row, err);
        if (status == MU_CSV_ROW) {
            take_row(converter, &row);
        } else if (status == MU_CSV_SKIPPED) {
            note_skipped(converter, reader, &row);
        } else {
            return status == MU_CSV_END ? MU_OK : err->code;
        }
        int code = check_state(converter, err);
        if (code != MU_OK) {
            return code;
        }
    }
}

int mu_converter_part(struct mu_converter *converter, const struct mu_csv_input *input,
                      struct mu_error *err) {
    struct mu_csv_reader reader;
    struct mu_error unused;
    err = err == NULL ? &unused : err;
    converter->file = input->name;
    int code = mu_csv_reader_init(&reader, input, err);
    if (code == MU_OK) {
        code = read_rows(converter, &reader, err);
    }
    mu_csv_reader_reset(&reader);
    return code;
}

static void take_foreign(struct mu_converter *converter, const struct mu_foreign_row *foreign) {
    struct mu_event_row row = {
        .type = foreign->type, .at_ns = foreign->at_ns, .metadata_text = foreign->metadata};
    if (foreign->name.length + foreign->metadata.length > MU_CSV_ROW_MAX) {
        note_too_long(converter, 0);
    } else if (!mu_csv_usable_time(row.at_ns)) {
        mu_notes_add(&converter->notes, MU_NOTE_BAD_TIMESTAMP, converter->file, 0,
                     "%lld ns is no time of a row; row skipped", (long long)row.at_ns);
    } else if (take_texts(converter, &row, foreign->name)) {
        draw_row(converter, &row);
    }
}

int mu_converter_foreign(struct mu_converter *converter, const char *name,
                         const struct mu_foreign_row *rows, size_t count, struct mu_error *err) {
    converter->file = name;
    int code = MU_OK;
    for (size_t i = 0; code == MU_OK && i < count; i++) {
        take_foreign(converter, &rows[i]);
        code = check_state(converter, err);
    }
    return code;
}

int mu_converter_finish(struct mu_converter *converter, struct mu_error *err) {
    mu_stages_finish(converter);
    mu_flows_finish(converter);
    if (converter->error.code != MU_OK) {
        if (err != NULL) {
            *err = converter->error;
        }
        return converter->error.code;
    }
    return mu_sink_flush(&converter->writer.sink, err);
}

int mu_convert_first_ns(const struct mu_csv_input *input, int64_t *first_ns, struct mu_error *err) {
    struct mu_csv_reader reader;
    struct mu_csv_row row;
    struct mu_error unused;
    err = err == NULL ? &unused : err;
    int code = mu_csv_reader_init(&reader, input, err);
    while (code == MU_OK) {
        enum mu_csv_status status = mu_csv_reader_next(&reader, &row, err);
        if (status == MU_CSV_ROW &&
            mu_csv_usable_seconds(mu_csv_field(&row, MU_CSV_TIMESTAMP), first_ns)) {
            break;
        }
        if (status == MU_CSV_FAILED) {
            code = err->code;
        } else if (status == MU_CSV_END) {
            code = mu_error_set(err, MU_ERR_FORMAT, "%s: the file has no rows", input->name);
        }
    }
    mu_csv_reader_reset(&reader);
    return code;
}
