#include "capture/capture.h"

#include <stdlib.h>
#include <string.h>

void mu_capture_init(struct mu_capture *capture) {
    memset(capture, 0, sizeof(*capture));
    capture->open = -1;
}

void mu_capture_release(struct mu_capture *capture) {
    for (int i = 0; i < MU_CAPTURE_WINDOWS_MAX; i++) {
        free(capture->windows[i].memory);
    }
    mu_capture_init(capture);
}

/* --- copies of specs ---------------------------------------------------------------------- */

/* Allocates pieces of one block. Without a block it only adds up the sizes. */
struct arena {
    char *block; /* NULL: measure */
    size_t used;
};

static void *take(struct arena *arena, size_t bytes) {
    void *piece = arena->block == NULL ? NULL : arena->block + arena->used;
    arena->used += (bytes + 7) & ~(size_t)7;
    return piece;
}

static struct mu_capture_text keep_text(struct arena *arena, struct mu_capture_text text) {
    char *bytes = take(arena, text.length);
    if (bytes != NULL && text.length > 0) {
        memcpy(bytes, text.bytes, text.length);
    }
    return (struct mu_capture_text){bytes, text.length};
}

static struct mu_capture_texts keep_texts(struct arena *arena, struct mu_capture_texts texts) {
    struct mu_capture_text *items = take(arena, texts.count * sizeof(*items));
    for (size_t i = 0; i < texts.count; i++) {
        struct mu_capture_text kept = keep_text(arena, texts.items[i]);
        if (items != NULL) {
            items[i] = kept;
        }
    }
    return (struct mu_capture_texts){items, texts.count};
}

static struct mu_capture_spec keep_spec(struct arena *arena, const struct mu_capture_spec *spec) {
    struct mu_capture_spec kept = *spec;
    kept.id = keep_text(arena, spec->id);
    kept.start.names = keep_texts(arena, spec->start.names);
    kept.stop.names = keep_texts(arena, spec->stop.names);
    kept.roles = keep_texts(arena, spec->roles);
    int64_t *ranks = take(arena, spec->rank_count * sizeof(*ranks));
    if (ranks != NULL && spec->rank_count > 0) {
        memcpy(ranks, spec->ranks, spec->rank_count * sizeof(*ranks));
    }
    kept.ranks = ranks;
    return kept;
}

MU_MUST_CHECK static int store_spec(struct mu_capture_window *window,
                                    const struct mu_capture_spec *spec, struct mu_error *err) {
    struct arena arena = {NULL, 0};
    keep_spec(&arena, spec);
    arena.block = malloc(arena.used + 1);
    if (arena.block == NULL) {
        return mu_error_no_memory(err, "a capture window");
    }
    arena.used = 0;
    window->memory = arena.block;
    window->spec = keep_spec(&arena, spec);
    return MU_OK;
}

/* --- arming ------------------------------------------------------------------------------- */

static bool same_text(struct mu_capture_text a, struct mu_capture_text b) {
    return a.length == b.length && (a.length == 0 || memcmp(a.bytes, b.bytes, a.length) == 0);
}

static bool is_pending(const struct mu_capture_window *window) {
    return window->state == MU_CAPTURE_ARMED || window->state == MU_CAPTURE_OPEN;
}

int mu_capture_find(const struct mu_capture *capture, struct mu_capture_text id) {
    for (int i = 0; i < MU_CAPTURE_WINDOWS_MAX; i++) {
        const struct mu_capture_window *window = &capture->windows[i];
        if (is_pending(window) && same_text(window->spec.id, id)) {
            return i;
        }
    }
    return -1;
}

static int find_free(const struct mu_capture *capture) {
    for (int i = 0; i < MU_CAPTURE_WINDOWS_MAX; i++) {
        if (capture->windows[i].state == MU_CAPTURE_FREE) {
            return i;
        }
    }
    return -1;
}

static bool lists_fit(const struct mu_capture_spec *spec) {
    return spec->start.names.count <= MU_CAPTURE_LIST_MAX &&
           spec->stop.names.count <= MU_CAPTURE_LIST_MAX &&
           spec->roles.count <= MU_CAPTURE_LIST_MAX && spec->rank_count <= MU_CAPTURE_LIST_MAX;
}

int mu_capture_arm(struct mu_capture *capture, const struct mu_capture_spec *spec, int *index,
                   struct mu_error *err) {
    int waiting = mu_capture_find(capture, spec->id);
    int place = find_free(capture);
    if (!lists_fit(spec)) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "a list of more than %d names, roles or ranks",
                            (int)MU_CAPTURE_LIST_MAX);
    }
    if (waiting >= 0 && waiting == capture->open) {
        return mu_error_set(err, MU_ERR_STATE, "the window of that id is open");
    }
    if (place < 0) {
        return mu_error_set(err, MU_ERR_LIMIT,
                            "at most %d windows can wait at once; disarm some before you arm more",
                            (int)MU_CAPTURE_WINDOWS_MAX);
    }
    struct mu_capture_window *window = &capture->windows[place];
    int code = store_spec(window, spec, err);
    if (code != MU_OK) {
        return code;
    }
    if (waiting >= 0) {
        mu_capture_end(capture, waiting, MU_CAPTURE_DISARMED);
    }
    window->state = MU_CAPTURE_ARMED;
    window->serial = ++capture->serial;
    capture->pending++;
    *index = place;
    return MU_OK;
}

void mu_capture_end(struct mu_capture *capture, int index, enum mu_capture_outcome outcome) {
    struct mu_capture_window *window = &capture->windows[index];
    if (capture->open == index) {
        capture->open = -1;
    }
    window->state = MU_CAPTURE_ENDED;
    window->outcome = outcome;
    capture->pending--;
}

int mu_capture_next_ended(const struct mu_capture *capture) {
    for (int i = 0; i < MU_CAPTURE_WINDOWS_MAX; i++) {
        if (capture->windows[i].state == MU_CAPTURE_ENDED) {
            return i;
        }
    }
    return -1;
}

void mu_capture_forget(struct mu_capture *capture, int index) {
    free(capture->windows[index].memory);
    memset(&capture->windows[index], 0, sizeof(capture->windows[index]));
}

/* --- gates -------------------------------------------------------------------------------- */

static bool has_name(struct mu_capture_texts names, struct mu_capture_text name) {
    for (size_t i = 0; i < names.count; i++) {
        if (same_text(names.items[i], name)) {
            return true;
        }
    }
    return false;
}

bool mu_capture_names(const struct mu_capture *capture, struct mu_capture_text name) {
    int left = capture->pending;
    for (int i = 0; left > 0 && i < MU_CAPTURE_WINDOWS_MAX; i++) {
        const struct mu_capture_window *window = &capture->windows[i];
        if (!is_pending(window)) {
            continue;
        }
        if (has_name(window->spec.start.names, name) || has_name(window->spec.stop.names, name)) {
            return true;
        }
        left--;
    }
    return false;
}

static bool passes_filters(const struct mu_capture_spec *spec,
                           const struct mu_capture_event *event) {
    if (spec->roles.count > 0 &&
        (event->role.bytes == NULL || !has_name(spec->roles, event->role))) {
        return false;
    }
    bool rank_listed = spec->rank_count == 0;
    for (size_t i = 0; i < spec->rank_count && event->has_rank; i++) {
        rank_listed = rank_listed || spec->ranks[i] == event->rank;
    }
    return rank_listed;
}

static bool at_gate(const struct mu_capture_gate *gate, const struct mu_capture_event *event) {
    return (!gate->has_iter || (event->has_iter && event->iter == gate->iter)) &&
           (!gate->has_microbatch || !event->has_microbatch ||
            event->microbatch == gate->microbatch);
}

/* Whether `iter` is at least `by` more than `than`. */
static bool is_later(int64_t iter, int64_t than, int64_t by) {
    return iter >= than && (uint64_t)iter - (uint64_t)than >= (uint64_t)by;
}

/* Whether the event is `by` iterations past the gate's, or more. */
static bool beyond_gate(const struct mu_capture_gate *gate, const struct mu_capture_event *event,
                        int64_t by) {
    return gate->has_iter && event->has_iter && is_later(event->iter, gate->iter, by);
}

/* --- the open window ---------------------------------------------------------------------- */

static bool is_opener(const struct mu_capture_window *window,
                      const struct mu_capture_event *event) {
    return window->call != 0 && window->call == event->call;
}

static bool meets_stop(struct mu_capture_window *window, const struct mu_capture_event *event,
                       enum mu_capture_edge edge, bool raised) {
    const struct mu_capture_gate *stop = &window->spec.stop;
    if (window->spec.policy != MU_CAPTURE_STOP_NAME || !has_name(stop->names, event->name) ||
        !passes_filters(&window->spec, event) || !at_gate(stop, event)) {
        return false;
    }
    window->stopping = true;
    return raised || edge == stop->edge;
}

/* Whether the stop gate was missed. While a call that meets it runs, calls of later iterations,
 * which overlap it, say nothing. */
static bool missed_stop(const struct mu_capture_window *window,
                        const struct mu_capture_event *event) {
    const struct mu_capture_gate *stop = &window->spec.stop;
    if (window->spec.policy != MU_CAPTURE_STOP_NAME) {
        return false;
    }
    if (window->stopping) {
        return beyond_gate(stop, event, window->spec.iters_max);
    }
    bool is_stop = has_name(stop->names, event->name);
    return beyond_gate(stop, event, is_stop ? 1 : MU_CAPTURE_ITERS_PAST);
}

/* Counts iterations, or where none is reported the calls of the trigger; of a window that ends with
 * its call only those inside it, as others do not prolong it. */
static bool is_too_long(struct mu_capture_window *window, const struct mu_capture_event *event,
                        enum mu_capture_edge edge) {
    int64_t most = window->spec.iters_max;
    if (event->has_iter) {
        if (!window->has_first_iter) {
            window->has_first_iter = true;
            window->first_iter = event->iter;
        }
        return is_later(event->iter, window->first_iter, most);
    }
    bool counts = window->spec.policy != MU_CAPTURE_TRIGGER_EXIT || event->inside;
    if (counts && edge == MU_CAPTURE_ENTER && same_text(window->trigger, event->name)) {
        window->calls++;
    }
    return window->calls >= most;
}

/* Whether the event closes the open window; if so, with which outcome. */
static bool closes(struct mu_capture_window *window, const struct mu_capture_event *event,
                   enum mu_capture_edge edge, bool raised, enum mu_capture_outcome *outcome) {
    bool opener_ends = edge == MU_CAPTURE_EXIT && is_opener(window, event);
    if (opener_ends) {
        window->call = 0;
    }
    *outcome = raised ? MU_CAPTURE_RAISED : MU_CAPTURE_DONE;
    if (opener_ends && (raised || window->spec.policy == MU_CAPTURE_TRIGGER_EXIT)) {
        return true;
    }
    if (meets_stop(window, event, edge, raised)) {
        return true;
    }
    *outcome = MU_CAPTURE_OVERRUN;
    return passes_filters(&window->spec, event) &&
           (missed_stop(window, event) || is_too_long(window, event, edge));
}

/* --- windows that wait -------------------------------------------------------------------- */

static void open_window(struct mu_capture *capture, int index, const struct mu_capture_event *event,
                        enum mu_capture_edge edge) {
    struct mu_capture_window *window = &capture->windows[index];
    window->state = MU_CAPTURE_OPEN;
    window->call = edge == MU_CAPTURE_ENTER ? event->call : 0;
    window->has_first_iter = event->has_iter;
    window->first_iter = event->iter;
    for (size_t i = 0; i < window->spec.start.names.count; i++) {
        if (same_text(window->spec.start.names.items[i], event->name)) {
            window->trigger = window->spec.start.names.items[i];
        }
    }
    capture->open = index;
}

/* Whether the start gate was missed: by a call of its function in a later iteration, or by any
 * function of the window's filters when the iteration is long over. */
static bool missed_start(const struct mu_capture_spec *spec, const struct mu_capture_event *event) {
    bool is_start = has_name(spec->start.names, event->name);
    return passes_filters(spec, event) &&
           beyond_gate(&spec->start, event, is_start ? 1 : MU_CAPTURE_ITERS_PAST);
}

static bool meets_start(const struct mu_capture_spec *spec, const struct mu_capture_event *event,
                        enum mu_capture_edge edge) {
    return edge == spec->start.edge && has_name(spec->start.names, event->name) &&
           passes_filters(spec, event) && at_gate(&spec->start, event);
}

/* Opens a window whose start gate is met. Ends a window that has missed its start gate. */
static void visit_armed(struct mu_capture *capture, int index, const struct mu_capture_event *event,
                        enum mu_capture_edge edge, struct mu_capture_change *change) {
    const struct mu_capture_spec *spec = &capture->windows[index].spec;
    if (missed_start(spec, event)) {
        mu_capture_end(capture, index, MU_CAPTURE_LATE);
    } else if (meets_start(spec, event, edge)) {
        if (capture->open >= 0) {
            mu_capture_end(capture, index, MU_CAPTURE_OVERLAPPED);
        } else {
            open_window(capture, index, event, edge);
            change->opened = index;
        }
    }
}

/* The armed window with the next higher serial number, or -1. */
static int next_armed(const struct mu_capture *capture, uint64_t serial) {
    int next = -1;
    for (int i = 0; i < MU_CAPTURE_WINDOWS_MAX; i++) {
        const struct mu_capture_window *window = &capture->windows[i];
        if (window->state == MU_CAPTURE_ARMED && window->serial > serial &&
            (next < 0 || window->serial < capture->windows[next].serial)) {
            next = i;
        }
    }
    return next;
}

static struct mu_capture_change visit(struct mu_capture *capture,
                                      const struct mu_capture_event *event,
                                      enum mu_capture_edge edge, bool raised) {
    struct mu_capture_change change = {-1, -1};
    enum mu_capture_outcome outcome;
    if (capture->open >= 0 &&
        closes(&capture->windows[capture->open], event, edge, raised, &outcome)) {
        change.closed = capture->open;
        mu_capture_end(capture, capture->open, outcome);
    }
    for (int i = next_armed(capture, 0); i >= 0;) {
        uint64_t serial = capture->windows[i].serial;
        visit_armed(capture, i, event, edge, &change);
        i = next_armed(capture, serial);
    }
    return change;
}

struct mu_capture_change mu_capture_enter(struct mu_capture *capture,
                                          const struct mu_capture_event *event) {
    return visit(capture, event, MU_CAPTURE_ENTER, false);
}

struct mu_capture_change mu_capture_exit(struct mu_capture *capture,
                                         const struct mu_capture_event *event, bool raised) {
    return visit(capture, event, MU_CAPTURE_EXIT, raised);
}
