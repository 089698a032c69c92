#include "replace/replace.h"
#include "replace/aho_corasick.h"

#include <stdlib.h>
#include <string.h>

/* What a rule puts in; the bytes stand in the tier's `texts`. */
struct insertion {
    size_t begin, length;
    bool changes; /* it is not what it replaces */
};

struct tier {
    struct mu_ac ac;
    struct insertion *insertions; /* owned, one a rule */
    char *texts;                  /* owned */
};

struct mu_replacer {
    size_t count;
    struct tier tiers[MU_REPLACE_TIERS_MAX];
};

/* One text on its way. */
struct run {
    const struct mu_replacer *replacer;
    const char *text;
    size_t length;
    size_t copied; /* the text before it is in the output */
    struct mu_replaced *out;
    struct mu_error *err;
};

/* --- rules --- */

static bool changes(const struct mu_replace_rule *rule) {
    return rule->to != NULL && (rule->from_length != rule->to_length ||
                                memcmp(rule->from, rule->to, rule->to_length) != 0);
}

MU_MUST_CHECK static int copy_insertions(struct tier *tier, const struct mu_replace_tier *from,
                                         struct mu_error *err) {
    size_t total = 0;
    for (size_t i = 0; i < from->count; i++) {
        total += from->rules[i].to == NULL ? 0 : from->rules[i].to_length;
    }
    tier->insertions = calloc(from->count + 1, sizeof(*tier->insertions));
    tier->texts = malloc(total + 1);
    if (tier->insertions == NULL || tier->texts == NULL) {
        return mu_error_no_memory(err, "rules");
    }
    size_t begin = 0;
    for (size_t i = 0; i < from->count; i++) {
        const struct mu_replace_rule *rule = &from->rules[i];
        size_t length = rule->to == NULL ? 0 : rule->to_length;
        if (length > 0) {
            memcpy(tier->texts + begin, rule->to, length);
        }
        tier->insertions[i] = (struct insertion){begin, length, changes(rule)};
        begin += length;
    }
    return MU_OK;
}

MU_MUST_CHECK static int init_tier(struct tier *tier, const struct mu_replace_tier *from,
                                   struct mu_error *err) {
    struct mu_ac_pattern *patterns = calloc(from->count + 1, sizeof(*patterns));
    if (patterns == NULL) {
        return mu_error_no_memory(err, "rules");
    }
    for (size_t i = 0; i < from->count; i++) {
        patterns[i] = (struct mu_ac_pattern){
            .bytes = from->rules[i].from,
            .length = from->rules[i].from_length,
            .is_watch = from->rules[i].to == NULL,
        };
    }
    int code = mu_ac_init(&tier->ac, patterns, from->count, from->whole, err);
    free(patterns);
    return code == MU_OK ? copy_insertions(tier, from, err) : code;
}

int mu_replacer_new(const struct mu_replace_tier *tiers, size_t count,
                    struct mu_replacer **replacer, struct mu_error *err) {
    *replacer = NULL;
    if (count > MU_REPLACE_TIERS_MAX) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "%zu tiers; at most %d are allowed", count,
                            MU_REPLACE_TIERS_MAX);
    }
    struct mu_replacer *made = calloc(1, sizeof(*made));
    if (made == NULL) {
        return mu_error_no_memory(err, "rules");
    }
    int code = MU_OK;
    for (size_t i = 0; code == MU_OK && i < count; i++) {
        made->count = i + 1;
        code = init_tier(&made->tiers[i], &tiers[i], err);
    }
    if (code != MU_OK) {
        mu_replacer_free(made);
        return code;
    }
    *replacer = made;
    return MU_OK;
}

void mu_replacer_free(struct mu_replacer *replacer) {
    if (replacer == NULL) {
        return;
    }
    for (size_t i = 0; i < replacer->count; i++) {
        mu_ac_reset(&replacer->tiers[i].ac);
        free(replacer->tiers[i].insertions);
        free(replacer->tiers[i].texts);
    }
    free(replacer);
}

/* --- texts --- */

MU_MUST_CHECK static int reserve(struct run *run, size_t more) {
    struct mu_replaced *out = run->out;
    if (out->bytes != NULL && more <= out->capacity - out->length) {
        return MU_OK;
    }
    size_t capacity = out->capacity == 0 ? run->length + run->length / 16 + 64 : out->capacity * 2;
    if (capacity < out->length + more) {
        capacity = out->length + more;
    }
    char *bytes = realloc(out->bytes, capacity);
    if (bytes == NULL) {
        return mu_error_no_memory(run->err, "replaced text");
    }
    out->bytes = bytes;
    out->capacity = capacity;
    return MU_OK;
}

MU_MUST_CHECK static int append(struct run *run, const char *bytes, size_t length) {
    int code = reserve(run, length);
    if (code == MU_OK && length > 0) {
        memcpy(run->out->bytes + run->out->length, bytes, length);
        run->out->length += length;
    }
    return code;
}

MU_MUST_CHECK static int watch(struct run *run, const struct mu_ac_match *match) {
    struct mu_replaced *out = run->out;
    if (out->watched_count == out->watched_capacity) {
        size_t capacity = out->watched_capacity == 0 ? 16 : out->watched_capacity * 2;
        struct mu_replace_span *grown = realloc(out->watched, capacity * sizeof(*grown));
        if (grown == NULL) {
            return mu_error_no_memory(run->err, "watched names");
        }
        out->watched = grown;
        out->watched_capacity = capacity;
    }
    out->watched[out->watched_count++] = (struct mu_replace_span){match->start, match->end};
    return MU_OK;
}

MU_MUST_CHECK static int insert(struct run *run, const struct tier *tier,
                                const struct mu_ac_match *match) {
    const struct insertion *insertion = &tier->insertions[match->pattern];
    if (match->is_watch) {
        return watch(run, match);
    }
    if (!insertion->changes) {
        return MU_OK;
    }
    run->out->count++;
    int code = append(run, run->text + run->copied, match->start - run->copied);
    run->copied = match->end;
    return code != MU_OK ? code : append(run, tier->texts + insertion->begin, insertion->length);
}

/* Applies the tiers from `number` on to [from, limit). */
MU_MUST_CHECK static int replace_between(struct run *run, size_t number, size_t from,
                                         size_t limit) {
    if (number == run->replacer->count || from == limit) {
        return MU_OK;
    }
    const struct tier *tier = &run->replacer->tiers[number];
    struct mu_ac_match match;
    int code = MU_OK;
    while (code == MU_OK && mu_ac_find(&tier->ac, run->text, run->length, from, limit, &match)) {
        code = replace_between(run, number + 1, from, match.start);
        if (code == MU_OK) {
            code = insert(run, tier, &match);
        }
        from = match.end;
    }
    return code != MU_OK ? code : replace_between(run, number + 1, from, limit);
}

int mu_replacer_run(const struct mu_replacer *replacer, const char *text, size_t length,
                    struct mu_replaced *out, struct mu_error *err) {
    *out = (struct mu_replaced){0};
    struct run run = {.replacer = replacer, .text = text, .length = length, .out = out, .err = err};
    int code = replace_between(&run, 0, 0, length);
    if (code == MU_OK && out->count > 0) {
        code = append(&run, text + run.copied, length - run.copied);
    }
    return code;
}

void mu_replaced_reset(struct mu_replaced *out) {
    free(out->bytes);
    free(out->watched);
    *out = (struct mu_replaced){0};
}
