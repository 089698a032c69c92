/* Rows of a profile CSV to columns of finished stages. */
#include "csv/stage_table.h"

#include <math.h>
#include <stdlib.h>

#include "csv/once_rows.h"

enum { ROWS_AT_FIRST = 1024, PATHS_AT_FIRST = 32 };

/* A stage whose END has not come. */
struct open_stage {
    int64_t begin_ns;
    uint32_t path;
};

/* --- memory --- */

MU_MUST_CHECK static int grow_column(void **column, size_t element, size_t capacity,
                                     struct mu_error *err) {
    void *grown = realloc(*column, element * capacity);
    if (grown == NULL) {
        return mu_error_no_memory(err, "the stages of a rank");
    }
    *column = grown;
    return MU_OK;
}

MU_MUST_CHECK static int reserve(struct mu_stage_table *table, struct mu_error *err) {
    if (table->count < table->capacity) {
        return MU_OK;
    }
    size_t capacity = table->capacity == 0 ? ROWS_AT_FIRST : 2 * table->capacity;
    struct {
        void **column;
        size_t element;
    } columns[] = {
        {(void **)&table->step, sizeof(*table->step)},
        {(void **)&table->begin_ns, sizeof(*table->begin_ns)},
        {(void **)&table->end_ns, sizeof(*table->end_ns)},
        {(void **)&table->tid, sizeof(*table->tid)},
        {(void **)&table->cuda_ms, sizeof(*table->cuda_ms)},
        {(void **)&table->cuda_begin_ns, sizeof(*table->cuda_begin_ns)},
        {(void **)&table->cuda_error_ns, sizeof(*table->cuda_error_ns)},
        {(void **)&table->path, sizeof(*table->path)},
        {(void **)&table->tag, sizeof(*table->tag)},
        {(void **)&table->attempt, sizeof(*table->attempt)},
    };
    for (size_t i = 0; i < sizeof(columns) / sizeof(*columns); i++) {
        if (grow_column(columns[i].column, columns[i].element, capacity, err) != MU_OK) {
            return err->code;
        }
    }
    table->capacity = capacity;
    return MU_OK;
}

static void drop_open(struct mu_stage_table *table) {
    struct mu_id_map *map = &table->open_by_node;
    for (size_t i = 0; map->slots != NULL && i <= map->mask; i++) {
        if (map->slots[i].key != 0) {
            free(map->slots[i].value);
            map->slots[i] = (struct mu_id_slot){0, NULL};
        }
    }
    map->count = 0;
}

void mu_stage_table_reset(struct mu_stage_table *table) {
    drop_open(table);
    mu_id_map_reset(&table->open_by_node);
    mu_hash_table_reset(&table->path_by_name);
    mu_name_list_reset(&table->tags);
    mu_run_rows_reset(&table->run_rows);
    for (uint32_t i = 0; i < table->path_count; i++) {
        free((char *)table->paths[i].name);
    }
    free(table->paths);
    free(table->step);
    free(table->begin_ns);
    free(table->end_ns);
    free(table->tid);
    free(table->cuda_ms);
    free(table->cuda_begin_ns);
    free(table->cuda_error_ns);
    free(table->path);
    free(table->tag);
    free(table->attempt);
    memset(table, 0, sizeof(*table));
}

/* --- paths --- */

MU_MUST_CHECK static int reserve_path(struct mu_stage_table *table, struct mu_error *err) {
    if (table->path_count < table->path_capacity) {
        return MU_OK;
    }
    uint32_t capacity = table->path_capacity == 0 ? PATHS_AT_FIRST : 2 * table->path_capacity;
    if (grow_column((void **)&table->paths, sizeof(*table->paths), capacity, err) != MU_OK) {
        return err->code;
    }
    table->path_capacity = capacity;
    return MU_OK;
}

MU_MUST_CHECK static int add_path(struct mu_stage_table *table, uint32_t parent,
                                  struct mu_span name, struct mu_error *err) {
    if (reserve_path(table, err) != MU_OK) {
        return err->code;
    }
    char *copy = malloc(name.length + 1);
    if (copy == NULL) {
        return mu_error_no_memory(err, "the name of a stage");
    }
    memcpy(copy, name.text, name.length);
    uint32_t number = table->path_count++, around = 0;
    if (parent != number) {
        around = table->paths[parent].full_bytes + 1;
    }
    table->paths[number] =
        (struct mu_stage_path){parent, (uint32_t)name.length, around + (uint32_t)name.length, copy};
    return MU_OK;
}

int mu_stage_table_init(struct mu_stage_table *table, struct mu_error *err) {
    memset(table, 0, sizeof(*table));
    table->process.clock_error_ns = -1;
    mu_name_list_init(&table->tags);
    mu_run_rows_init(&table->run_rows);
    int code = mu_hash_table_init(&table->path_by_name, 0, err);
    if (code == MU_OK) {
        code = mu_id_map_init(&table->open_by_node, err);
    }
    if (code == MU_OK) {
        code = add_path(table, MU_STAGE_OTHER, (struct mu_span){"(other)", 7}, err);
    }
    if (code != MU_OK) {
        mu_stage_table_reset(table);
    }
    return code;
}

struct path_key {
    struct mu_span name;
    uint32_t parent; /* MU_STAGE_OTHER: none */
};

static bool is_path(const void *keys, uint32_t number, const void *key) {
    const struct mu_stage_path *path = (const struct mu_stage_path *)keys + number;
    const struct path_key *wanted = key;
    uint32_t parent = wanted->parent == MU_STAGE_OTHER ? number : wanted->parent;
    return path->parent == parent && path->length == wanted->name.length &&
           memcmp(path->name, wanted->name.text, path->length) == 0;
}

/* The path of a stage under `parent`. MU_STAGE_OTHER means that there is no parent. */
MU_MUST_CHECK static int find_path(struct mu_stage_table *table, uint32_t parent,
                                   struct mu_span name, uint32_t *found, struct mu_error *err) {
    struct path_key key = {name, parent};
    uint64_t hash = mu_hash_bytes(name.text, name.length) + mu_hash_u64(parent + 1u);
    *found = mu_hash_table_find(&table->path_by_name, hash, is_path, table->paths, &key);
    size_t around = parent == MU_STAGE_OTHER ? 0 : table->paths[parent].full_bytes;
    if (*found != 0 || table->path_count == MU_STAGE_PATHS_MAX ||
        around + name.length >= MU_STAGE_FULL_NAME_MAX) {
        return MU_OK;
    }
    uint32_t number = table->path_count;
    int code = mu_hash_table_reserve(&table->path_by_name, err);
    if (code == MU_OK) {
        code = add_path(table, parent == MU_STAGE_OTHER ? number : parent, name, err);
    }
    if (code == MU_OK) {
        mu_hash_table_put(&table->path_by_name, hash, number);
        *found = number;
    }
    return code;
}

/* --- rows --- */

static uint32_t path_around(const struct mu_stage_table *table, int64_t parent) {
    struct open_stage *around =
        parent > 0 ? mu_id_map_find(&table->open_by_node, (uint64_t)parent) : NULL;
    return around == NULL ? MU_STAGE_OTHER : around->path;
}

MU_MUST_CHECK static int start_stage(struct mu_stage_table *table,
                                     const struct mu_metadata *metadata, struct mu_span name,
                                     int64_t at_ns, struct mu_error *err) {
    if (metadata->node <= 0 || table->open_by_node.count >= MU_STAGE_OPEN_MAX ||
        mu_id_map_find(&table->open_by_node, (uint64_t)metadata->node) != NULL) {
        return MU_OK;
    }
    struct open_stage *open = malloc(sizeof(*open));
    if (open == NULL) {
        return mu_error_no_memory(err, "open stages");
    }
    open->begin_ns = at_ns;
    int code = find_path(table, path_around(table, metadata->parent), name, &open->path, err);
    if (code == MU_OK) {
        code = mu_id_map_put(&table->open_by_node, (uint64_t)metadata->node, open, err);
    }
    if (code != MU_OK) {
        free(open);
    }
    return code;
}

/* 0 when neither the row nor its START gives the duration. */
static int begin_of(const struct open_stage *open, struct mu_span duration, int64_t end_ns,
                    int64_t *begin_ns) {
    int64_t duration_ns;
    if (mu_digits_parse(duration.text, duration.length, 6, &duration_ns) && duration_ns >= 0 &&
        !__builtin_sub_overflow(end_ns, duration_ns, begin_ns)) {
        return 1;
    }
    *begin_ns = open == NULL ? end_ns : open->begin_ns;
    return open != NULL && *begin_ns <= end_ns;
}

static int64_t cuda_begin_ns(const struct mu_stage_table *table,
                             const struct mu_metadata *metadata) {
    int64_t begin_ns;
    bool fits =
        !__builtin_sub_overflow(metadata->cuda_begin_ns, table->clock_steps.moved_ns, &begin_ns);
    return fits ? begin_ns : MU_STAGE_NO_TIME;
}

MU_MUST_CHECK static int end_stage(struct mu_stage_table *table, const struct mu_csv_row *row,
                                   const struct mu_metadata *metadata, int64_t step, int64_t at_ns,
                                   struct mu_error *err) {
    struct open_stage *open = metadata->node > 0
                                  ? mu_id_map_remove(&table->open_by_node, (uint64_t)metadata->node)
                                  : NULL;
    int64_t begin_ns;
    uint32_t path = open == NULL ? MU_STAGE_OTHER : open->path;
    int is_timed = begin_of(open, mu_csv_field(row, MU_CSV_DURATION), at_ns, &begin_ns);
    int is_new = open == NULL;
    free(open);
    if (!is_timed) {
        table->counts.bad_rows++;
        return MU_OK;
    }
    if (is_new && find_path(table, path_around(table, metadata->parent),
                            mu_csv_field(row, MU_CSV_EVENT_NAME), &path, err) != MU_OK) {
        return err->code;
    }
    uint32_t tag;
    if (mu_name_list_find(&table->tags, metadata->tag, (struct mu_span){"", 0}, &tag, err) !=
            MU_OK ||
        reserve(table, err) != MU_OK) {
        return err->code;
    }
    size_t at = table->count++;
    table->step[at] = step;
    table->begin_ns[at] = begin_ns;
    table->end_ns[at] = at_ns;
    table->tid[at] = metadata->tid;
    table->cuda_ms[at] =
        metadata->has & MU_HAS_CUDA_MS ? (double)metadata->cuda_ns * 1e-6 : (double)NAN;
    table->cuda_begin_ns[at] =
        metadata->has & MU_HAS_CUDA_TS ? cuda_begin_ns(table, metadata) : MU_STAGE_NO_TIME;
    table->cuda_error_ns[at] = metadata->has & MU_HAS_CUDA_ERR ? metadata->cuda_error_ns : -1;
    table->path[at] = path;
    table->tag[at] = tag;
    table->attempt[at] = (int32_t)table->process.attempt;
    return MU_OK;
}

/* --- what the run says of itself --- */

/* What does not fit is left out. */
static void take_text(char *text, size_t size, struct mu_span value) {
    if (value.length < size) {
        memcpy(text, value.text, value.length);
        text[value.length] = '\0';
    }
}

static void take_process(struct mu_process_metadata *process, struct mu_span key,
                         struct mu_span value) {
    if (mu_span_equals(key, "pid")) {
        (void)mu_digits_parse(value.text, value.length, 0, &process->pid);
    } else if (mu_span_equals(key, "attempt")) {
        (void)mu_digits_parse(value.text, value.length, 0, &process->attempt);
    } else if (mu_span_equals(key, "world_size")) {
        (void)mu_digits_parse(value.text, value.length, 0, &process->world_size);
    } else if (mu_span_equals(key, "host")) {
        take_text(process->host, sizeof(process->host), value);
    } else if (mu_span_equals(key, "label")) {
        take_text(process->label, sizeof(process->label), value);
    }
}

static void take_own_row(struct mu_stage_table *table, struct mu_span name, struct mu_span pairs) {
    struct mu_process_metadata *process = &table->process;
    struct mu_span key, value;
    int64_t number, attempt = process->attempt, pid = process->pid;
    while (mu_metadata_next(&pairs, &key, &value)) {
        if (mu_span_equals(name, "my_utils.process")) {
            take_process(process, key, value);
        } else if (mu_span_equals(name, "my_utils.clock_sync") && mu_span_equals(key, "error_ns")) {
            (void)mu_digits_parse(value.text, value.length, 0, &process->clock_error_ns);
        } else if (mu_span_equals(name, "my_utils.dropped") && mu_span_equals(key, "count") &&
                   mu_digits_parse(value.text, value.length, 0, &number) && number > 0) {
            process->dropped += (uint64_t)number;
        }
    }
    if (process->pid != pid || process->attempt != attempt) {
        process->first_note = table->run_rows.note_count;
    }
    if (process->attempt != attempt) { /* what the process before left open, it took along */
        table->counts.open += table->open_by_node.count;
        drop_open(table);
    }
}

static bool is_own(int type, struct mu_span name) {
    return type == MU_EVENT_INSTANT && mu_span_is_own(name);
}

static bool is_taken(const struct mu_stage_table *table, int type) {
    bool is_stage = type == MU_EVENT_START || type == MU_EVENT_END;
    return type == MU_EVENT_INSTANT ||
           (type == MU_EVENT_COUNTER && (table->only_ends || !table->only_notes)) ||
           (is_stage && !table->only_notes);
}

MU_MUST_CHECK static int take_row(struct mu_stage_table *table, const struct mu_csv_row *row,
                                  struct mu_error *err) {
    struct mu_metadata metadata;
    int64_t at_ns, step;
    int type = mu_csv_event_type(mu_csv_field(row, MU_CSV_EVENT_TYPE));
    struct mu_span name = mu_csv_field(row, MU_CSV_EVENT_NAME);
    if (type == 0 || !mu_csv_time(&table->second, mu_csv_field(row, MU_CSV_TIMESTAMP), &at_ns) ||
        !mu_csv_step(mu_csv_field(row, MU_CSV_STEP), &step)) {
        table->counts.bad_rows++;
        return MU_OK;
    }
    struct mu_span text = mu_csv_field(row, MU_CSV_METADATA);
    if (mu_csv_only_opens(type, text)) {
        return MU_OK;
    }
    if (is_own(type, name)) {
        mu_clock_steps_take(&table->clock_steps, name, text);
    }
    if (!mu_clock_steps_undo(&table->clock_steps, &at_ns)) {
        table->counts.bad_rows++;
        return MU_OK;
    }
    table->counts.rows++;
    table->is_copy = false;
    if (!is_taken(table, type)) {
        return MU_OK;
    }
    mu_metadata_parse(text, &metadata);
    table->is_copy = (metadata.has & MU_HAS_REPEATED) != 0;
    if (type == MU_EVENT_COUNTER) {
        return mu_run_rows_counter(&table->run_rows, name, metadata.user, step,
                                   table->process.attempt, err);
    }
    if (type == MU_EVENT_INSTANT) {
        if (is_own(type, name)) {
            take_own_row(table, name, metadata.user);
        }
        return mu_run_rows_is_note(name) ? mu_run_rows_note(&table->run_rows, name, &metadata,
                                                            at_ns, table->process.attempt, err)
                                         : MU_OK;
    }
    return type == MU_EVENT_START ? start_stage(table, &metadata, name, at_ns, err)
                                  : end_stage(table, row, &metadata, step, at_ns, err);
}

static bool is_past_beginning(const struct mu_stage_table *table,
                              const struct mu_csv_reader *reader) {
    uint64_t at = reader->taken - (reader->end - reader->begin);
    uint64_t end = MU_PART_BEGIN_BYTES + (table->is_copy ? 2 * MU_ONCE_BYTES_MAX : 0);
    return at >= end;
}

int mu_stage_table_read(struct mu_stage_table *table, const struct mu_csv_input *input,
                        struct mu_error *err) {
    struct mu_csv_reader reader;
    struct mu_csv_row row;
    bool begins = table->only_ends;
    int code = mu_csv_reader_init(&reader, input, err);
    while (code == MU_OK) {
        if (begins && is_past_beginning(table, &reader)) {
            begins = false;
            code = mu_csv_reader_skip_to_end(&reader, MU_PART_END_BYTES, err);
            continue;
        }
        enum mu_csv_status status = mu_csv_reader_next(&reader, &row, err);
        if (status == MU_CSV_END) {
            break;
        }
        if (status == MU_CSV_FAILED) {
            code = err->code;
        } else if (status == MU_CSV_SKIPPED) {
            table->counts.bad_rows++;
        } else {
            code = take_row(table, &row, err);
        }
    }
    mu_csv_reader_reset(&reader);
    return code;
}
