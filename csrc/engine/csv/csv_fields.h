/* Parses the fields of a profile row: times, steps and types.
 *
 * Texts are in a reader's buffer, whose padding may be read. The functions are inline because each
 * is called once for every row. A cache belongs to one thread at a time.
 */
#ifndef MU_CSV_FIELDS_H
#define MU_CSV_FIELDS_H

#include "base/digits.h"
#include "base/event.h"
#include "csv/csv_reader.h"
#include "csv/metadata.h"

#include <string.h>

enum { MU_SECOND_LENGTH = 11, MU_TIME_LENGTH = 20 }; /* "1750000000." and nine decimals */

/* The whole seconds of the row before. Rows of the same second differ only in the decimals. */
struct mu_second {
    char text[12]; /* with the point; "" at first */
    int64_t ns;
};

static inline struct mu_span mu_csv_field(const struct mu_csv_row *row, enum mu_csv_column column) {
    return (struct mu_span){row->text[column], row->length[column]};
}

/* 0 for what names no type. */
static inline int mu_csv_event_type(struct mu_span text) {
    if (text.length == 3 && memcmp(text.text, "END", 3) == 0) {
        return MU_EVENT_END;
    }
    if (text.length == 5 && memcmp(text.text, "START", 5) == 0) {
        return MU_EVENT_START;
    }
    return mu_event_from_name(text.text, text.length);
}

/* Whether a row with that metadata says nothing that the row after it does not say. */
static inline int mu_csv_only_opens(int type, struct mu_span metadata) {
    const size_t length = sizeof(MU_CSV_OPENS) - 1;
    return type == MU_EVENT_START && metadata.length > length &&
           memcmp(metadata.text, MU_CSV_OPENS, length) == 0;
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__

static inline int64_t mu_csv_small_field(struct mu_span text) {
    return text.length <= 8 ? mu_digits_of_few(text.text, text.length)
                            : mu_digits_small(text.text, text.length);
}

#else

static inline int64_t mu_csv_small_field(struct mu_span text) {
    return mu_digits_small(text.text, text.length);
}

#endif

/* Of times of rows, from 1824 to 2116: the difference of two, in ns, fits into 64 bits. */
#define MU_CSV_FARTHEST_NS (INT64_MAX / 2)

static inline int mu_csv_usable_time(int64_t at_ns) {
    return at_ns >= -MU_CSV_FARTHEST_NS && at_ns <= MU_CSV_FARTHEST_NS;
}

static inline int mu_csv_usable_seconds(struct mu_span text, int64_t *at_ns) {
    return mu_digits_parse_seconds(text.text, text.length, at_ns) && mu_csv_usable_time(*at_ns);
}

/* 0 when the text is not a time. */
static inline int mu_csv_time(struct mu_second *second, struct mu_span text, int64_t *at_ns) {
    if (text.length == MU_TIME_LENGTH && memcmp(text.text, second->text, MU_SECOND_LENGTH) == 0) {
        int64_t high = mu_csv_small_field((struct mu_span){text.text + MU_SECOND_LENGTH, 8});
        unsigned last = (unsigned char)text.text[MU_TIME_LENGTH - 1] - '0';
        *at_ns = second->ns + high * 10 + last;
        return high >= 0 && last <= 9;
    }
    if (!mu_csv_usable_seconds(text, at_ns)) {
        return 0;
    }
    if (text.length == MU_TIME_LENGTH && text.text[MU_SECOND_LENGTH - 1] == '.' && *at_ns > 0 &&
        *at_ns < INT64_MAX - 2000000000) {
        memcpy(second->text, text.text, MU_SECOND_LENGTH);
        second->ns = *at_ns - *at_ns % 1000000000;
    }
    return 1;
}

/* 0 when the text is not a whole number. */
static inline int mu_csv_step(struct mu_span text, int64_t *step) {
    *step = mu_csv_small_field(text);
    if (*step >= 0) {
        return 1;
    }
    int has_point = text.length == 0 || memchr(text.text, '.', text.length) != NULL;
    return !has_point && mu_digits_parse(text.text, text.length, 0, step);
}

#endif
