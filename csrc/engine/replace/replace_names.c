#include "replace/replace_names.h"
#include "base/id_map.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The names by their bytes: a hash table whose slots hold the number of a name and 1, or 0. */
struct tally {
    const char *text;
    struct mu_replace_name *names;
    size_t count;
    size_t *slots;
    size_t mask; /* slots - 1, all ones */
};

static bool is_same(const char *text, struct mu_replace_span a, struct mu_replace_span b) {
    size_t length = a.end - a.start;
    return length == b.end - b.start && memcmp(text + a.start, text + b.start, length) == 0;
}

/* The slot of a name, or the free one that it is to get. */
static size_t *slot_of(const struct tally *tally, struct mu_replace_span span) {
    size_t at = mu_hash_bytes(tally->text + span.start, span.end - span.start) & tally->mask;
    while (tally->slots[at] != 0 &&
           !is_same(tally->text, tally->names[tally->slots[at] - 1].span, span)) {
        at = (at + 1) & tally->mask;
    }
    return &tally->slots[at];
}

static void add(struct tally *tally, struct mu_replace_span span) {
    size_t *slot = slot_of(tally, span);
    if (*slot == 0) {
        tally->names[tally->count++] = (struct mu_replace_name){.span = span};
        *slot = tally->count;
    }
    tally->names[*slot - 1].count++;
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

/* At least twice as many as names, so that a free slot is near. */
static size_t slots_for(size_t names) {
    size_t slots = 16;
    while (slots / 2 < names) {
        slots *= 2;
    }
    return slots;
}

int mu_replace_names(const struct mu_replaced *replaced, const char *text,
                     struct mu_replace_name **names, size_t *count, struct mu_error *err) {
    size_t watched = replaced->watched_count, slots = slots_for(watched);
    struct tally tally = {.text = text, .mask = slots - 1};
    *names = NULL;
    *count = 0;
    if (watched == 0) {
        return MU_OK;
    }
    tally.names = malloc(watched * sizeof(*tally.names));
    tally.slots = calloc(slots, sizeof(*tally.slots));
    if (tally.names == NULL || tally.slots == NULL) {
        free(tally.names);
        free(tally.slots);
        return mu_error_no_memory(err, "watched names");
    }
    for (size_t i = 0; i < watched; i++) {
        add(&tally, replaced->watched[i]);
    }
    number_lines(&tally);
    free(tally.slots);
    *names = tally.names;
    *count = tally.count;
    return MU_OK;
}
