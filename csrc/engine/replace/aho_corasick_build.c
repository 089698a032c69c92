/* Makes the automaton. The states are placed depth first, so that states that follow each other in
 * a name are close together. The fallbacks are computed breadth first. */
#include "replace/aho_corasick.h"

#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 256,      /* cells that base ^ byte can reach */
    PLACES_TRIED = 64 /* free cells to try for a state with several children */
};

/* The patterns that go through a state are neighbours in the sorted list. */
struct range {
    uint32_t state;
    uint32_t begin, end;
};

struct builder {
    struct mu_ac *ac;
    const struct mu_ac_pattern *patterns; /* borrowed */
    uint32_t *order;                      /* owned: numbers of patterns, sorted */
    struct range *stack;                  /* owned: states to be given children */
    size_t stacked, stack_capacity;
    uint32_t *next_free, *previous_free; /* owned: a ring of free cells, cell 0 its head */
    uint32_t capacity;                   /* cells */
};

MU_MUST_CHECK static int no_memory(struct mu_error *err) {
    mu_error_no_memory(err, "automaton");
    return MU_ERR_NO_MEMORY;
}

/* --- the order of the patterns --- */

static int compare(const struct mu_ac_pattern *patterns, uint32_t a, uint32_t b) {
    const struct mu_ac_pattern *left = &patterns[a], *right = &patterns[b];
    size_t common = left->length < right->length ? left->length : right->length;
    int difference = memcmp(left->bytes, right->bytes, common);
    if (difference != 0) {
        return difference;
    }
    if (left->length != right->length) {
        return left->length < right->length ? -1 : 1;
    }
    return (a > b) - (a < b);
}

static int compare_entries(const void *a, const void *b, void *patterns) {
    return compare(patterns, *(const uint32_t *)a, *(const uint32_t *)b);
}

MU_MUST_CHECK static int sort_patterns(struct builder *builder, size_t count,
                                       struct mu_error *err) {
    builder->order = malloc((count + 1) * sizeof(*builder->order));
    if (builder->order == NULL) {
        return no_memory(err);
    }
    for (size_t i = 0; i < count; i++) {
        builder->order[i] = (uint32_t)i;
    }
    qsort_r(builder->order, count, sizeof(*builder->order), compare_entries,
            (void *)builder->patterns);
    return MU_OK;
}

/* --- free cells --- */

/* The array at its new length, or as it was with `*failed` set. */
static void *resized(void *array, size_t count, size_t size, bool *failed) {
    void *grown = realloc(array, count * size);
    *failed |= grown == NULL;
    return grown == NULL ? array : grown;
}

MU_MUST_CHECK static int reserve(struct builder *builder, uint32_t wanted, struct mu_error *err) {
    struct mu_ac *ac = builder->ac;
    bool failed = false;
    if (wanted <= builder->capacity) {
        return MU_OK;
    }
    if (wanted > MU_AC_FREE / 2) {
        return mu_error_set(err, MU_ERR_LIMIT, "the rules need too large an automaton");
    }
    uint32_t capacity = builder->capacity == 0 ? 16 * BLOCK : builder->capacity * 2;
    ac->cells = resized(ac->cells, capacity, sizeof(*ac->cells), &failed);
    ac->states = resized(ac->states, capacity, sizeof(*ac->states), &failed);
    builder->next_free = resized(builder->next_free, capacity, sizeof(uint32_t), &failed);
    builder->previous_free = resized(builder->previous_free, capacity, sizeof(uint32_t), &failed);
    if (failed) {
        return no_memory(err);
    }
    builder->capacity = capacity;
    return MU_OK;
}

MU_MUST_CHECK static int add_block(struct builder *builder, struct mu_error *err) {
    struct mu_ac *ac = builder->ac;
    int code = reserve(builder, ac->cell_count + BLOCK, err);
    if (code != MU_OK) {
        return code;
    }
    uint32_t begin = ac->cell_count;
    if (begin == 0) {
        builder->next_free[0] = builder->previous_free[0] = 0;
    }
    for (uint32_t at = begin; at < begin + BLOCK; at++) {
        ac->cells[at] = (struct mu_ac_cell){.parent = MU_AC_FREE};
        ac->states[at] = (struct mu_ac_state){.pattern = MU_AC_NONE, .watch = MU_AC_NONE};
        if (at != 0) {
            uint32_t last = builder->previous_free[0];
            builder->next_free[last] = builder->previous_free[0] = at;
            builder->previous_free[at] = last;
            builder->next_free[at] = 0;
        }
    }
    ac->cell_count += BLOCK;
    return MU_OK;
}

static void take_cell(struct builder *builder, uint32_t cell, uint32_t parent) {
    uint32_t next = builder->next_free[cell], previous = builder->previous_free[cell];
    builder->next_free[previous] = next;
    builder->previous_free[next] = previous;
    builder->ac->cells[cell].parent = parent;
}

static bool is_free(const struct builder *builder, uint32_t cell) {
    return cell != 0 && builder->ac->cells[cell].parent == MU_AC_FREE;
}

static bool all_free(const struct builder *builder, uint32_t base, const unsigned char *bytes,
                     int count) {
    for (int i = 0; i < count; i++) {
        if (!is_free(builder, base ^ bytes[i])) {
            return false;
        }
    }
    return true;
}

/* A base at which the children by all of `bytes` find free cells. */
MU_MUST_CHECK static int find_base(struct builder *builder, const unsigned char *bytes, int count,
                                   uint32_t *base, struct mu_error *err) {
    uint32_t cell = builder->next_free[0];
    for (int tried = 0; cell != 0 && tried < PLACES_TRIED; tried++) {
        *base = cell ^ bytes[0];
        if (all_free(builder, *base, bytes, count)) {
            return MU_OK;
        }
        cell = builder->next_free[cell];
    }
    *base = builder->ac->cell_count;
    return add_block(builder, err);
}

/* --- states --- */

MU_MUST_CHECK static int push(struct builder *builder, struct range range, struct mu_error *err) {
    if (builder->stacked == builder->stack_capacity) {
        size_t capacity = builder->stack_capacity == 0 ? 1024 : builder->stack_capacity * 2;
        bool failed = false;
        builder->stack = resized(builder->stack, capacity, sizeof(*builder->stack), &failed);
        if (failed) {
            return no_memory(err);
        }
        builder->stack_capacity = capacity;
    }
    builder->stack[builder->stacked++] = range;
    return MU_OK;
}

static unsigned char byte_at(const struct builder *builder, uint32_t place, uint32_t depth) {
    return (unsigned char)builder->patterns[builder->order[place]].bytes[depth];
}

MU_MUST_CHECK static int add_children(struct builder *builder, struct range range,
                                      struct mu_error *err) {
    struct mu_ac *ac = builder->ac;
    uint32_t depth = ac->states[range.state].depth;
    unsigned char bytes[BLOCK];
    uint32_t ends[BLOCK];
    int count = 0;
    for (uint32_t at = range.begin; at < range.end; at++) {
        unsigned char byte = byte_at(builder, at, depth);
        if (count == 0 || bytes[count - 1] != byte) {
            bytes[count++] = byte;
        }
        ends[count - 1] = at + 1;
    }
    uint32_t base;
    int code = count == 0 ? MU_OK : find_base(builder, bytes, count, &base, err);
    if (count == 0 || code != MU_OK) {
        return code;
    }
    ac->cells[range.state].base = base;
    for (int i = count - 1; code == MU_OK && i >= 0; i--) {
        uint32_t child = base ^ bytes[i], begin = i == 0 ? range.begin : ends[i - 1];
        take_cell(builder, child, range.state);
        ac->states[child].depth = depth + 1;
        code = push(builder, (struct range){child, begin, ends[i]}, err);
    }
    return code;
}

/* Takes the patterns that end at the state from the front of its range. */
static void note_patterns(struct builder *builder, struct range *range) {
    struct mu_ac_state *state = &builder->ac->states[range->state];
    while (range->begin < range->end) {
        uint32_t number = builder->order[range->begin];
        const struct mu_ac_pattern *pattern = &builder->patterns[number];
        if (pattern->length != state->depth) {
            break;
        }
        uint32_t *place = pattern->is_watch ? &state->watch : &state->pattern;
        *place = *place == MU_AC_NONE ? number : *place;
        range->begin++;
    }
}

MU_MUST_CHECK static int place_states(struct builder *builder, size_t count, struct mu_error *err) {
    int code = add_block(builder, err);
    if (code == MU_OK) {
        code = push(builder, (struct range){0, 0, (uint32_t)count}, err);
    }
    while (code == MU_OK && builder->stacked > 0) {
        struct range range = builder->stack[--builder->stacked];
        note_patterns(builder, &range);
        code = add_children(builder, range, err);
    }
    return code;
}

/* --- how states fall back --- */

static unsigned char byte_before(const struct mu_ac *ac, uint32_t state) {
    return (unsigned char)(state ^ ac->cells[ac->cells[state].parent].base);
}

/* The state of the same string without its first byte, or without more of it; whole names begin
 * where no name was before. Those nearer to the root must have theirs. */
static uint32_t fail_of(const struct mu_ac *ac, uint32_t of) {
    uint32_t parent = ac->cells[of].parent;
    if (parent == 0) {
        return 0;
    }
    unsigned char last = byte_before(ac, parent), byte = byte_before(ac, of);
    uint32_t state = ac->states[parent].fail;
    for (;;) {
        uint32_t child = ac->cells[state].base ^ byte;
        bool inside = state == 0 && ac->whole && mu_is_name_byte(last) && mu_is_name_byte(byte);
        if (!inside && ac->cells[child].parent == state) {
            return child;
        }
        if (state == 0) {
            return 0;
        }
        state = ac->states[state].fail;
    }
}

static void link_state(struct mu_ac *ac, uint32_t number) {
    struct mu_ac_state *state = &ac->states[number];
    bool ends = state->pattern != MU_AC_NONE || state->watch != MU_AC_NONE;
    state->fail = fail_of(ac, number);
    state->ending = ends ? number : ac->states[state->fail].ending;
    ac->cells[number].ends = state->ending != 0;
}

static int compare_depths(const void *a, const void *b, void *states) {
    const struct mu_ac_state *all = states;
    uint32_t left = all[*(const uint32_t *)a].depth, right = all[*(const uint32_t *)b].depth;
    return (left > right) - (left < right);
}

MU_MUST_CHECK static int link_states(struct mu_ac *ac, struct mu_error *err) {
    uint32_t *order = malloc(ac->cell_count * sizeof(*order));
    size_t count = 0;
    if (order == NULL) {
        return no_memory(err);
    }
    for (uint32_t cell = 1; cell < ac->cell_count; cell++) {
        if (ac->cells[cell].parent != MU_AC_FREE) {
            order[count++] = cell;
        }
    }
    qsort_r(order, count, sizeof(*order), compare_depths, ac->states);
    for (size_t i = 0; i < count; i++) {
        link_state(ac, order[i]);
    }
    free(order);
    return MU_OK;
}

MU_MUST_CHECK static int build(struct builder *builder, size_t count, struct mu_error *err) {
    int code = sort_patterns(builder, count, err);
    if (code == MU_OK) {
        code = place_states(builder, count, err);
    }
    return code == MU_OK ? link_states(builder->ac, err) : code;
}

MU_MUST_CHECK static int check_patterns(const struct mu_ac_pattern *patterns, size_t count,
                                        bool whole, struct mu_error *err) {
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        if (patterns[i].length == 0) {
            return mu_error_set(err, MU_ERR_ARGUMENT, "rule %zu has nothing to look for", i);
        }
        if (patterns[i].is_watch && !whole) {
            return mu_error_set(err, MU_ERR_ARGUMENT, "rule %zu watches, but not for names", i);
        }
        if (patterns[i].length > MU_AC_BYTES_MAX - total) {
            return mu_error_set(err, MU_ERR_LIMIT, "the rules have more than %d bytes",
                                MU_AC_BYTES_MAX);
        }
        total += patterns[i].length;
    }
    return MU_OK;
}

static void note_starts(struct mu_ac *ac, const struct mu_ac_pattern *patterns, size_t count) {
    mu_ac_starts_init(&ac->starts, ac->whole);
    for (size_t i = 0; i < count; i++) {
        mu_ac_starts_add(&ac->starts, patterns[i].bytes, patterns[i].length);
    }
    ac->next_start = mu_ac_next_start_best();
    ac->name_end = mu_ac_name_end_best();
}

/* --- names --- */

/* Of the name that a pattern begins with; 0: of none. */
static size_t length_of_name(const struct mu_ac_pattern *pattern) {
    return mu_ac_name_end_portable((const unsigned char *)pattern->bytes, 0, pattern->length);
}

static uint32_t state_of(const struct mu_ac *ac, const char *bytes, size_t length) {
    uint32_t state = 0;
    for (size_t i = 0; i < length; i++) {
        state = ac->cells[state].base ^ (unsigned char)bytes[i];
    }
    return state;
}

static void note_name(struct mu_ac *ac, const struct mu_ac_pattern *pattern) {
    size_t length = length_of_name(pattern);
    if (pattern->is_watch && length == pattern->length) {
        ac->watch_depth = length > ac->watch_depth ? (uint32_t)length : ac->watch_depth;
    } else if (length > 0) {
        struct mu_ac_name *name = mu_ac_names_add(&ac->names, pattern->bytes, length);
        uint32_t state = state_of(ac, pattern->bytes, length);
        name->pattern = ac->states[state].pattern;
        name->state = length < pattern->length ? state : name->state;
    }
}

MU_MUST_CHECK static int note_names(struct mu_ac *ac, const struct mu_ac_pattern *patterns,
                                    size_t count, struct mu_error *err) {
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += length_of_name(&patterns[i]);
    }
    int code = mu_ac_names_init(&ac->names, count, bytes, err);
    for (size_t i = 0; code == MU_OK && i < count; i++) {
        note_name(ac, &patterns[i]);
    }
    return code;
}

int mu_ac_init(struct mu_ac *ac, const struct mu_ac_pattern *patterns, size_t count, bool whole,
               struct mu_error *err) {
    *ac = (struct mu_ac){.whole = whole};
    int code = check_patterns(patterns, count, whole, err);
    if (code != MU_OK) {
        return code;
    }
    struct builder builder = {.ac = ac, .patterns = patterns};
    code = build(&builder, count, err);
    free(builder.order);
    free(builder.stack);
    free(builder.next_free);
    free(builder.previous_free);
    if (code == MU_OK) {
        note_starts(ac, patterns, count);
        code = whole ? note_names(ac, patterns, count, err) : MU_OK;
    }
    return code;
}

void mu_ac_reset(struct mu_ac *ac) {
    free(ac->cells);
    free(ac->states);
    mu_ac_names_reset(&ac->names);
    *ac = (struct mu_ac){0};
}
