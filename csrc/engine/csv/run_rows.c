/* Values of counters as columns, and the rows about a run as they are. */
#include "csv/run_rows.h"

#include "base/digits.h"
#include "csv/once_rows.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES_AT_FIRST = 256, NOTES_AT_FIRST = 16, NUMBER_LENGTH_MAX = 63 };

void mu_run_rows_init(struct mu_run_rows *rows) {
    memset(rows, 0, sizeof(*rows));
    mu_name_list_init(&rows->names);
}

void mu_run_rows_reset(struct mu_run_rows *rows) {
    for (size_t i = 0; i < rows->note_count; i++) {
        free(rows->notes[i].text);
    }
    free(rows->notes);
    free(rows->step);
    free(rows->value);
    free(rows->name);
    free(rows->attempt);
    mu_hash_table_reset(&rows->note_by_text);
    mu_name_list_reset(&rows->names);
    mu_run_rows_init(rows);
}

MU_MUST_CHECK static int grow(void **column, size_t element, size_t capacity,
                              struct mu_error *err) {
    void *grown = realloc(*column, element * capacity);
    if (grown == NULL) {
        return mu_error_no_memory(err, "what a rank says of itself");
    }
    *column = grown;
    return MU_OK;
}

MU_MUST_CHECK static int reserve(struct mu_run_rows *rows, struct mu_error *err) {
    if (rows->count < rows->capacity) {
        return MU_OK;
    }
    size_t capacity = rows->capacity == 0 ? VALUES_AT_FIRST : 2 * rows->capacity;
    if (grow((void **)&rows->step, sizeof(*rows->step), capacity, err) != MU_OK ||
        grow((void **)&rows->value, sizeof(*rows->value), capacity, err) != MU_OK ||
        grow((void **)&rows->name, sizeof(*rows->name), capacity, err) != MU_OK ||
        grow((void **)&rows->attempt, sizeof(*rows->attempt), capacity, err) != MU_OK) {
        return err->code;
    }
    rows->capacity = capacity;
    return MU_OK;
}

/* 0 for what is not a number. */
static int number_of(struct mu_span text, double *number) {
    int64_t whole;
    if (mu_digits_parse(text.text, text.length, 0, &whole) &&
        memchr(text.text, '.', text.length) == NULL) {
        *number = (double)whole;
        return 1;
    }
    if (text.length == 0 || text.length > NUMBER_LENGTH_MAX) {
        return 0;
    }
    char copy[NUMBER_LENGTH_MAX + 1], *end;
    memcpy(copy, text.text, text.length);
    copy[text.length] = '\0';
    *number = strtod(copy, &end);
    return end == copy + text.length;
}

int mu_run_rows_counter(struct mu_run_rows *rows, struct mu_span name, struct mu_span pairs,
                        int64_t step, int64_t attempt, struct mu_error *err) {
    struct mu_span key, value;
    double number;
    while (rows->count < MU_COUNTER_VALUES_MAX && mu_metadata_next(&pairs, &key, &value)) {
        struct mu_span tail = mu_span_equals(key, "value") ? (struct mu_span){"", 0} : key;
        uint32_t number_of_name;
        if (!number_of(value, &number)) {
            continue;
        }
        if (mu_name_list_find(&rows->names, name, tail, &number_of_name, err) != MU_OK ||
            reserve(rows, err) != MU_OK) {
            return err->code;
        }
        if (number_of_name == 0) { /* a name too many */
            continue;
        }
        rows->step[rows->count] = step;
        rows->value[rows->count] = number;
        rows->name[rows->count] = number_of_name;
        rows->attempt[rows->count++] = (int32_t)attempt;
    }
    return MU_OK;
}

static bool is_of_a_step(struct mu_span name) {
    return mu_span_equals(name, "my_utils.ready") || mu_span_equals(name, "my_utils.ready_gpu") ||
           mu_span_equals(name, "my_utils.file");
}

/* Each part begins with it, as it was. */
static bool is_process(struct mu_span name) {
    return mu_span_equals(name, "my_utils.process");
}

int mu_run_rows_is_note(struct mu_span name) {
    return mu_once_row_is_kept(name) || is_process(name) ||
           mu_span_equals(name, "my_utils.clock_step") ||
           mu_span_equals(name, "my_utils.run_end") || mu_span_equals(name, "my_utils.dropped") ||
           is_of_a_step(name);
}

MU_MUST_CHECK static int reserve_note(struct mu_run_rows *rows, struct mu_error *err) {
    if (rows->note_count < rows->note_capacity) {
        return MU_OK;
    }
    size_t capacity = rows->note_capacity == 0 ? NOTES_AT_FIRST : 2 * rows->note_capacity;
    if (grow((void **)&rows->notes, sizeof(*rows->notes), capacity, err) != MU_OK) {
        return err->code;
    }
    rows->note_capacity = capacity;
    return MU_OK;
}

static bool is_same_note(const void *notes, uint32_t number, const void *key) {
    const struct mu_run_note *note = (const struct mu_run_note *)notes + number - 1;
    const struct mu_run_note *wanted = key;
    return note->attempt == wanted->attempt && strcmp(note->text, wanted->text) == 0;
}

/* Enters the next note, of which there is to be one. *is_known: it is there. */
MU_MUST_CHECK static int enter_note(struct mu_run_rows *rows, const struct mu_run_note *note,
                                    bool *is_known, struct mu_error *err) {
    struct mu_hash_table *table = &rows->note_by_text;
    uint64_t hash = mu_hash_bytes(note->text, strlen(note->text));
    int code = table->slots == NULL ? mu_hash_table_init(table, NOTES_AT_FIRST, err)
                                    : mu_hash_table_reserve(table, err);
    if (code != MU_OK) {
        return code;
    }
    *is_known = mu_hash_table_find(table, hash, is_same_note, rows->notes, note) != 0;
    if (!*is_known) {
        mu_hash_table_put(table, hash, (uint32_t)rows->note_count + 1);
    }
    return MU_OK;
}

int mu_run_rows_note(struct mu_run_rows *rows, struct mu_span name,
                     const struct mu_metadata *metadata, int64_t at_ns, int64_t attempt,
                     struct mu_error *err) {
    struct mu_span pairs = metadata->user;
    while (pairs.length > 0 && pairs.text[0] == ',') { /* behind a pair of ours */
        pairs.text++;
        pairs.length--;
    }
    bool of_a_step = is_of_a_step(name);
    if (rows->note_count >= (of_a_step ? MU_RUN_NOTES_MAX : 2 * MU_RUN_NOTES_MAX)) {
        return MU_OK;
    }
    if (reserve_note(rows, err) != MU_OK) {
        return err->code;
    }
    char *text = malloc(name.length + pairs.length + 2);
    if (text == NULL) {
        return mu_error_no_memory(err, "the rows about a run");
    }
    memcpy(text, name.text, name.length);
    text[name.length] = ' ';
    if (pairs.length > 0) {
        memcpy(text + name.length + 1, pairs.text, pairs.length);
    }
    text[name.length + 1 + pairs.length] = '\0';
    const struct mu_run_note note = {attempt, at_ns, metadata->tid, text};
    bool is_known = false;
    if (!of_a_step && enter_note(rows, &note, &is_known, err) != MU_OK) {
        free(text);
        return err->code;
    }
    bool is_copy = (metadata->has & MU_HAS_REPEATED) != 0 || is_process(name);
    if (is_known && is_copy) {
        free(text);
        return MU_OK;
    }
    rows->notes[rows->note_count++] = note;
    return MU_OK;
}
