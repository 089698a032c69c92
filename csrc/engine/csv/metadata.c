#include "csv/metadata.h"

#include "base/digits.h"

#include <string.h>

int mu_span_equals(struct mu_span span, const char *text) {
    return strlen(text) == span.length && memcmp(span.text, text, span.length) == 0;
}

int mu_span_is_own(struct mu_span name) {
    static const char own[] = "my_utils.";
    const size_t length = sizeof(own) - 1;
    return name.length > length && memcmp(name.text, own, length) == 0;
}

int mu_metadata_next(struct mu_span *rest, struct mu_span *key, struct mu_span *value) {
    while (rest->length > 0 && rest->text[0] == ',') {
        rest->text++;
        rest->length--;
    }
    if (rest->length == 0) {
        return 0;
    }
    const char *comma = memchr(rest->text, ',', rest->length);
    size_t length = comma == NULL ? rest->length : (size_t)(comma - rest->text);
    const char *equals = memchr(rest->text, '=', length);
    if (equals == NULL) {
        *key = (struct mu_span){"metadata", 8};
        *value = (struct mu_span){rest->text, length};
    } else {
        *key = (struct mu_span){rest->text, (size_t)(equals - rest->text)};
        *value = (struct mu_span){equals + 1, length - key->length - 1};
    }
    rest->text += length;
    rest->length -= length;
    return 1;
}

int mu_metadata_find(struct mu_span pairs, const char *wanted, struct mu_span *value) {
    struct mu_span key;
    while (mu_metadata_next(&pairs, &key, value)) {
        if (mu_span_equals(key, wanted)) {
            return 1;
        }
    }
    return 0;
}

int mu_metadata_number(struct mu_span pairs, const char *wanted, int64_t *number) {
    struct mu_span value;
    return mu_metadata_find(pairs, wanted, &value) &&
           mu_digits_parse(value.text, value.length, 0, number);
}

int mu_metadata_has_key(struct mu_span pairs, struct mu_span wanted) {
    struct mu_span key, value;
    while (mu_metadata_next(&pairs, &key, &value)) {
        if (key.length == wanted.length && memcmp(key.text, wanted.text, key.length) == 0) {
            return 1;
        }
    }
    return 0;
}

/* The last byte but one tells keys of one length apart, without a call. */
static const struct mu_metadata_key *find_key(struct mu_span name) {
    for (int i = 0; i < MU_METADATA_KEY_COUNT; i++) {
        const struct mu_metadata_key *key = &mu_metadata_keys[i];
        size_t length = key->length;
        if (length == name.length && key->name[length - 2] == name.text[length - 2] &&
            memcmp(key->name, name.text, length) == 0) {
            return key;
        }
    }
    return NULL;
}

/* 0 when the pair starts the user's part. */
static int take_pair(struct mu_metadata *metadata, struct mu_span name, struct mu_span value) {
    const struct mu_metadata_key *key = find_key(name);
    if (key == NULL || key->form == MU_METADATA_SHOWN) {
        return 0;
    }
    void *field = (char *)metadata + key->offset;
    int is_good = 1;
    if (key->form == MU_METADATA_WHOLE) {
        *(int64_t *)field = mu_digits_small(value.text, value.length);
    } else if (key->form == MU_METADATA_TEXT) {
        *(struct mu_span *)field = value;
    } else if (key->form != MU_METADATA_FLAG) {
        int scale = key->form == MU_METADATA_MS ? 6 : 9;
        is_good = mu_digits_parse(value.text, value.length, scale, field);
    }
    metadata->has |= is_good ? key->flag : key->bad_flag;
    return 1;
}

/* Parses digits from `at` on, appends them to `value`, and returns how many there are. `value` is
 * right for at most 18 digits. */
static inline size_t read_digits(const char *at, const char *end, uint64_t *value) {
    const char *first = at;
    for (; at < end && (unsigned)(*at - '0') <= 9; at++) {
        *value = *value * 10 + (unsigned)(*at - '0');
    }
    return (size_t)(at - first);
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__

/* The same from 0 on, eight digits at once. `before` bytes may be read in front of `at`. */
static inline size_t read_number(const char *at, const char *end, size_t before, uint64_t *value) {
    size_t left = (size_t)(end - at);
    uint64_t word;
    *value = 0;
    if (left >= 8) {
        memcpy(&word, at, 8);
    } else if (left > 0 && left + before >= 8) {
        memcpy(&word, end - 8, 8);
        word >>= 8 * (8 - left); /* NUL is not a digit: it ends the number */
    } else {
        return read_digits(at, end, value);
    }
    unsigned count = mu_digits_in_word(word);
    if (count == 0) {
        return 0;
    }
    *value = mu_digits_of_word(word << 8 * (8 - count));
    return count < 8 ? count : 8 + read_digits(at + 8, end, value);
}

#else

static inline size_t read_number(const char *at, const char *end, size_t before, uint64_t *value) {
    (void)before;
    *value = 0;
    return read_digits(at, end, value);
}

#endif

/* Parses `key` of `length` bytes, a number, and a comma or the end. Returns the number and advances
 * `rest`; returns -1 and leaves `rest` as it is when the text differs. Nearly every row starts
 * so. */
static inline int64_t take_number(struct mu_span *rest, const char *key, size_t length) {
    if (rest->length <= length || memcmp(rest->text, key, length) != 0) {
        return -1;
    }
    const char *at = rest->text + length, *end = rest->text + rest->length;
    uint64_t value;
    size_t digits = read_number(at, end, length, &value);
    at += digits;
    if (digits == 0 || digits > 18 || (at < end && *at != ',')) {
        return -1;
    }
    at += at < end;
    rest->length = (size_t)(end - at);
    rest->text = at;
    return (int64_t)value;
}

void mu_metadata_parse(struct mu_span text, struct mu_metadata *metadata) {
    *metadata = (struct mu_metadata){.node = -1, .parent = -1, .tid = -1, .stream = -1, .id = -1};
    struct mu_span rest = text, key, value;
    metadata->node = take_number(&rest, "node_id=", 8);
    metadata->parent = take_number(&rest, "parent_id=", 10);
    metadata->tid = take_number(&rest, "tid=", 4);
    while (rest.length > 0) {
        struct mu_span before = rest;
        if (!mu_metadata_next(&rest, &key, &value)) {
            return;
        }
        if (!take_pair(metadata, key, value)) {
            metadata->user = before;
            return;
        }
    }
}

static size_t count_digits(const char *text, size_t length) {
    size_t count = 0;
    while (count < length && (unsigned)(text[count] - '0') <= 9) {
        count++;
    }
    return count;
}

static enum mu_value_kind kind_of_number(const char *text, size_t length) {
    size_t at = length > 0 && text[0] == '-';
    size_t digits = count_digits(text + at, length - at);
    if (digits == 0 || (digits > 1 && text[at] == '0')) {
        return MU_VALUE_STRING;
    }
    at += digits;
    if (at == length && digits <= 18) {
        return MU_VALUE_INT;
    }
    if (at < length && text[at] == '.') {
        digits = count_digits(text + at + 1, length - at - 1);
        if (digits == 0) {
            return MU_VALUE_STRING;
        }
        at += digits + 1;
    }
    if (at < length && (text[at] | 0x20) == 'e') {
        at++;
        at += at < length && (text[at] == '+' || text[at] == '-');
        digits = count_digits(text + at, length - at);
        at = digits == 0 || digits > 3 ? 0 : at + digits;
    }
    return at == length ? MU_VALUE_FLOAT : MU_VALUE_STRING;
}

enum mu_value_kind mu_metadata_kind(struct mu_span value) {
    if (value.length == 0) {
        return MU_VALUE_STRING;
    }
    char first = (char)(value.text[0] | 0x20);
    if (first == 't' || first == 'f') {
        int is_bool = mu_span_equals(value, "true") || mu_span_equals(value, "True") ||
                      mu_span_equals(value, "false") || mu_span_equals(value, "False");
        return is_bool ? MU_VALUE_BOOL : MU_VALUE_STRING;
    }
    return kind_of_number(value.text, value.length);
}
