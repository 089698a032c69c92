#include "replace/aho_corasick.h"

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
    return search->ac->name_end(search->text, at, search->length);
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

/* The match of a state before `end`: a watch where the name goes on. */
static struct mu_ac_match match_of(const struct search *search, const struct mu_ac_state *state,
                                   size_t end) {
    struct mu_ac_match match = {end - state->depth, end, state->pattern, false};
    if (search->ac->whole && is_inside_name(search, end)) {
        bool is_left = state->watch != MU_AC_NONE && end_of_name(search, end) <= search->limit;
        match.pattern = is_left ? state->watch : MU_AC_NONE;
        match.is_watch = true;
    }
    return match;
}

/* Weighs the patterns that end before `end`, longest first. */
static void weigh(struct search *search, uint32_t state, size_t end) {
    const struct mu_ac_state *states = search->ac->states;
    struct mu_ac_match *best = &search->best;
    for (uint32_t at = states[state].ending; at != 0; at = states[states[at].fail].ending) {
        if (best->pattern != MU_AC_NONE && end - states[at].depth > best->start) {
            return;
        }
        struct mu_ac_match match = match_of(search, &states[at], end);
        if (match.pattern != MU_AC_NONE) {
            *best = match;
            return;
        }
    }
}

/* Notes the longest watch that the name in [start, end) begins with. */
static void find_watch(struct search *search, size_t start, size_t end) {
    const struct mu_ac *ac = search->ac;
    uint32_t state = 0;
    for (size_t at = start; at < end - 1 && at - start < ac->watch_depth; at++) {
        uint32_t child = ac->cells[state].base ^ search->text[at];
        if (ac->cells[child].parent != state) {
            return;
        }
        state = child;
        if (ac->states[state].watch != MU_AC_NONE) {
            search->best = (struct mu_ac_match){start, at + 1, ac->states[state].watch, true};
        }
    }
}

/* Advances from the root over the name that begins at `*at`. */
static uint32_t take_name(struct search *search, size_t *at) {
    size_t start = *at, end = *at = end_of_name(search, start);
    if (end > search->limit) {
        return 0;
    }
    const char *bytes = (const char *)search->text + start;
    const struct mu_ac_name *name = mu_ac_names_find(&search->ac->names, bytes, end - start);
    if (name != NULL && name->pattern != MU_AC_NONE) {
        search->best = (struct mu_ac_match){start, end, name->pattern, false};
    } else {
        find_watch(search, start, end);
    }
    return name == NULL ? 0 : name->state;
}

/* Advances over the byte at `*at`. From the root it skips everything that begins no pattern, and
 * takes a whole name at once. */
static uint32_t advance(struct search *search, uint32_t state, size_t *at) {
    const struct mu_ac *ac = search->ac;
    if (state == 0) {
        *at = ac->next_start(&ac->starts, search->text, *at, search->limit);
        if (*at == search->limit) {
            return 0;
        }
        if (ac->whole && is_name_at(search, *at)) {
            return take_name(search, at);
        }
    }
    return step(search, state, (*at)++);
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
    for (size_t at = from; at < limit;) {
        state = advance(&search, state, &at);
        if (search.best.pattern != MU_AC_NONE && at - ac->states[state].depth > search.best.start) {
            break;
        }
        if (ac->cells[state].ends) {
            weigh(&search, state, at);
        }
    }
    *match = search.best;
    if (match->pattern == MU_AC_NONE) {
        return false;
    }
    if (match->is_watch) {
        match->end = end_of_name(&search, match->end);
    }
    return true;
}
