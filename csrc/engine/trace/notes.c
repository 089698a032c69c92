#include "trace/notes.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const names[MU_NOTE_KIND_COUNT] = {
    [MU_NOTE_ROW_TOO_LONG] = "row_too_long",
    [MU_NOTE_ROW_CUT] = "row_cut",
    [MU_NOTE_FEW_COLUMNS] = "few_columns",
    [MU_NOTE_BAD_TIMESTAMP] = "bad_timestamp",
    [MU_NOTE_BAD_STEP] = "bad_step",
    [MU_NOTE_BAD_TYPE] = "bad_type",
    [MU_NOTE_BAD_VALUE] = "bad_value",
    [MU_NOTE_NO_ID] = "no_id",
    [MU_NOTE_END_DROPPED] = "end_dropped",
    [MU_NOTE_DROPPED] = "dropped",
    [MU_NOTE_NUL_BYTES] = "nul_bytes",
    [MU_NOTE_INVALID_UTF8] = "invalid_utf8",
    [MU_NOTE_DUPLICATE_NODE] = "duplicate_node",
    [MU_NOTE_STEP_BACK] = "step_back",
    [MU_NOTE_END_ALONE] = "end_alone",
    [MU_NOTE_END_EARLY] = "end_early",
    [MU_NOTE_BEFORE_BASE] = "before_base",
    [MU_NOTE_OPEN] = "open",
};

const char *mu_note_name(enum mu_note_kind kind) {
    return names[kind];
}

int mu_note_is_loss(enum mu_note_kind kind) {
    return kind <= MU_NOTE_DROPPED;
}

static void keep_end(char *out, size_t size, const char *text) {
    size_t length = strlen(text);
    size_t skip = length >= size ? length - size + 1 : 0;
    memcpy(out, text + skip, length - skip + 1);
}

/* A message may quote bytes of the file: they become valid UTF-8. */
static void format_clean(struct mu_note *note, const char *format, va_list args) {
    char raw[MU_NOTE_TEXT_MAX / MU_UTF8_CLEAN_FACTOR];
    size_t bad = 0;
    vsnprintf(raw, sizeof(raw), format, args);
    size_t length = mu_utf8_clean(note->text, raw, strlen(raw), &bad);
    note->text[length] = 0;
}

void mu_notes_count(struct mu_notes *notes, enum mu_note_kind kind, uint64_t more) {
    uint64_t *count = &notes->of[kind].count;
    *count = *count > UINT64_MAX - more ? UINT64_MAX : *count + more;
}

void mu_notes_add(struct mu_notes *notes, enum mu_note_kind kind, const char *file, uint64_t line,
                  const char *format, ...) {
    struct mu_note *note = &notes->of[kind];
    if (note->count++ > 0) {
        return;
    }
    note->line = line;
    keep_end(note->file, sizeof(note->file), file);
    va_list args;
    va_start(args, format);
    format_clean(note, format, args);
    va_end(args);
}
