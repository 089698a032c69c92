#include "trace/event_sort.h"

#include "base/digits.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

struct item {
    int64_t at, length_ns; /* in nanoseconds, INT64_MIN without a time */
    const char *text;
    size_t length;
};

/* The number after `key`, which is in the part of the event that we wrote. */
static int64_t number_after(const char *text, size_t length, const char *key, int64_t otherwise) {
    const char *found = memmem(text, length, key, strlen(key));
    int64_t value = otherwise;
    if (found != NULL) {
        const char *number = found + strlen(key);
        size_t left = length - (size_t)(number - text), count = 0;
        while (count < left && strchr("-.0123456789", number[count]) != NULL) {
            count++;
        }
        mu_digits_parse(number, count, 3, &value);
    }
    return value;
}

static int compare(const void *left, const void *right) {
    const struct item *a = left, *b = right;
    if (a->at != b->at) {
        return a->at < b->at ? -1 : 1;
    }
    if (a->length_ns != b->length_ns) {
        return a->length_ns > b->length_ns ? -1 : 1;
    }
    return a->text < b->text ? -1 : a->text > b->text;
}

static size_t split(const char *text, size_t length, struct item *items) {
    size_t count = 0;
    for (const char *end = text + length; text < end; count++) {
        const char *line_end = memchr(text, '\n', (size_t)(end - text));
        struct item *item = &items[count];
        item->text = text;
        item->length = line_end == NULL ? (size_t)(end - text) : (size_t)(line_end - text) - 1;
        item->at = number_after(text, item->length, "\"ts\":", INT64_MIN);
        item->length_ns = number_after(text, item->length, ",\"dur\":", 0);
        text = line_end == NULL ? end : line_end + 1;
    }
    return count;
}

int mu_event_sort(const char *events, size_t length, struct mu_sink *out, struct mu_error *err) {
    if (length == 0) {
        return MU_OK;
    }
    struct item *items = malloc((mu_count_lines(events, length) + 1) * sizeof(*items));
    if (items == NULL) {
        return mu_error_no_memory(err, "sorting events");
    }
    size_t count = split(events, length, items);
    qsort(items, count, sizeof(*items), compare);
    for (size_t i = 0; i < count; i++) {
        if (i > 0) {
            mu_sink_write(out, ",\n", 2);
        }
        mu_sink_write(out, items[i].text, items[i].length);
    }
    free(items);
    return mu_sink_flush(out, err);
}
