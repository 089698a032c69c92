#include "journal/step_windows.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash_table.h"

enum {
    OTHER = 0,    /* the path of stages that have none */
    SLOTS = 1024, /* of the table of paths; a power of two */
    NONE = UINT16_MAX,
};

const uint32_t mu_window_widths[MU_WINDOW_LEVELS] = {100, 1000, 10000};

/* Of a path in a window. begins, ends: sums of times since the begin of each step. */
struct sums {
    uint64_t self_ns, max_ns;
    int64_t begins, ends;
    uint32_t count;
};

struct window {
    uint32_t steps;                          /* 0: none is open */
    int64_t first_step, last_step, end_step; /* end_step: the first of the next window */
    int64_t begin_ns;
    double begins; /* the sum of all, since begin_ns: beyond 64 bits where steps take minutes */
    uint64_t sum_ns, max_ns, untimed_ns, untimed_max_ns;
    struct sums paths[MU_WINDOW_PATHS_MAX];
};

/* Of a path in the step that is open. */
struct part {
    uint64_t self_ns;
    int64_t begin_ns, end_ns;
    bool ran;
};

struct open_stage {
    uint64_t node, inside_ns;
    uint32_t around; /* the slot of the stage around it; its own for none */
    uint16_t path;
};

struct path {
    uint32_t name;
    uint16_t parent; /* NONE for none */
    uint16_t length;
    char *text; /* owned */
};

struct path_slot {
    uint32_t key; /* 0: free */
    uint16_t path;
};

struct mu_step_windows {
    struct mu_window_sink sink;
    uint32_t attempt, track, tid, tag_length;
    char tag[MU_WINDOW_NAME_MAX];
    int64_t offset_ns;

    uint32_t backward; /* how often steps went back */
    bool in_step;
    int64_t step, begin_ns, end_ns;
    uint32_t ran_count;
    uint16_t ran[MU_WINDOW_PATHS_MAX]; /* the paths of the open step */
    struct part parts[MU_WINDOW_PATHS_MAX];
    struct open_stage open[MU_OPEN_MAX];

    uint32_t path_count;
    uint32_t file[MU_WINDOW_LEVELS];  /* the number of the level's file */
    uint32_t named[MU_WINDOW_LEVELS]; /* paths whose names are in it */
    struct path paths[MU_WINDOW_PATHS_MAX];
    struct path_slot slots[SLOTS];
    struct window windows[MU_WINDOW_LEVELS];
};

int mu_step_windows_create(struct mu_step_windows **out, const struct mu_window_track *track,
                           const struct mu_window_sink *sink, struct mu_error *err) {
    struct mu_step_windows *windows = calloc(1, sizeof(*windows));
    if (windows == NULL) {
        return mu_error_no_memory(err, "windows of steps");
    }
    windows->sink = *sink;
    windows->attempt = track->attempt;
    windows->track = track->track;
    windows->tid = track->tid;
    windows->tag_length = track->tag_length > sizeof(windows->tag) ? sizeof(windows->tag)
                                                                   : (uint32_t)track->tag_length;
    if (windows->tag_length > 0) {
        memcpy(windows->tag, track->tag, windows->tag_length);
    }
    windows->path_count = 1;
    windows->paths[OTHER].parent = NONE;
    *out = windows;
    return MU_OK;
}

void mu_step_windows_free(struct mu_step_windows *windows) {
    for (uint32_t i = 0; windows != NULL && i < windows->path_count; i++) {
        free(windows->paths[i].text);
    }
    free(windows);
}

void mu_step_windows_set_offset(struct mu_step_windows *windows, int64_t offset_ns) {
    windows->offset_ns = offset_ns;
}

/* --- paths --- */

static uint16_t add_path(struct mu_step_windows *windows, const struct mu_strings *strings,
                         uint16_t parent, uint32_t name) {
    size_t length = 0;
    const char *text = mu_strings_get(strings, name, &length);
    char *copy =
        text == NULL || windows->path_count == MU_WINDOW_PATHS_MAX ? NULL : malloc(length + 1);
    if (copy == NULL) {
        return OTHER;
    }
    memcpy(copy, text, length);
    uint16_t path = (uint16_t)windows->path_count++;
    windows->paths[path] = (struct path){name, parent, (uint16_t)length, copy};
    return path;
}

/* The path of a stage of that name inside `parent`, NONE for none. */
static uint16_t path_of(struct mu_step_windows *windows, const struct mu_strings *strings,
                        uint16_t parent, uint32_t name) {
    if (name == 0) {
        return OTHER;
    }
    uint32_t key = ((uint32_t)(uint16_t)(parent + 1) << 16 | (name & UINT16_MAX)) + 1;
    for (size_t at = mu_hash_u64(key) & (SLOTS - 1);; at = (at + 1) & (SLOTS - 1)) {
        struct path_slot *slot = &windows->slots[at];
        if (slot->key == key) {
            return slot->path;
        }
        if (slot->key == 0) {
            uint16_t path = add_path(windows, strings, parent, name);
            if (path != OTHER) {
                *slot = (struct path_slot){key, path};
            }
            return path;
        }
    }
}

/* The slot of the stage around one in the slot `depth`; `depth` itself where it is not known. */
static uint32_t slot_around(const struct mu_step_windows *windows,
                            const struct mu_window_stage *stage) {
    for (uint32_t at = stage->depth; stage->parent != 0 && at-- > 0;) {
        if (windows->open[at].node == stage->parent) {
            return at;
        }
    }
    return stage->depth;
}

/* --- blocks --- */

static bool write_block(struct mu_step_windows *windows, int level, char *block,
                        struct mu_window_head *head, size_t payload_bytes) {
    head->attempt = windows->attempt;
    head->track = windows->track;
    head->width = mu_window_widths[level];
    mu_window_block_seal(block, head, payload_bytes);
    return windows->sink.write(windows->sink.owner, level, block, head->bytes);
}

static char *put(char *at, const void *bytes, size_t length) {
    if (length > 0) { /* the name of "(other)" is NULL */
        memcpy(at, bytes, length);
    }
    return at + length;
}

/* The names of paths from `first` on, as many as fit: thread and tag, then of each path its number,
 * its parent's and its name. Returns the number after the last one. */
static uint32_t put_names(const struct mu_step_windows *windows, uint32_t first, char *payload,
                          size_t *bytes) {
    const uint16_t tag_length = (uint16_t)windows->tag_length;
    char *at = put(payload, &windows->tid, sizeof(windows->tid));
    at = put(at, &tag_length, sizeof(tag_length));
    at = put(at, windows->tag, tag_length);
    const char *end = payload + MU_WINDOW_BLOCK_MAX - MU_WINDOW_HEAD_BYTES - MU_WINDOW_END_BYTES;
    uint32_t next = first;
    for (; next < windows->path_count; next++) {
        const struct path *path = &windows->paths[next];
        const uint16_t numbers[] = {(uint16_t)next, path->parent, path->length};
        if ((size_t)(end - at) < sizeof(numbers) + path->length) {
            break;
        }
        at = put(at, numbers, sizeof(numbers));
        at = put(at, path->text, path->length);
    }
    *bytes = (size_t)(at - payload);
    return next;
}

static bool write_names(struct mu_step_windows *windows, int level) {
    char block[MU_WINDOW_BLOCK_MAX];
    uint32_t file = windows->sink.begin(windows->sink.owner, level);
    if (file != windows->file[level]) {
        windows->file[level] = file;
        windows->named[level] = 0;
    }
    if (file == 0) {
        return false;
    }
    while (windows->named[level] < windows->path_count) {
        size_t bytes;
        uint32_t first = windows->named[level];
        uint32_t next = put_names(windows, first, block + MU_WINDOW_HEAD_BYTES, &bytes);
        struct mu_window_head head = {.kind = MU_WINDOW_NAMES, .cells = next - first};
        if (!write_block(windows, level, block, &head, bytes)) {
            return false;
        }
        windows->named[level] = next;
    }
    return true;
}

static char *put_cell(char *at, const struct sums *sums, const struct window *window) {
    double count = sums->count, step_ns = (double)window->sum_ns / window->steps;
    double scale = step_ns > 0 ? 1 / (step_ns * count) : 0;
    struct mu_window_cell cell = {.count = sums->count,
                                  .sum_ns = (double)sums->self_ns,
                                  .max_ns = (double)sums->max_ns,
                                  .begin = (double)sums->begins * scale,
                                  .end = (double)sums->ends * scale};
    mu_window_cell_encode(&cell, at);
    return at + MU_WINDOW_CELL_BYTES;
}

/* A window that cannot be written is a gap between its neighbours. */
static void write_window(struct mu_step_windows *windows, int level) {
    const struct window *window = &windows->windows[level];
    char block[MU_WINDOW_BLOCK_MAX];
    uint32_t bits[MU_WINDOW_PATHS_MAX / 32] = {0}, cells = 0;
    size_t words = (windows->path_count + 31) / 32;
    char *at = block + MU_WINDOW_HEAD_BYTES + words * sizeof(*bits);
    if (!write_names(windows, level)) {
        return;
    }
    for (uint32_t path = 0; path < windows->path_count; path++) {
        if (window->paths[path].count > 0) {
            bits[path / 32] |= UINT32_C(1) << path % 32;
            at = put_cell(at, &window->paths[path], window);
            cells++;
        }
    }
    memcpy(block + MU_WINDOW_HEAD_BYTES, bits, words * sizeof(*bits));
    struct mu_window_head head = {
        .kind = MU_WINDOW_STEPS,
        .steps = window->steps,
        .cells = cells,
        .first_step = window->first_step,
        .last_step = window->last_step,
        .begin_ns = mu_clock_add(window->begin_ns, windows->offset_ns),
        .mean_begin_ns = (int64_t)(window->begins / window->steps),
        .sum_ns = window->sum_ns,
        .max_ns = window->max_ns,
        .untimed_sum_ns = window->untimed_ns,
        .untimed_max_ns = window->untimed_max_ns,
    };
    size_t payload_bytes = (size_t)(at - block) - MU_WINDOW_HEAD_BYTES;
    (void)write_block(windows, level, block, &head, payload_bytes);
}

/* --- windows --- */

static uint64_t larger(uint64_t one, uint64_t other) {
    return one > other ? one : other;
}

static void add_sums(struct sums *to, const struct sums *from) {
    to->count += from->count;
    to->self_ns += from->self_ns;
    to->max_ns = larger(to->max_ns, from->max_ns);
    to->begins += from->begins;
    to->ends += from->ends;
}

static void add_window(const struct mu_step_windows *windows, struct window *to,
                       const struct window *from) {
    to->begins += from->begins + (double)(from->begin_ns - to->begin_ns) * from->steps;
    to->steps += from->steps;
    to->last_step = from->last_step;
    to->sum_ns += from->sum_ns;
    to->max_ns = larger(to->max_ns, from->max_ns);
    to->untimed_ns += from->untimed_ns;
    to->untimed_max_ns = larger(to->untimed_max_ns, from->untimed_max_ns);
    for (uint32_t path = 0; path < windows->path_count; path++) {
        add_sums(&to->paths[path], &from->paths[path]);
    }
}

static void clear_window(const struct mu_step_windows *windows, struct window *window) {
    memset(window, 0, offsetof(struct window, paths));
    memset(window->paths, 0, windows->path_count * sizeof(*window->paths));
}

static bool is_in(const struct window *window, int64_t step) {
    return step > window->last_step && step < window->end_step;
}

static void open_window(struct window *window, int level, int64_t first_step, int64_t begin_ns) {
    int64_t width = mu_window_widths[level];
    window->first_step = first_step;
    window->end_step = first_step - first_step % width + width;
    window->begin_ns = begin_ns;
}

static void close_window(struct mu_step_windows *windows, int level, bool writes);

/* A window of a level goes into the one around it, which ends where its last step does. */
static void add_to_level(struct mu_step_windows *windows, int level, const struct window *from) {
    struct window *to = &windows->windows[level];
    if (to->steps > 0 && !is_in(to, from->first_step)) {
        close_window(windows, level, true);
    }
    if (to->steps == 0) {
        open_window(to, level, from->first_step, from->begin_ns);
    }
    add_window(windows, to, from);
    if (to->last_step + 1 == to->end_step) {
        close_window(windows, level, true);
    }
}

static void close_window(struct mu_step_windows *windows, int level, bool writes) {
    struct window *window = &windows->windows[level];
    if (window->steps == 0) {
        return;
    }
    if (writes) {
        write_window(windows, level);
    }
    if (level + 1 < MU_WINDOW_LEVELS) {
        add_to_level(windows, level + 1, window);
    }
    clear_window(windows, window);
}

/* --- steps --- */

static void take_part(struct sums *sums, const struct part *part, int64_t step_begin_ns) {
    sums->count++;
    sums->self_ns += part->self_ns;
    sums->max_ns = larger(sums->max_ns, part->self_ns);
    sums->begins += part->begin_ns - step_begin_ns;
    sums->ends += part->end_ns - step_begin_ns;
}

static void take_parts(struct mu_step_windows *windows, struct window *window, uint64_t step_ns) {
    uint64_t timed = 0;
    for (uint32_t i = 0; i < windows->ran_count; i++) {
        struct part *part = &windows->parts[windows->ran[i]];
        timed += part->self_ns;
        take_part(&window->paths[windows->ran[i]], part, windows->begin_ns);
        *part = (struct part){0};
    }
    windows->ran_count = 0;
    uint64_t untimed = step_ns > timed ? step_ns - timed : 0;
    window->untimed_ns += untimed;
    window->untimed_max_ns = larger(window->untimed_max_ns, untimed);
}

/* next_ns: when the next step begins; the last end of this one where that is not known. */
static void end_step(struct mu_step_windows *windows, int64_t next_ns) {
    struct window *window = &windows->windows[0];
    if (!windows->in_step) {
        return;
    }
    if (window->steps > 0 && !is_in(window, windows->step)) {
        close_window(windows, 0, true);
    }
    if (window->steps == 0) {
        open_window(window, 0, windows->step, windows->begin_ns);
    }
    uint64_t step_ns = next_ns > windows->begin_ns ? (uint64_t)(next_ns - windows->begin_ns) : 0;
    window->steps++;
    window->last_step = windows->step;
    window->begins += (double)(windows->begin_ns - window->begin_ns);
    window->sum_ns += step_ns;
    window->max_ns = larger(window->max_ns, step_ns);
    take_parts(windows, window, step_ns);
    windows->in_step = false;
    if (windows->step + 1 == window->end_step) {
        close_window(windows, 0, true);
    }
}

/* `begins`: the first level begins its file where there is none. */
static void close_all(struct mu_step_windows *windows, bool begins) {
    end_step(windows, windows->end_ns);
    for (int level = 0; level < MU_WINDOW_LEVELS; level++) {
        bool writes = (begins && level == 0) || windows->sink.has_file(windows->sink.owner, level);
        close_window(windows, level, writes);
    }
}

void mu_step_windows_flush(struct mu_step_windows *windows) {
    close_all(windows, false);
}

/* Steps that go back begin new windows, as a loop over epochs may. */
static void begin_step(struct mu_step_windows *windows, int64_t step, int64_t begin_ns) {
    if (windows->in_step && step < windows->step) {
        windows->backward++;
        close_all(windows, true);
    } else {
        end_step(windows, step == windows->step + 1 ? begin_ns : windows->end_ns);
    }
    windows->in_step = true;
    windows->step = step;
    windows->begin_ns = windows->end_ns = begin_ns;
}

/* After the last step of a run the number is -1. */
static bool is_taken(const struct mu_step_windows *windows, const struct mu_window_stage *stage) {
    return stage->step >= 0 && stage->step < INT64_MAX / 2 && stage->depth < MU_OPEN_MAX &&
           windows->backward <= MU_WINDOW_BACKWARD_MAX;
}

void mu_step_windows_start(struct mu_step_windows *windows, const struct mu_strings *strings,
                           const struct mu_window_stage *stage, int64_t begin_ns) {
    if (!is_taken(windows, stage)) {
        return;
    }
    uint32_t around = slot_around(windows, stage);
    if (!windows->in_step || stage->step > windows->step ||
        (stage->step < windows->step && around == stage->depth)) {
        begin_step(windows, stage->step, begin_ns);
    }
    uint16_t parent = around == stage->depth ? NONE : windows->open[around].path;
    windows->open[stage->depth] =
        (struct open_stage){.node = stage->node,
                            .around = around,
                            .path = path_of(windows, strings, parent, stage->name)};
}

void mu_step_windows_end(struct mu_step_windows *windows, const struct mu_strings *strings,
                         const struct mu_window_stage *stage, int64_t begin_ns,
                         int64_t duration_ns) {
    if (!is_taken(windows, stage) || duration_ns < 0) {
        return;
    }
    struct open_stage *open = &windows->open[stage->depth];
    if (open->node != stage->node || !windows->in_step) {
        mu_step_windows_start(windows, strings, stage, begin_ns);
    }
    uint64_t whole = (uint64_t)duration_ns;
    struct open_stage *around = &windows->open[open->around];
    if (around != open && around->node == stage->parent) { /* else it ended before, out of order */
        around->inside_ns += whole;
    }
    struct part *part = &windows->parts[open->path];
    int64_t end_ns = mu_clock_add(begin_ns, duration_ns);
    if (!part->ran) {
        part->ran = true;
        part->begin_ns = begin_ns > windows->begin_ns ? begin_ns : windows->begin_ns;
        windows->ran[windows->ran_count++] = open->path;
    }
    part->self_ns += whole > open->inside_ns ? whole - open->inside_ns : 0;
    part->end_ns = end_ns > part->begin_ns ? end_ns : part->begin_ns;
    windows->end_ns = end_ns > windows->end_ns ? end_ns : windows->end_ns;
    open->node = 0;
}
