/* Replacement as replace.h describes it, the plain way: every rule tried at every place. */
#ifndef MU_REPLACE_ORACLE_H
#define MU_REPLACE_ORACLE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "replace/replace.h"

struct oracle {
    const struct mu_replace_tier *tiers;
    size_t tier_count;
    const char *text;
    size_t length;
    char *out; /* owned; the caller makes it large enough */
    size_t out_length;
    uint64_t count, watched;
};

static inline bool oracle_is_name(const struct oracle *oracle, size_t at) {
    static const char names[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    return at < oracle->length && oracle->text[at] != '\0' &&
           strchr(names, oracle->text[at]) != NULL;
}

static inline bool oracle_inside(const struct oracle *oracle, size_t at) {
    return at > 0 && oracle_is_name(oracle, at - 1) && oracle_is_name(oracle, at);
}

static inline size_t oracle_end_of_name(const struct oracle *oracle, size_t at) {
    while (oracle_is_name(oracle, at)) {
        at++;
    }
    return at;
}

static inline bool oracle_matches(const struct oracle *oracle, const struct mu_replace_tier *tier,
                                  const struct mu_replace_rule *rule, size_t at, size_t limit) {
    size_t end = at + rule->from_length;
    if (rule->from_length > limit - at ||
        memcmp(oracle->text + at, rule->from, rule->from_length) != 0) {
        return false;
    }
    if (!tier->whole) {
        return true;
    }
    bool ends = !oracle_inside(oracle, end);
    if (rule->to == NULL) {
        ends = !ends && oracle_end_of_name(oracle, end) <= limit;
    }
    return ends && !oracle_inside(oracle, at);
}

static inline const struct mu_replace_rule *oracle_rule(const struct oracle *oracle,
                                                        const struct mu_replace_tier *tier,
                                                        size_t at, size_t limit) {
    const struct mu_replace_rule *best = NULL;
    for (size_t i = 0; i < tier->count; i++) {
        const struct mu_replace_rule *rule = &tier->rules[i];
        if ((best == NULL || rule->from_length > best->from_length) &&
            oracle_matches(oracle, tier, rule, at, limit)) {
            best = rule;
        }
    }
    return best;
}

static inline void oracle_append(struct oracle *oracle, const char *bytes, size_t length) {
    if (length > 0) {
        memcpy(oracle->out + oracle->out_length, bytes, length);
        oracle->out_length += length;
    }
}

static inline void oracle_between(struct oracle *oracle, size_t number, size_t from, size_t limit) {
    if (number == oracle->tier_count) {
        oracle_append(oracle, oracle->text + from, limit - from);
        return;
    }
    const struct mu_replace_tier *tier = &oracle->tiers[number];
    for (size_t at = from; at < limit; at++) {
        const struct mu_replace_rule *rule = oracle_rule(oracle, tier, at, limit);
        if (rule == NULL) {
            continue;
        }
        oracle_between(oracle, number + 1, from, at);
        from = at + rule->from_length;
        if (rule->to == NULL) {
            from = oracle_end_of_name(oracle, from);
            oracle_append(oracle, oracle->text + at, from - at);
            oracle->watched++;
        } else {
            oracle_append(oracle, rule->to, rule->to_length);
            oracle->count += rule->from_length != rule->to_length ||
                             memcmp(rule->from, rule->to, rule->to_length) != 0;
        }
        at = from - 1;
    }
    oracle_between(oracle, number + 1, from, limit);
}

/* True when `replaced` is what the plain way gives. */
static inline bool oracle_agrees(const struct mu_replace_tier *tiers, size_t tier_count,
                                 const char *text, size_t length,
                                 const struct mu_replaced *replaced) {
    size_t longest = 1;
    for (size_t t = 0; t < tier_count; t++) {
        for (size_t i = 0; i < tiers[t].count; i++) {
            const struct mu_replace_rule *rule = &tiers[t].rules[i];
            longest = rule->to != NULL && rule->to_length > longest ? rule->to_length : longest;
        }
    }
    struct oracle oracle = {
        .tiers = tiers, .tier_count = tier_count, .text = text, .length = length};
    oracle.out = malloc(length * longest + 1);
    if (oracle.out == NULL) {
        return false;
    }
    oracle_between(&oracle, 0, 0, length);
    const char *got = replaced->count == 0 ? text : replaced->bytes;
    size_t got_length = replaced->count == 0 ? length : replaced->length;
    bool same = oracle.count == replaced->count && oracle.watched == replaced->watched_count &&
                got_length == oracle.out_length && memcmp(got, oracle.out, got_length) == 0;
    free(oracle.out);
    return same;
}

#endif
