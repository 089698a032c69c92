#include "base/utf8.h"

#include "base/digits.h"

#include <stdint.h>
#include <string.h>

static const char hex_digits[] = "0123456789abcdef";

static int is_continuation(unsigned char byte) {
    return (byte & 0xC0) == 0x80;
}

/* Length of the valid UTF-8 sequence at `text`, 0 when there is none (Unicode 15, table 3-7). */
static size_t sequence_length(const unsigned char *text, size_t length) {
    unsigned char first = text[0];
    if (first < 0x80) {
        return 1;
    }
    size_t wanted = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || length < wanted) {
        return 0;
    }
    for (size_t i = 1; i < wanted; i++) {
        if (!is_continuation(text[i])) {
            return 0;
        }
    }
    unsigned char second = text[1];
    int overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
    int surrogate = first == 0xED && second > 0x9F;
    int too_large = first == 0xF4 && second > 0x8F;
    return overlong || surrogate || too_large ? 0 : wanted;
}

static size_t plain_prefix(const char *text, size_t length) {
    size_t at = 0;
    while (at < length && (unsigned char)text[at] < 0x80) {
        at++;
    }
    return at;
}

size_t mu_utf8_clean(char *out, const char *text, size_t length, size_t *bad) {
    size_t at = plain_prefix(text, length);
    if (at > 0) { /* an empty text may be NULL */
        memcpy(out, text, at);
    }
    char *end = out + at;
    while (at < length) {
        size_t step = sequence_length((const unsigned char *)text + at, length - at);
        if (step > 0) {
            memcpy(end, text + at, step);
            end += step;
            at += step;
            continue;
        }
        unsigned char byte = (unsigned char)text[at++];
        const char escaped[] = {'\\', 'x', hex_digits[byte >> 4], hex_digits[byte & 15]};
        memcpy(end, escaped, sizeof(escaped));
        end += sizeof(escaped);
        ++*bad;
    }
    return (size_t)(end - out);
}

static char *put_escape(char *out, unsigned char byte) {
    static const char shorts[] = "b\bf\fn\nr\rt\t\"\"\\\\";
    *out++ = '\\';
    for (const char *pair = shorts; *pair != 0; pair += 2) {
        if ((unsigned char)pair[1] == byte) {
            *out++ = pair[0];
            return out;
        }
    }
    memcpy(out, "u00", 3);
    out[3] = hex_digits[byte >> 4];
    out[4] = hex_digits[byte & 15];
    return out + 5;
}

char *mu_utf8_put_json(char *out, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (byte < 0x20 || byte == '"' || byte == '\\') {
            out = put_escape(out, byte);
        } else {
            *out++ = (char)byte;
        }
    }
    return out;
}

size_t mu_utf8_percent_decode(char *out, const char *text, size_t length) {
    size_t kept = 0;
    for (size_t i = 0; i < length; i++) {
        int high = -1, low = -1;
        if (text[i] == '%' && i + 2 < length) {
            high = mu_digits_hex(text[i + 1]);
            low = mu_digits_hex(text[i + 2]);
        }
        if (high >= 0 && low >= 0) {
            out[kept++] = (char)(high * 16 + low);
            i += 2;
        } else {
            out[kept++] = text[i];
        }
    }
    return kept;
}

size_t mu_utf8_cut_long(const char *text, size_t most) {
    while (most > 0 && is_continuation((unsigned char)text[most])) {
        most--;
    }
    return most;
}

size_t mu_count_lines(const char *text, size_t length) {
    if (length == 0) {
        return 0; /* `text` may be NULL */
    }
    const char *end = text + length;
    size_t lines = 0;
    while (text < end && (text = memchr(text, '\n', (size_t)(end - text))) != NULL) {
        lines++;
        text++;
    }
    return lines;
}
