#include "journal/row_set.h"

#include <stdlib.h>
#include <string.h>

#include "csv/csv_fields.h"
#include "journal/rows.h"

/* A row, as far as it matters here. */
struct described {
    int type;
    bool only_opens;
    bool is_stage;
    uint64_t key;
    int64_t at_ns;
    struct mu_span name;
    struct mu_metadata metadata;
};

static uint64_t mix(uint64_t hash, struct mu_span text) {
    return mu_hash_u64(hash ^ mu_hash_bytes(text.text, text.length));
}

/* A power loss may leave pages of zeros in a CSV: the halves of two rows are one line then. A name
 * may have a zero as well, but not a sector of them. */
static bool is_whole(const struct mu_csv_row *row) {
    static const char zeros[256];
    for (int column = 0; column < MU_CSV_COLUMN_COUNT; column++) {
        const char *text = row->text[column];
        const char *zero = memchr(text, '\0', row->length[column]);
        size_t left = zero == NULL ? 0 : row->length[column] - (size_t)(zero - text);
        if (left > 0 && memmem(zero, left, zeros, sizeof(zeros)) != NULL) {
            return false;
        }
    }
    return true;
}

/* Also where the mark is all that the user's part has. */
static struct mu_span without_mark(struct mu_span user) {
    static const char mark[] = MU_DOUBTFUL_MARK;
    size_t length = sizeof(mark) - 1 - (user.length == sizeof(mark) - 2);
    bool marked = user.length >= length && memcmp(user.text + user.length - length,
                                                  mark + sizeof(mark) - 1 - length, length) == 0;
    return (struct mu_span){user.text, user.length - (marked ? length : 0)};
}

MU_MUST_CHECK static bool describe(const struct mu_csv_row *row, struct mu_second *second,
                                   struct described *out) {
    struct mu_span step = mu_csv_field(row, MU_CSV_STEP);
    memset(out, 0, sizeof(*out));
    out->type = mu_csv_event_type(mu_csv_field(row, MU_CSV_EVENT_TYPE));
    out->name = mu_csv_field(row, MU_CSV_EVENT_NAME);
    if (out->type == 0 || !is_whole(row) ||
        !mu_csv_time(second, mu_csv_field(row, MU_CSV_TIMESTAMP), &out->at_ns)) {
        return false;
    }
    out->only_opens = mu_csv_only_opens(out->type, mu_csv_field(row, MU_CSV_METADATA));
    mu_metadata_parse(mu_csv_field(row, MU_CSV_METADATA), &out->metadata);
    out->is_stage =
        (out->type == MU_EVENT_START || out->type == MU_EVENT_END) && out->metadata.node >= 0;
    out->key =
        out->is_stage
            ? (uint64_t)out->metadata.node << 1 | (out->type == MU_EVENT_END)
            : mix(mix(mix((uint64_t)out->type ^ (uint64_t)out->metadata.id << 8, out->name), step),
                  without_mark(out->metadata.user));
    return true;
}

static bool same_key(const void *keys, uint32_t number, const void *key) {
    const struct mu_set_row *rows = keys;
    const struct described *row = key;
    return rows[number - 1].key == row->key && rows[number - 1].is_stage == row->is_stage;
}

static uint64_t hash_of(const struct described *row) {
    return mu_hash_u64(row->key * 2 + row->is_stage);
}

static uint32_t first_with_key(const struct mu_row_set *set, const struct described *row) {
    return mu_hash_table_find(&set->first, hash_of(row), same_key, set->rows, row);
}

/* `row` is NULL for one that no CSV row can equal. */
MU_MUST_CHECK static int add(struct mu_row_set *set, const struct described *row, size_t begin,
                             size_t end, struct mu_error *err) {
    if (set->count == set->allocated) {
        size_t wanted = set->allocated * 2 + 256;
        struct mu_set_row *rows = realloc(set->rows, wanted * sizeof(*rows));
        if (rows == NULL) {
            return mu_error_no_memory(err, "rows of a journal");
        }
        set->rows = rows;
        set->allocated = wanted;
    }
    if (row == NULL) {
        set->rows[set->count++] =
            (struct mu_set_row){.begin = begin, .end = end, .is_unproven = true};
        return MU_OK;
    }
    int code = mu_hash_table_reserve(&set->first, err);
    if (code != MU_OK) {
        return code;
    }
    uint32_t first = first_with_key(set, row), number = (uint32_t)set->count + 1;
    set->rows[set->count++] = (struct mu_set_row){
        .key = row->key,
        .at_ns = row->at_ns,
        .begin = begin,
        .end = end,
        .is_stage = row->is_stage,
        .is_unproven = row->name.length == 0,
    };
    if (first == 0) {
        mu_hash_table_put(&set->first, hash_of(row), number);
    } else {
        set->rows[number - 1].next = set->rows[first - 1].next;
        set->rows[first - 1].next = number;
    }
    set->first_ns = row->at_ns < set->first_ns ? row->at_ns : set->first_ns;
    return MU_OK;
}

/* Where the row ends that begins at `at`. Line ends within quotes are part of it. */
static size_t row_end(const char *text, size_t at, size_t length) {
    for (bool quoted = false; at < length; at++) {
        quoted ^= text[at] == '"';
        if (text[at] == '\n' && !quoted) {
            return at + 1;
        }
    }
    return length;
}

int mu_row_set_init(struct mu_row_set *set, const struct mu_csv_writer *writer,
                    struct mu_error *err) {
    memset(set, 0, sizeof(*set));
    set->first_ns = INT64_MAX;
    if (writer->length == 0) {
        return MU_OK;
    }
    struct mu_csv_input input = {
        .name = "rows", .fd = -1, .data = writer->buffer, .length = writer->length};
    struct mu_csv_reader reader;
    struct mu_csv_row row;
    struct mu_second second = {.text = ""};
    size_t begin = 0, end = 0;
    int code = mu_hash_table_init(&set->first, 256, err);
    if (code == MU_OK) {
        code = mu_csv_reader_init(&reader, &input, err);
    } else {
        memset(&reader, 0, sizeof(reader));
    }
    while (code == MU_OK) {
        enum mu_csv_status status = mu_csv_reader_next(&reader, &row, err);
        struct described described;
        if (status == MU_CSV_FAILED) {
            code = err == NULL || err->code == MU_OK ? MU_ERR_IO : err->code;
        }
        if (status == MU_CSV_END || code != MU_OK) {
            break;
        }
        end = row_end(writer->buffer, end, writer->length);
        bool known = status == MU_CSV_ROW && describe(&row, &second, &described);
        if (known && described.only_opens) {
            continue; /* it goes with the row that it opens */
        }
        code = add(set, known ? &described : NULL, begin, end, err);
        begin = end;
    }
    mu_csv_reader_reset(&reader);
    return code;
}

void mu_row_set_reset(struct mu_row_set *set) {
    mu_hash_table_reset(&set->first);
    free(set->rows);
    memset(set, 0, sizeof(*set));
}

void mu_row_set_unproven_from(struct mu_row_set *set, size_t begin) {
    for (size_t i = 0; i < set->count; i++) {
        set->rows[i].is_unproven = set->rows[i].is_unproven || set->rows[i].begin >= begin;
    }
}

void mu_rows_there_init(struct mu_rows_there *there) {
    memset(there, 0, sizeof(*there));
    there->oldest_ns = INT64_MAX;
    there->newest_ns = INT64_MIN;
}

static uint64_t distance(int64_t a, int64_t b) {
    return a > b ? (uint64_t)a - (uint64_t)b : (uint64_t)b - (uint64_t)a;
}

/* A row of the CSV is one row of the set: the one that is nearest in time. */
static void mark(struct mu_row_set *set, const struct described *row,
                 const struct mu_row_rule *rule, struct mu_rows_there *there) {
    int64_t tolerance = row->is_stage ? rule->stage_ns : rule->event_ns;
    struct mu_set_row *nearest = NULL;
    bool too_old = tolerance != MU_ANY_TIME && row->at_ns < set->first_ns &&
                   distance(row->at_ns, set->first_ns) > (uint64_t)tolerance;
    if (set->count == 0 || too_old || (!row->is_stage && !rule->takes_events)) {
        return;
    }
    for (uint32_t number = first_with_key(set, row); number != 0;) {
        struct mu_set_row *known = &set->rows[number - 1];
        uint64_t away = distance(known->at_ns, row->at_ns);
        bool near = tolerance == MU_ANY_TIME || away <= (uint64_t)tolerance;
        if (near && !known->is_there &&
            (nearest == NULL || away < distance(nearest->at_ns, row->at_ns))) {
            nearest = known;
        }
        number = known->next;
    }
    if (nearest != NULL) {
        nearest->is_there = true;
        there->found += row->is_stage;
    }
}

static int64_t number_in(struct mu_span pairs, const char *wanted) {
    int64_t number;
    return mu_metadata_number(pairs, wanted, &number) ? number : -1;
}

static bool says(struct mu_span pairs, const char *wanted, const char *text) {
    struct mu_span value;
    return mu_metadata_find(pairs, wanted, &value) && mu_span_equals(value, text);
}

static void note_own_row(const struct described *row, const struct mu_row_rule *rule,
                         struct mu_rows_there *there) {
    struct mu_span user = row->metadata.user;
    if (mu_span_equals(row->name, "my_utils.dropped") && row->metadata.tid == rule->pid) {
        int64_t count = number_in(user, "count");
        uint64_t lost = count > 0 ? (uint64_t)count : 0;
        there->reported_drops += says(user, "reason", MU_DROPPED_RING_FULL) ? lost : 0;
        there->reported_unplaced += says(user, "reason", MU_DROPPED_NO_ROOM) ? lost : 0;
    } else if (mu_span_equals(row->name, "my_utils.process")) {
        int64_t attempt = number_in(user, "attempt");
        if (attempt > there->last_attempt && attempt <= UINT32_MAX) {
            there->last_attempt = (uint32_t)attempt;
        }
    }
    if (mu_span_equals(row->name, "my_utils.time_offset") && row->metadata.tid == rule->pid) {
        there->has_offset = true;
        there->offset_ns = number_in(user, "offset_ns");
    }
    there->clock_changed = there->clock_changed ||
                           mu_span_equals(row->name, "my_utils.clock_step") ||
                           mu_span_equals(row->name, "my_utils.time_offset");
}

int mu_row_set_compare(struct mu_row_set *set, const struct mu_csv_input *piece,
                       const struct mu_row_rule *rule, struct mu_rows_there *there,
                       struct mu_error *err) {
    struct mu_csv_reader reader;
    struct mu_csv_row row;
    struct mu_second second = {.text = ""};
    struct mu_error kept = {0};
    int code = mu_csv_reader_init(&reader, piece, err);
    while (code == MU_OK) {
        struct described described;
        enum mu_csv_status status = mu_csv_reader_next(&reader, &row, &kept);
        if (status == MU_CSV_FAILED) {
            code =
                mu_error_set(err, kept.code == MU_OK ? MU_ERR_IO : kept.code, "%s", kept.message);
        }
        if (status == MU_CSV_END || status == MU_CSV_FAILED) {
            break;
        }
        if (status != MU_CSV_ROW || !describe(&row, &second, &described) || described.only_opens) {
            continue;
        }
        there->oldest_ns = described.at_ns < there->oldest_ns ? described.at_ns : there->oldest_ns;
        there->newest_ns = described.at_ns > there->newest_ns ? described.at_ns : there->newest_ns;
        if (mu_span_is_own(described.name)) {
            note_own_row(&described, rule, there);
        }
        if (set != NULL) {
            mark(set, &described, rule, there);
        }
    }
    mu_csv_reader_reset(&reader);
    return code;
}

static char *put_marked(char *at, const char *row, size_t length, const char *mark) {
    static const char end[] = "\"\n";
    size_t tail = mark != NULL && length > 2 && memcmp(row + length - 2, end, 2) == 0 ? 2 : 0;
    memcpy(at, row, length - tail);
    at += length - tail;
    if (tail > 0) {
        memcpy(at, mark, strlen(mark));
        at += strlen(mark);
        memcpy(at, end, tail);
        at += tail;
    }
    return at;
}

int mu_row_set_keep(const struct mu_row_set *set, struct mu_csv_writer *writer,
                    struct mu_rows_kept *kept, struct mu_error *err) {
    size_t more = kept->mark == NULL ? 0 : strlen(kept->mark);
    size_t allocated = writer->length + set->count * more + 1;
    char *text = malloc(allocated);
    if (text == NULL) {
        return mu_error_no_memory(err, "rows of a journal");
    }
    char *at = text;
    kept->rows = kept->unproven = 0;
    for (size_t i = 0; i < set->count; i++) {
        const struct mu_set_row *row = &set->rows[i];
        bool unproven = kept->needs_proof && row->is_unproven;
        kept->unproven += !row->is_there && unproven;
        if (row->is_there || unproven) {
            continue;
        }
        at = put_marked(at, writer->buffer + row->begin, row->end - row->begin, kept->mark);
        kept->rows++;
    }
    free(writer->buffer);
    writer->buffer = text;
    writer->allocated = allocated;
    writer->length = (size_t)(at - text);
    return MU_OK;
}
