/* The problems that a conversion found in its input: for each kind a count, and the first place in
 * full. One struct belongs to one thread at a time.
 */
#ifndef MU_NOTES_H
#define MU_NOTES_H

#include <stdint.h>

enum mu_note_kind {
    MU_NOTE_ROW_TOO_LONG,
    MU_NOTE_ROW_CUT,
    MU_NOTE_FEW_COLUMNS,
    MU_NOTE_BAD_TIMESTAMP,
    MU_NOTE_BAD_STEP,
    MU_NOTE_BAD_TYPE,
    MU_NOTE_BAD_VALUE,
    MU_NOTE_NO_ID,
    MU_NOTE_END_DROPPED,
    MU_NOTE_DROPPED,   /* what the process could not record */
    MU_NOTE_NUL_BYTES, /* this and those below lose nothing */
    MU_NOTE_INVALID_UTF8,
    MU_NOTE_DUPLICATE_NODE,
    MU_NOTE_STEP_BACK,
    MU_NOTE_END_ALONE,
    MU_NOTE_END_EARLY,
    MU_NOTE_BEFORE_BASE,
    MU_NOTE_OPEN,
    MU_NOTE_KIND_COUNT,
};

enum { MU_NOTE_TEXT_MAX = 800 };

struct mu_note {
    uint64_t count;
    uint64_t line;               /* of the first */
    char file[256];              /* of the first; the end of a longer name */
    char text[MU_NOTE_TEXT_MAX]; /* says what is wrong and what was done */
};

struct mu_notes {
    struct mu_note of[MU_NOTE_KIND_COUNT];
};

/* Counts a problem. Formats the message only at the first call for its kind. */
void mu_notes_add(struct mu_notes *notes, enum mu_note_kind kind, const char *file, uint64_t line,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Counts so many more of a kind that has been added. */
void mu_notes_count(struct mu_notes *notes, enum mu_note_kind kind, uint64_t more);

/* A short word for scripts: "row_cut". */
const char *mu_note_name(enum mu_note_kind kind);

/* 1 when rows of this kind are missing from the trace. */
int mu_note_is_loss(enum mu_note_kind kind);

#endif
