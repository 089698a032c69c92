#include "csv/stage_rows.h"

static const char *problem_of(const struct mu_csv_reader *reader, const struct mu_csv_row *row) {
    if (reader->at_end && reader->begin >= reader->end) {
        return MU_STAGE_ROW_UNFINISHED;
    }
    switch (row->problem) {
    case MU_CSV_TOO_LONG:
        return "the row is too long";
    case MU_CSV_FEW_COLUMNS:
        return "the row has too few columns";
    default:
        return "the row is torn";
    }
}

static int64_t attempt_of(struct mu_span pairs) {
    struct mu_span value;
    return mu_metadata_find(pairs, "attempt", &value) ? mu_digits_small(value.text, value.length)
                                                      : -1;
}

static void take_ids(const struct mu_metadata *metadata, struct mu_stage_row *row) {
    row->node = metadata->node;
    row->parent = metadata->parent;
    row->tid = metadata->tid;
    row->tag = metadata->tag;
}

static void take_end(struct mu_stage_rows *rows, const struct mu_csv_row *fields,
                     const struct mu_metadata *metadata, struct mu_stage_row *row) {
    struct mu_span duration = mu_csv_field(fields, MU_CSV_DURATION);
    if (!mu_csv_step(mu_csv_field(fields, MU_CSV_STEP), &row->step)) {
        row->bad |= MU_BAD_STEP;
    }
    row->has_duration = duration.length > 0;
    if (row->has_duration &&
        (!mu_digits_parse(duration.text, duration.length, 6, &row->duration_ns) ||
         row->duration_ns < 0)) {
        row->bad |= MU_BAD_DURATION;
        row->duration_ns = 0;
    }
    row->has_cuda = (metadata->has & MU_HAS_CUDA_MS) != 0;
    row->cuda_ns = metadata->cuda_ns;
    if (metadata->has & MU_HAS_BAD_CUDA_MS || row->cuda_ns < 0) {
        row->bad |= MU_BAD_CUDA;
    }
    if (!mu_csv_time(&rows->second, mu_csv_field(fields, MU_CSV_TIMESTAMP), &row->end_ns) ||
        !mu_clock_steps_undo(&rows->clock_steps, &row->end_ns)) {
        row->bad |= MU_BAD_TIME;
    }
}

/* 0 when the row is of no kind that is asked for. */
static int take_row(struct mu_stage_rows *rows, const struct mu_csv_row *fields,
                    struct mu_stage_row *row) {
    struct mu_metadata metadata;
    struct mu_span text = mu_csv_field(fields, MU_CSV_METADATA);
    int type = mu_csv_event_type(mu_csv_field(fields, MU_CSV_EVENT_TYPE));
    row->line = fields->line;
    row->name = mu_csv_field(fields, MU_CSV_EVENT_NAME);
    if (fields->column_count > rows->reader.header_count) {
        row->kind = MU_STAGE_ROW_BAD;
        row->problem = "the row has too many columns";
        return 1;
    }
    if (mu_csv_only_opens(type, text)) {
        return 0;
    }
    if (type != MU_EVENT_START && type != MU_EVENT_END) {
        mu_clock_steps_take(&rows->clock_steps, row->name, text);
        row->kind = MU_STAGE_ROW_PROCESS;
        row->attempt = attempt_of(text);
        return mu_span_equals(row->name, "my_utils.process");
    }
    mu_metadata_parse(text, &metadata);
    take_ids(&metadata, row);
    row->kind = type == MU_EVENT_START ? MU_STAGE_ROW_START : MU_STAGE_ROW_END;
    if (type == MU_EVENT_END) {
        take_end(rows, fields, &metadata, row);
    }
    return 1;
}

int mu_stage_rows_init(struct mu_stage_rows *rows, const struct mu_csv_input *input,
                       struct mu_error *err) {
    rows->second = (struct mu_second){.ns = 0};
    rows->clock_steps = (struct mu_clock_steps){.moved_ns = 0};
    return mu_csv_reader_init(&rows->reader, input, err);
}

void mu_stage_rows_reset(struct mu_stage_rows *rows) {
    mu_csv_reader_reset(&rows->reader);
}

void mu_stage_rows_next(struct mu_stage_rows *rows, struct mu_stage_row *row,
                        struct mu_error *err) {
    struct mu_csv_row fields;
    for (;;) {
        *row = (struct mu_stage_row){.kind = MU_STAGE_ROW_NONE, .attempt = -1};
        switch (mu_csv_reader_next(&rows->reader, &fields, err)) {
        case MU_CSV_END:
            return;
        case MU_CSV_FAILED:
            row->kind = MU_STAGE_ROW_FAILED;
            return;
        case MU_CSV_SKIPPED:
            row->kind = MU_STAGE_ROW_BAD;
            row->line = fields.line;
            row->problem = problem_of(&rows->reader, &fields);
            return;
        case MU_CSV_ROW:
            if (take_row(rows, &fields, row)) {
                return;
            }
        }
    }
}

int mu_stage_rows_at_hand(const struct mu_stage_rows *rows) {
    const struct mu_csv_reader *reader = &rows->reader;
    return memchr(reader->buffer + reader->begin, '\n', reader->end - reader->begin) != NULL;
}
