#include "aho_corasick.h"

struct search {
    const struct mu_ac *ac;
    const unsigned char *text;
    size_t length, limit;
    struct mu_ac_match best; /* its end is that of the pattern, also for a watch */
};

static bool is_name_at(const struct search *search, size_t at) {
    return search->ac->starts.is_name[search->text[at]];
}

/* True between two bytes of one name; `at` is that of the second. */
static bool is_inside_name(const struct search *search, size_t at) {
    return at > 0 && at < search->length && is_name_at(search, at - 1) && is_name_at(search, at);
}

static size_t end_of_name(const struct search *search, size_t at) {
    while (at < search->length && is_name_at(search, at)) {
        at++;
    }
    return at;
}

static uint32_t step(const struct search *search, uint32_t state, size_t at) {
    const struct mu_ac *ac = search->ac;
    unsigned char byte = search->text[at];
    for (;;) {
        uint32_t child = ac->cells[state].base ^ byte;
        if (ac->cells[child].parent == state &&
            (state != 0 || !ac->whole || !is_inside_name(search, at))) {
            return child;
        }
        if (state == 0) {
            return 0;
        }
        state = ac->states[state].fail;
    }
}

/* The pattern of a state that may end before `end`: a watch where the name goes on. */
static uint32_t pattern_that_ends(const struct search *search, const struct mu_ac_state *state,
                                  size_t end) {
    if (!search->ac->whole || !is_inside_name(search, end)) {
        return state->pattern;
    }
    bool is_left = state->watch != MU_AC_NONE && end_of_name(search, end) <= search->limit;
    return is_left ? state->watch : MU_AC_NONE;
}

/* Weighs the patterns that end before `end`, longest first. */
static void weigh(struct search *search, uint32_t state, size_t end) {
    const struct mu_ac_state *states = search->ac->states;
    struct mu_ac_match *best = &search->best;
    for (uint32_t at = states[state].ending; at != 0; at = states[states[at].fail].ending) {
        size_t start = end - states[at].depth;
        if (best->pattern != MU_AC_NONE && start > best->start) {
            return;
        }
        uint32_t pattern = pattern_that_ends(search, &states[at], end);
        if (pattern != MU_AC_NONE) {
            *best = (struct mu_ac_match){start, end, pattern};
            return;
        }
    }
}

bool mu_ac_find(const struct mu_ac *ac, const char *text, size_t length, size_t from, size_t limit,
                struct mu_ac_match *match) {
    struct search search = {
        .ac = ac,
        .text = (const unsigned char *)text,
        .length = length,
        .limit = limit,
        .best.pattern = MU_AC_NONE,
    };
    uint32_t state = 0;
    for (size_t at = from; at < limit; at++) {
        if (state == 0) {
            at = ac->next_start(&ac->starts, search.text, at, limit);
            if (at == limit) {
                break;
            }
        }
        state = step(&search, state, at);
        if (search.best.pattern != MU_AC_NONE &&
            at + 1 - ac->states[state].depth > search.best.start) {
            break;
        }
        if (ac->cells[state].ends) {
            weigh(&search, state, at + 1);
        }
    }
    *match = search.best;
    if (match->pattern == MU_AC_NONE) {
        return false;
    }
    if (ac->is_watch[match->pattern]) {
        match->end = end_of_name(&search, match->end);
    }
    return true;
}
