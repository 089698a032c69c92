#include "replace/replace_names.h"
#include "base/hash_table.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The names, and a table of their numbers: the place in `names` plus one. */
struct tally {
    const char *text;
    struct mu_replace_name *names;
    size_t count;
    struct mu_hash_table by_bytes;
};

static bool is_name(const void *keys, uint32_t number, const void *key) {
    const struct tally *tally = keys;
    struct mu_replace_span known = tally->names[number - 1].span;
    const struct mu_hash_text *wanted = key;
    return known.end - known.start == wanted->length &&
           memcmp(tally->text + known.start, wanted->bytes, wanted->length) == 0;
}

MU_MUST_CHECK static int add(struct tally *tally, struct mu_replace_span span,
                             struct mu_error *err) {
    struct mu_hash_text name = {tally->text + span.start, span.end - span.start};
    uint64_t hash = mu_hash_bytes(name.bytes, name.length);
    uint32_t number = mu_hash_table_find(&tally->by_bytes, hash, is_name, tally, &name);
    if (number == 0) {
        int code = mu_hash_table_reserve(&tally->by_bytes, err);
        if (code != MU_OK) {
            return code;
        }
        tally->names[tally->count++] = (struct mu_replace_name){.span = span};
        number = (uint32_t)tally->count;
        mu_hash_table_put(&tally->by_bytes, hash, number);
    }
    tally->names[number - 1].count++;
    return MU_OK;
}

MU_MUST_CHECK static int add_all(struct tally *tally, const struct mu_replaced *replaced,
                                 struct mu_error *err) {
    int code = mu_hash_table_init(&tally->by_bytes, 0, err);
    for (size_t i = 0; code == MU_OK && i < replaced->watched_count; i++) {
        code = add(tally, replaced->watched[i], err);
    }
    mu_hash_table_reset(&tally->by_bytes);
    return code;
}

static void number_lines(const struct tally *tally) {
    uint64_t line = 1;
    size_t at = 0;
    for (size_t i = 0; i < tally->count; i++) {
        size_t start = tally->names[i].span.start;
        line += mu_count_lines(tally->text + at, start - at);
        at = start;
        tally->names[i].line = line;
    }
}

int mu_replace_names(const struct mu_replaced *replaced, const char *text,
                     struct mu_replace_name **names, size_t *count, struct mu_error *err) {
    struct tally tally = {.text = text};
    *names = NULL;
    *count = 0;
    if (replaced->watched_count == 0) {
        return MU_OK;
    }
    tally.names = malloc(replaced->watched_count * sizeof(*tally.names));
    if (tally.names == NULL) {
        return mu_error_no_memory(err, "watched names");
    }
    int code = add_all(&tally, replaced, err);
    if (code != MU_OK) {
        free(tally.names);
        return code;
    }
    number_lines(&tally);
    *names = tally.names;
    *count = tally.count;
    return MU_OK;
}
