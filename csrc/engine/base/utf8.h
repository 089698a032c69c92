/* Turns bytes of unknown origin into valid JSON and protobuf strings, cuts text, and counts its
 * lines. Pure functions.
 *
 * Bytes that are not valid UTF-8 become `\xNN`, four characters, so nothing is lost and the result
 * is valid UTF-8.
 */
#ifndef MU_UTF8_H
#define MU_UTF8_H

#include <stddef.h>

enum {
    MU_UTF8_CLEAN_FACTOR = 4, /* mu_utf8_clean writes at most so many bytes for one */
    MU_UTF8_JSON_FACTOR = 6,  /* and mu_utf8_put_json */
};

/* Copies `text` as valid UTF-8; returns the length. `*bad` grows by the number of bad bytes. */
size_t mu_utf8_clean(char *out, const char *text, size_t length, size_t *bad);

/* Writes the inside of a JSON string. `text` must be valid UTF-8. Returns one past the end. */
char *mu_utf8_put_json(char *out, const char *text, size_t length);

/* `%2C` and the like become bytes; a stray `%` stays. `out` may be `text`. Returns the length. */
size_t mu_utf8_percent_decode(char *out, const char *text, size_t length);

/* For `text` of more than `most` bytes. */
size_t mu_utf8_cut_long(const char *text, size_t most);

/* `length` cut to `most` bytes, at the start of a character. */
static inline size_t mu_utf8_cut(const char *text, size_t length, size_t most) {
    return length <= most ? length : mu_utf8_cut_long(text, most);
}

/* Only \n ends a line; a last line without an end is not counted. */
size_t mu_count_lines(const char *text, size_t length);

#endif
