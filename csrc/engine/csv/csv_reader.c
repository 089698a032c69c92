#include "csv/csv_reader.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/utf8.h"
#include "csv/csv_writer.h"

/* A row means something without them. */
enum { OPTIONAL_COLUMNS = 1u << MU_CSV_READABLE_TIME | 1u << MU_CSV_METADATA };

enum { MS_BETWEEN_QUESTIONS = 100 };

/* Waits until the file can be read. One that is not a pipe never waits, and what cannot be polled
 * is left to read. */
MU_MUST_CHECK static int await_input(const struct mu_csv_input *input, struct mu_error *err) {
    struct pollfd file = {.fd = input->fd, .events = POLLIN};
    for (;;) {
        int ready = poll(&file, 1, MS_BETWEEN_QUESTIONS);
        if (ready > 0 || (ready < 0 && errno != EINTR)) {
            return MU_OK;
        }
        if (input->should_stop(input->stop_context)) {
            return mu_error_set(err, MU_ERR_STOPPED, "%s: the reading was stopped", input->name);
        }
    }
}

MU_MUST_CHECK static int read_fd(struct mu_csv_reader *reader, size_t space, size_t *got,
                                 struct mu_error *err) {
    if (reader->input.should_stop != NULL) {
        int code = await_input(&reader->input, err);
        if (code != MU_OK) {
            return code;
        }
    }
    uint64_t left = reader->input.limit - reader->taken;
    size_t size = space < left ? space : (size_t)left;
    ssize_t count;
    do {
        count = size == 0 ? 0 : read(reader->input.fd, reader->buffer + reader->end, size);
    } while (count < 0 && errno == EINTR);
    if (count < 0) {
        mu_error_sys(err, "read", reader->input.name);
        return MU_ERR_IO;
    }
    *got = (size_t)count;
    return MU_OK;
}

static size_t read_memory(struct mu_csv_reader *reader, size_t space) {
    size_t left = reader->input.length - (size_t)reader->taken;
    size_t size = space < left ? space : left;
    if (size > 0) {
        memcpy(reader->buffer + reader->end, reader->input.data + reader->taken, size);
    }
    return size;
}

/* Reads once into the free end of the buffer. */
MU_MUST_CHECK static int read_some(struct mu_csv_reader *reader, struct mu_error *err) {
    size_t space = reader->capacity - reader->end;
    space = space < MU_CSV_READ_SIZE ? space : MU_CSV_READ_SIZE;
    size_t got = 0;
    if (reader->input.fd < 0) {
        got = read_memory(reader, space);
    } else {
        int code = read_fd(reader, space, &got, err);
        if (code != MU_OK) {
            return code;
        }
    }
    reader->at_end = got == 0;
    reader->taken += got;
    reader->end += got;
    if (reader->input.bytes_read != NULL) {
        atomic_fetch_add_explicit(reader->input.bytes_read, got, memory_order_relaxed);
    }
    return MU_OK;
}

MU_MUST_CHECK static int grow(struct mu_csv_reader *reader, struct mu_error *err) {
    char *buffer = realloc(reader->buffer, reader->capacity * 2 + MU_CSV_SCAN_PADDING);
    if (buffer == NULL) {
        return mu_error_no_memory(err, "buffer of the CSV reader");
    }
    reader->buffer = buffer;
    reader->capacity *= 2;
    memset(buffer + reader->end, 0, reader->capacity + MU_CSV_SCAN_PADDING - reader->end);
    return MU_OK;
}

/* Moves the row that has begun to the front of the buffer, and reads on. The buffer grows up to the
 * longest row allowed. */
MU_MUST_CHECK static int refill(struct mu_csv_reader *reader, struct mu_error *err) {
    size_t kept = reader->end - reader->begin;
    if (reader->begin > 0) {
        memmove(reader->buffer, reader->buffer + reader->begin, kept);
        reader->begin = 0;
        reader->end = kept;
    }
    if (kept == reader->capacity) {
        int code = grow(reader, err);
        if (code != MU_OK) {
            return code;
        }
    }
    return read_some(reader, err);
}

static enum mu_csv_status skip(struct mu_csv_row *row, enum mu_csv_problem problem) {
    row->problem = problem;
    return MU_CSV_SKIPPED;
}

/* Skips everything up to the next line end. It refills the buffer as often as needed. */
MU_MUST_CHECK static enum mu_csv_status skip_line(struct mu_csv_reader *reader,
                                                  struct mu_csv_row *row,
                                                  enum mu_csv_problem problem,
                                                  struct mu_error *err) {
    reader->line++;
    for (;;) {
        char *start = reader->buffer + reader->begin;
        char *found = memchr(start, '\n', reader->end - reader->begin);
        if (found != NULL) {
            reader->begin = (size_t)(found + 1 - reader->buffer);
            return skip(row, problem);
        }
        reader->begin = reader->end;
        if (reader->at_end) {
            return skip(row, problem);
        }
        if (refill(reader, err) != MU_OK) {
            return MU_CSV_FAILED;
        }
    }
}

/* A file may end without a line end: one is put into the padding. */
static enum mu_csv_scan_result scan_last(struct mu_csv_reader *reader, struct mu_csv_cut *cut) {
    reader->buffer[reader->end] = '\n';
    const char *start = reader->buffer + reader->begin;
    return mu_csv_scan_strict(start, reader->buffer + reader->end + 1, cut);
}

/* Finds the fields of the next row. */
MU_MUST_CHECK static enum mu_csv_status find_row(struct mu_csv_reader *reader,
                                                 struct mu_csv_row *row, struct mu_csv_cut *cut,
                                                 struct mu_error *err) {
    for (;;) {
        const char *start = reader->buffer + reader->begin, *limit = reader->buffer + reader->end;
        enum mu_csv_scan_result found = reader->scan(start, limit, cut);
        if (found == MU_CSV_SCAN_ROW && cut->line_end_in_quotes) {
            found = mu_csv_scan_strict(start, limit, cut);
        }
        if (found == MU_CSV_SCAN_ROW) {
            return MU_CSV_ROW;
        }
        if (found == MU_CSV_SCAN_MALFORMED) {
            return skip_line(reader, row, MU_CSV_CUT, err);
        }
        if (limit - start >= MU_CSV_ROW_MAX) {
            int torn = memchr(start, '\n', (size_t)(limit - start)) != NULL;
            return skip_line(reader, row, torn ? MU_CSV_CUT : MU_CSV_TOO_LONG, err);
        }
        if (reader->at_end && start == limit) {
            return MU_CSV_END;
        }
        if (reader->at_end) {
            found = scan_last(reader, cut);
            return found == MU_CSV_SCAN_ROW ? MU_CSV_ROW : skip_line(reader, row, MU_CSV_CUT, err);
        }
        if (refill(reader, err) != MU_OK) {
            return MU_CSV_FAILED;
        }
    }
}

/* The line end of the last row may be the one that we added behind the bytes of the file. */
static void pass_row(struct mu_csv_reader *reader, const struct mu_csv_cut *cut) {
    size_t next = (size_t)(cut->row_end + 1 - reader->buffer);
    reader->begin = next < reader->end ? next : reader->end;
}

static size_t halve_quotes(char *text, size_t length) {
    size_t kept = 0;
    for (size_t i = 0; i < length; i++) {
        text[kept++] = text[i];
        i += text[i] == '"' && i + 1 < length && text[i + 1] == '"';
    }
    return kept;
}

/* The content of a quoted field. What starts with a quote but does not end with one stays. */
static size_t unquote(char **text, size_t length, int adjacent_quotes) {
    char *start = *text;
    if (length < 2 || start[length - 1] != '"') {
        return length;
    }
    *text = start + 1;
    return adjacent_quotes ? halve_quotes(start + 1, length - 2) : length - 2;
}

static const char *without_return(const char *start, const char *end) {
    return end > start && end[-1] == '\r' ? end - 1 : end;
}

/* Corrects the last field, where the scanner cannot: it cuts a CR, and joins a metadata column at
 * the end that has commas without quotes. */
static void extend_last(struct mu_csv_reader *reader, struct mu_csv_row *row,
                        const struct mu_csv_cut *cut) {
    int last = cut->count < reader->header_count ? cut->count - 1 : reader->header_count - 1;
    int slot = reader->slot[last];
    if (last == cut->count - 1 || slot == MU_CSV_METADATA) {
        const char *end = without_return(row->text[slot], cut->row_end);
        row->length[slot] = (uint32_t)(end - row->text[slot]);
    }
}

static void unquote_all(struct mu_csv_row *row, int adjacent_quotes) {
    for (int slot = 0; slot < MU_CSV_COLUMN_COUNT; slot++) {
        if (row->length[slot] > 0 && *row->text[slot] == '"') {
            char *text = (char *)row->text[slot]; /* into our buffer */
            row->length[slot] = (uint32_t)unquote(&text, row->length[slot], adjacent_quotes);
            row->text[slot] = text;
        }
    }
}

static void clear_absent(const struct mu_csv_reader *reader, struct mu_csv_row *row) {
    for (int column = 0; column < MU_CSV_COLUMN_COUNT; column++) {
        if (reader->absent & 1u << column) {
            row->text[column] = "";
            row->length[column] = 0;
        }
    }
}

/* Moves past the row, and assigns each field to its column. */
static void take_row(struct mu_csv_reader *reader, struct mu_csv_row *row,
                     const struct mu_csv_cut *cut) {
    const char *text = reader->buffer + reader->begin;
    int count = cut->count < reader->header_count ? cut->count : reader->header_count;
    row->column_count = cut->count;
    row->line = reader->line++;
    pass_row(reader, cut);
    clear_absent(reader, row);
    for (int column = 0; column < count; column++) {
        int slot = reader->slot[column];
        row->text[slot] = text;
        row->length[slot] = (uint32_t)(cut->end[column] - text);
        text = cut->end[column] + 1;
    }
    if (cut->count >= reader->needed_count) {
        extend_last(reader, row, cut);
        unquote_all(row, cut->adjacent_quotes);
    }
}

/* For rows as this project writes them: the usual columns in their order, and no others. */
static void take_usual_row(struct mu_csv_reader *reader, struct mu_csv_row *row,
                           const struct mu_csv_cut *cut) {
    const char *text = reader->buffer + reader->begin;
    row->column_count = MU_CSV_COLUMN_COUNT;
    row->line = reader->line++;
    pass_row(reader, cut);
    for (int column = 0; column < MU_CSV_COLUMN_COUNT; column++) {
        char *field = (char *)text; /* into our buffer */
        size_t length = (size_t)(cut->end[column] - text);
        text = cut->end[column] + 1;
        if (*field == '"') {
            length = unquote(&field, length, cut->adjacent_quotes);
        }
        row->text[column] = field;
        row->length[column] = (uint32_t)length;
    }
}

/* After a crash a file system may leave NUL bytes where a write was lost. */
static int skip_nul(struct mu_csv_reader *reader, const struct mu_csv_cut *cut) {
    size_t begin = reader->begin;
    while (reader->buffer + reader->begin < cut->row_end && reader->buffer[reader->begin] == 0) {
        reader->begin++;
    }
    return reader->begin != begin;
}

static int is_blank(const struct mu_csv_reader *reader, const struct mu_csv_cut *cut) {
    const char *start = reader->buffer + reader->begin;
    return cut->count == 1 && without_return(start, cut->row_end) == start;
}

/* The next row that is not blank, cut but not yet taken. */
MU_MUST_CHECK static enum mu_csv_status find_content(struct mu_csv_reader *reader,
                                                     struct mu_csv_row *row, struct mu_csv_cut *cut,
                                                     struct mu_error *err) {
    for (;;) {
        row->line = reader->line;
        enum mu_csv_status status = find_row(reader, row, cut, err);
        if (status != MU_CSV_ROW || !is_blank(reader, cut)) {
            return status;
        }
        reader->line++;
        pass_row(reader, cut);
    }
}

enum mu_csv_status mu_csv_reader_next(struct mu_csv_reader *reader, struct mu_csv_row *row,
                                      struct mu_error *err) {
    struct mu_csv_cut cut;
    row->problem = MU_CSV_FINE;
    enum mu_csv_status status = find_content(reader, row, &cut, err);
    if (status != MU_CSV_ROW) {
        return status;
    }
    row->skipped_nul = reader->buffer[reader->begin] == 0 && skip_nul(reader, &cut);
    uint64_t more_lines = 0;
    if (cut.line_end_in_quotes) {
        more_lines = mu_count_lines(reader->buffer + reader->begin,
                                    (size_t)(cut.row_end - reader->buffer) - reader->begin);
    }
    if (reader->is_usual && cut.count == MU_CSV_COLUMN_COUNT && cut.row_end[-1] != '\r') {
        take_usual_row(reader, row, &cut);
    } else {
        take_row(reader, row, &cut);
    }
    reader->line += more_lines;
    if (row->column_count < reader->needed_count) {
        int last = reader->at_end && reader->begin >= reader->end;
        return skip(row, last ? MU_CSV_CUT : MU_CSV_FEW_COLUMNS);
    }
    return MU_CSV_ROW;
}

static uint64_t size_of(const struct mu_csv_input *input) {
    struct stat status;
    if (input->fd < 0) {
        return input->length;
    }
    if (fstat(input->fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        return 0;
    }
    uint64_t size = (uint64_t)status.st_size;
    return size < input->limit ? size : input->limit;
}

int mu_csv_reader_skip_to_end(struct mu_csv_reader *reader, uint64_t bytes, struct mu_error *err) {
    struct mu_csv_row row;
    uint64_t size = size_of(&reader->input);
    if (size <= bytes || size - bytes <= reader->taken) {
        return MU_OK;
    }
    if (reader->input.fd >= 0 && lseek(reader->input.fd, (off_t)(size - bytes), SEEK_SET) < 0) {
        return mu_error_sys(err, "seek in", reader->input.name);
    }
    reader->taken = size - bytes;
    reader->begin = reader->end = 0;
    return skip_line(reader, &row, MU_CSV_FINE, err) == MU_CSV_FAILED ? err->code : MU_OK;
}

static void use_usual_order(struct mu_csv_reader *reader) {
    for (int column = 0; column < MU_CSV_COLUMN_COUNT; column++) {
        reader->slot[column] = (int8_t)column;
    }
    reader->header_count = reader->needed_count = MU_CSV_COLUMN_COUNT;
    reader->is_usual = 1;
}

/* As in the header that the writer writes; not ended by NUL. */
static const char *name_of_column(int column, size_t *length) {
    const char *name = mu_csv_header;
    for (; column > 0; column--) {
        name += strcspn(name, ",") + 1;
    }
    *length = strcspn(name, ",\n");
    return name;
}

static int column_from_name(const char *text, size_t length) {
    for (int column = 0; column < MU_CSV_COLUMN_COUNT; column++) {
        size_t name_length;
        const char *name = name_of_column(column, &name_length);
        if (name_length == length && memcmp(name, text, length) == 0) {
            return column;
        }
    }
    return -1;
}

MU_MUST_CHECK static int check_columns(struct mu_csv_reader *reader, unsigned found,
                                       struct mu_error *err) {
    for (int column = 0; column < MU_CSV_COLUMN_COUNT; column++) {
        if (!((found | OPTIONAL_COLUMNS) & 1u << column)) {
            size_t length;
            const char *name = name_of_column(column, &length);
            return mu_error_set(err, MU_ERR_FORMAT, "%s: the header has no column '%.*s'",
                                reader->input.name, (int)length, name);
        }
    }
    return MU_OK;
}

MU_MUST_CHECK static int use_header(struct mu_csv_reader *reader, const struct mu_csv_cut *cut,
                                    struct mu_error *err) {
    char *text = reader->buffer + reader->begin;
    unsigned found = 0;
    int is_usual = 1;
    for (int i = 0; i < cut->count; i++) {
        const char *end = i == cut->count - 1 ? without_return(text, cut->row_end) : cut->end[i];
        char *name = text;
        size_t length = (size_t)(end - text);
        if (*name == '"') {
            length = unquote(&name, length, cut->adjacent_quotes);
        }
        int column = column_from_name(name, length);
        reader->slot[i] = MU_CSV_COLUMN_COUNT;
        if (column >= 0 && !(found & 1u << column)) {
            reader->slot[i] = (int8_t)column;
            reader->needed_count = i + 1;
            found |= 1u << column;
        }
        text += cut->end[i] + 1 - text;
        is_usual &= reader->slot[i] == i;
    }
    reader->is_usual = is_usual && cut->count == MU_CSV_COLUMN_COUNT;
    reader->header_count = cut->count;
    reader->absent = ~found;
    reader->line++;
    pass_row(reader, cut);
    return check_columns(reader, found, err);
}

MU_MUST_CHECK static int read_header(struct mu_csv_reader *reader, struct mu_error *err) {
    static const char byte_order_mark[] = "\xEF\xBB\xBF";
    struct mu_csv_row row;
    struct mu_csv_cut cut;
    while (!reader->at_end && reader->end < sizeof(byte_order_mark)) {
        int code = read_some(reader, err);
        if (code != MU_OK) {
            return code;
        }
    }
    if (reader->end >= 3 && memcmp(reader->buffer, byte_order_mark, 3) == 0) {
        reader->begin = 3;
    }
    enum mu_csv_status status = find_row(reader, &row, &cut, err);
    if (status == MU_CSV_FAILED) {
        return err->code;
    }
    if (status == MU_CSV_END) {
        return mu_error_set(err, MU_ERR_FORMAT, "%s: the file is empty", reader->input.name);
    }
    if (status == MU_CSV_SKIPPED) {
        return mu_error_set(err, MU_ERR_FORMAT, "%s: the first line is not a CSV header",
                            reader->input.name);
    }
    return use_header(reader, &cut, err);
}

int mu_csv_reader_init(struct mu_csv_reader *reader, const struct mu_csv_input *input,
                       struct mu_error *err) {
    struct mu_error unused;
    err = err == NULL ? &unused : err;
    memset(reader, 0, sizeof(*reader));
    reader->input = *input;
    reader->scan = mu_csv_scan_best();
    reader->line = 1;
    reader->capacity = MU_CSV_READ_SIZE;
    reader->buffer = calloc(1, reader->capacity + MU_CSV_SCAN_PADDING);
    if (reader->buffer == NULL) {
        return mu_error_no_memory(err, "buffer of the CSV reader");
    }
    if (!input->has_header) {
        use_usual_order(reader);
        return MU_OK;
    }
    return read_header(reader, err);
}

void mu_csv_reader_reset(struct mu_csv_reader *reader) {
    free(reader->buffer);
    reader->buffer = NULL;
}
