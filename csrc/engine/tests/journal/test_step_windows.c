/* Windows of steps: what is added up, what is written, and what a reader makes of damaged files. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "journal/step_windows.h"
#include "profile_files/window_files.h"
#include "tests/check.h"
#include "timing/window_table.h"

static const char blob[] = "dataforwardinner";
static const struct mu_string_entry entries[] = {{0, 0}, {0, 4}, {4, 7}, {11, 5}};
static const _Atomic uint32_t string_count = 4;
static const struct mu_strings strings = {entries, blob, &string_count, sizeof(blob) - 1, false};

enum name { DATA = 1, FORWARD, INNER };

static const int64_t step_ns = 1000, offset_ns = 1000000;

struct place {
    char directory[64];
    struct mu_output output;
    struct mu_window_files files;
    struct mu_step_windows *windows;
    uint64_t node;
};

static void make_windows(struct place *place, uint32_t attempt) {
    const struct mu_window_track track = {attempt, 0, 77, "tag", 3};
    const struct mu_window_sink sink = mu_window_files_sink(&place->files);
    CHECK_INT(mu_step_windows_create(&place->windows, &track, &sink, NULL), MU_OK);
    mu_step_windows_set_offset(place->windows, offset_ns);
}

static void start_place(struct place *place, uint64_t most_bytes) {
    memset(place, 0, sizeof(*place));
    snprintf(place->directory, sizeof(place->directory), "/tmp/mu-test-XXXXXX");
    CHECK(mkdtemp(place->directory) != NULL);
    snprintf(place->output.directory, sizeof(place->output.directory), "%s", place->directory);
    place->output.user = geteuid();
    mu_window_files_init(&place->files);
    mu_window_files_begin(&place->files, &place->output, "rank_0", most_bytes);
    make_windows(place, 1);
}

static void path_in(const struct place *place, const char *name, char path[128]) {
    snprintf(path, 128, "%s/rank_0.%s.windows", place->directory, name);
}

static void end_windows(struct place *place) {
    mu_step_windows_flush(place->windows);
    mu_step_windows_free(place->windows);
    mu_window_files_end(&place->files);
}

static void remove_place(const struct place *place) {
    static const char *const names[] = {"100", "1000", "10000", "100.old", "1000.old", "10000.old"};
    char path[128];
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        path_in(place, names[i], path);
        unlink(path);
    }
    CHECK_INT(rmdir(place->directory), 0);
}

static void stage(struct place *place, enum name name, uint32_t depth, int64_t step,
                  int64_t begin_ns, int64_t duration_ns) {
    const struct mu_window_stage one = {++place->node, depth > 0 ? 1 : 0, step, depth, name};
    mu_step_windows_start(place->windows, &strings, &one, begin_ns);
    mu_step_windows_end(place->windows, &strings, &one, begin_ns, duration_ns);
}

/* A step of 1,000 ns: 100 in data, 500 in forward, of which 200 (300 in step 7) in inner. */
static void take_step(struct place *place, int64_t step) {
    int64_t at = step * step_ns, inside = step == 7 ? 300 : 200;
    stage(place, DATA, 0, step, at, 100);
    const struct mu_window_stage forward = {++place->node, 0, step, 0, FORWARD};
    const struct mu_window_stage inner = {++place->node, forward.node, step, 1, INNER};
    mu_step_windows_start(place->windows, &strings, &forward, at + 100);
    mu_step_windows_start(place->windows, &strings, &inner, at + 200);
    mu_step_windows_end(place->windows, &strings, &inner, at + 200, inside);
    mu_step_windows_end(place->windows, &strings, &forward, at + 100, 500);
}

static void take_steps(struct place *place, int64_t first, int64_t end) {
    for (int64_t step = first; step < end; step++) {
        take_step(place, step);
    }
}

static char *read_file(const struct place *place, const char *name, size_t *length) {
    char path[128];
    struct stat status;
    path_in(place, name, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0) {
        *length = 0;
        return NULL;
    }
    char *bytes = malloc((size_t)status.st_size + 1);
    CHECK_INT(read(fd, bytes, (size_t)status.st_size), status.st_size);
    close(fd);
    *length = (size_t)status.st_size;
    return bytes;
}

static void read_table(const struct place *place, const char *name, struct mu_window_table *table) {
    size_t length;
    char *bytes = read_file(place, name, &length);
    CHECK_INT(mu_window_table_init(table, NULL), MU_OK);
    CHECK_INT(mu_window_table_add(table, bytes == NULL ? "" : bytes, length, NULL), MU_OK);
    free(bytes);
}

static const struct mu_window_cell *cell_of(const struct mu_window_table *table, uint32_t window,
                                            const char *name) {
    for (size_t i = 0; i < table->entry_count; i++) {
        const struct mu_window_entry *entry = &table->entries[i];
        const struct mu_window_path *path = &table->paths[entry->path];
        if (entry->window == window && path->length == strlen(name) &&
            memcmp(path->name, name, path->length) == 0) {
            return &entry->cell;
        }
    }
    return NULL;
}

/* Of the path of that name the one around it, "" for none. */
static void check_parent(const struct mu_window_table *table, const char *name,
                         const char *wanted) {
    for (size_t i = 1; i < table->path_count; i++) {
        const struct mu_window_path *path = &table->paths[i];
        if (path->length == strlen(name) && memcmp(path->name, name, path->length) == 0) {
            bool none = path->parent == MU_WINDOW_NO_PARENT;
            CHECK_INT(none ? 0 : table->paths[path->parent].length, strlen(wanted));
            CHECK_BYTES(none ? "" : table->paths[path->parent].name, wanted, strlen(wanted));
        }
    }
}

static void test_sums(void) {
    struct place place;
    struct mu_window_table table;
    start_place(&place, 1 << 20);
    take_steps(&place, 0, 250);
    end_windows(&place);
    read_table(&place, "100", &table);
    CHECK_INT(table.head_count, 3);
    CHECK_INT(table.damaged_bytes, 0);
    const struct mu_window_head *head = &table.heads[0];
    CHECK_INT(head->first_step, 0);
    CHECK_INT(head->last_step, 99);
    CHECK_INT(head->steps, 100);
    CHECK_INT(head->begin_ns, offset_ns);
    CHECK_INT(head->mean_begin_ns, 99 * step_ns / 2);
    CHECK_INT(head->sum_ns, 100 * step_ns);
    CHECK_INT(head->max_ns, step_ns);
    CHECK_INT(head->untimed_sum_ns, 100 * 400);
    const struct mu_window_cell *data = cell_of(&table, 0, "data");
    const struct mu_window_cell *forward = cell_of(&table, 0, "forward");
    const struct mu_window_cell *inner = cell_of(&table, 0, "inner");
    CHECK_INT(data->count, 100);
    CHECK_INT(data->sum_ns, 100 * 100);
    CHECK_INT(forward->sum_ns, 99 * 300 + 200); /* without inner */
    CHECK_INT(inner->sum_ns, 99 * 200 + 300);
    CHECK_INT(inner->max_ns, 300);
    CHECK_INT(forward->begin * step_ns + 0.5, 100);
    CHECK_INT(inner->begin * step_ns + 0.5, 200);
    CHECK_INT(forward->end * step_ns + 0.5, 600);
    check_parent(&table, "inner", "forward");
    check_parent(&table, "data", "");
    CHECK_INT(table.heads[2].steps, 50); /* what was open at the end */
    CHECK_INT(table.heads[2].last_step, 249);
    CHECK_INT(table.tracks[0].tid, 77);
    CHECK_BYTES(table.tracks[0].tag, "tag", 3);
    mu_window_table_reset(&table);
    remove_place(&place);
}

static void test_levels(void) {
    struct place place;
    struct mu_window_table table;
    start_place(&place, 1 << 20);
    take_steps(&place, 0, 12000);
    end_windows(&place);
    static const struct {
        const char *name;
        size_t windows;
        int64_t last_steps;
    } wanted[] = {{"100", 120, 100}, {"1000", 12, 1000}, {"10000", 2, 2000}};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        read_table(&place, wanted[i].name, &table);
        uint64_t steps = 0, sum_ns = 0;
        for (size_t at = 0; at < table.head_count; at++) {
            steps += table.heads[at].steps;
            sum_ns += table.heads[at].sum_ns;
        }
        CHECK_INT(table.head_count, wanted[i].windows);
        CHECK_INT(steps, 12000);
        CHECK_INT(sum_ns, 11999 * step_ns + 600); /* the last step ends with its last stage */
        CHECK_INT(table.heads[table.head_count - 1].steps, wanted[i].last_steps);
        CHECK_INT(cell_of(&table, 0, "inner")->max_ns, 300);
        mu_window_table_reset(&table);
    }
    remove_place(&place);
}

static void test_short_runs_leave_nothing(void) {
    struct place place;
    size_t length;
    start_place(&place, 1 << 20);
    take_steps(&place, 0, 99);
    end_windows(&place);
    CHECK(read_file(&place, "100", &length) == NULL);
    remove_place(&place);
}

static void test_steps_that_go_back(void) {
    struct place place;
    struct mu_window_table table;
    start_place(&place, 1 << 20);
    take_steps(&place, 0, 30);
    take_steps(&place, 0, 30);
    end_windows(&place);
    read_table(&place, "100", &table);
    CHECK_INT(table.head_count, 2);
    CHECK_INT(table.heads[0].steps, 30);
    CHECK_INT(table.heads[1].first_step, 0);
    mu_window_table_reset(&table);
    remove_place(&place);
}

/* With little space the finest windows of old times go, and the coarser ones have their steps. */
static void test_bound(void) {
    enum { MOST = 64 << 10, STEPS = 100000 };
    struct place place;
    struct mu_window_table table;
    size_t length, total = 0;
    static const char *const names[] = {"100", "1000", "10000", "100.old", "1000.old", "10000.old"};
    start_place(&place, MOST);
    take_steps(&place, 0, STEPS);
    end_windows(&place);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        free(read_file(&place, names[i], &length));
        total += length;
    }
    CHECK(total <= MOST + 6 * 512);
    read_table(&place, "100.old", &table);
    CHECK(table.heads[0].first_step > 0);
    CHECK(cell_of(&table, 0, "inner") != NULL); /* its names are in the new file, too */
    mu_window_table_reset(&table);
    read_table(&place, "10000", &table);
    CHECK_INT(table.head_count, STEPS / 10000);
    mu_window_table_reset(&table);
    remove_place(&place);
}

static void test_restart(void) {
    struct place place;
    struct mu_window_table table;
    char path[128];
    start_place(&place, 1 << 20);
    take_steps(&place, 0, 200);
    end_windows(&place);
    path_in(&place, "100", path);
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    CHECK_INT(write(fd, "MUWN torn", 9), 9);
    close(fd);
    mu_window_files_begin(&place.files, &place.output, "rank_0", 1 << 20);
    make_windows(&place, 2);
    take_steps(&place, 200, 320);
    end_windows(&place);
    read_table(&place, "100", &table);
    CHECK_INT(table.head_count, 4);
    CHECK_INT(table.damaged_bytes, 0); /* the torn end was written over */
    CHECK_INT(table.heads[1].attempt, 1);
    CHECK_INT(table.heads[2].attempt, 2);
    CHECK_INT(table.heads[3].last_step, 319);
    CHECK(cell_of(&table, 3, "inner") != NULL);
    mu_window_table_reset(&table);
    remove_place(&place);
}

/* Cut anywhere, and with any byte changed: no window that is not whole, and the others stay. */
static void test_damage(void) {
    struct place place;
    struct mu_window_table table;
    size_t length;
    start_place(&place, 1 << 20);
    take_steps(&place, 0, 500);
    end_windows(&place);
    char *bytes = read_file(&place, "100", &length);
    for (size_t cut = 0; cut <= length; cut++) {
        char *copy = malloc(cut + 1); /* so that a sanitizer sees a read beyond it */
        memcpy(copy, bytes, cut);
        CHECK_INT(mu_window_table_init(&table, NULL), MU_OK);
        CHECK_INT(mu_window_table_add(&table, copy, cut, NULL), MU_OK);
        CHECK(table.head_count <= 5 && (cut < length || table.head_count == 5));
        mu_window_table_reset(&table);
        free(copy);
    }
    for (size_t at = 0; at < length; at++) {
        bytes[at] = (char)(bytes[at] ^ 0x55);
        CHECK_INT(mu_window_table_init(&table, NULL), MU_OK);
        CHECK_INT(mu_window_table_add(&table, bytes, length, NULL), MU_OK);
        CHECK(table.head_count >= 4 && table.damaged_bytes > 0);
        mu_window_table_reset(&table);
        bytes[at] = (char)(bytes[at] ^ 0x55);
    }
    free(bytes);
    remove_place(&place);
}

/* Numbers that a sealed block may have, as another program may write one. */
static void test_hostile_numbers(void) {
    char block[MU_WINDOW_BLOCK_MAX];
    static const struct mu_window_head heads[] = {
        {.kind = MU_WINDOW_STEPS, .steps = 1, .width = 1, .cells = UINT32_MAX},
        {.kind = MU_WINDOW_STEPS, .steps = 1, .width = 1, .cells = 200},
        {.kind = MU_WINDOW_STEPS, .steps = 0, .width = 1},
        {.kind = MU_WINDOW_STEPS, .steps = 1, .width = 1, .first_step = 5, .last_step = 4},
        {.kind = MU_WINDOW_NAMES, .cells = UINT32_MAX},
        {.kind = MU_WINDOW_NAMES, .cells = 3},
        {.kind = UINT16_MAX},
    };
    for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++) {
        for (size_t payload = 0; payload < 300; payload += 7) {
            struct mu_window_head head = heads[i];
            struct mu_window_table table;
            memset(block, 0xff, sizeof(block));
            mu_window_block_seal(block, &head, payload);
            CHECK_INT(mu_window_table_init(&table, NULL), MU_OK);
            CHECK_INT(mu_window_table_add(&table, block, head.bytes, NULL), MU_OK);
            CHECK_INT(table.damaged_bytes, 0);
            mu_window_table_reset(&table);
        }
    }
}

/* One that outlives the stage around it is not inside the next stage of that slot. */
static void test_a_stage_that_ends_late_takes_nothing_from_another(void) {
    struct place place;
    struct mu_window_table table;
    start_place(&place, 1 << 20);
    for (int64_t step = 0; step < 100; step++) {
        int64_t at = step * step_ns;
        const struct mu_window_stage forward = {++place.node, 0, step, 0, FORWARD};
        const struct mu_window_stage inner = {++place.node, forward.node, step, 1, INNER};
        const struct mu_window_stage data = {++place.node, 0, step, 0, DATA};
        mu_step_windows_start(place.windows, &strings, &forward, at);
        mu_step_windows_start(place.windows, &strings, &inner, at + 100);
        mu_step_windows_end(place.windows, &strings, &forward, at, 500);
        mu_step_windows_start(place.windows, &strings, &data, at + 600);
        mu_step_windows_end(place.windows, &strings, &inner, at + 100, 600);
        mu_step_windows_end(place.windows, &strings, &data, at + 600, 300);
    }
    end_windows(&place);
    read_table(&place, "100", &table);
    CHECK_INT((int64_t)cell_of(&table, 0, "forward")->sum_ns, 50000);
    CHECK_INT((int64_t)cell_of(&table, 0, "inner")->sum_ns, 60000);
    CHECK_INT((int64_t)cell_of(&table, 0, "data")->sum_ns, 30000);
    mu_window_table_reset(&table);
    remove_place(&place);
}

/* As of a training that starts a thread in each step, for very long. */
static void test_the_windows_of_too_many_tracks_cost_no_others(void) {
    enum { TRACKS = 70000, BYTES = MU_WINDOW_HEAD_BYTES + MU_WINDOW_END_BYTES };
    struct mu_window_table table;
    char *blocks = malloc((size_t)TRACKS * BYTES);
    CHECK(blocks != NULL);
    for (uint32_t i = 0; i < TRACKS; i++) {
        struct mu_window_head head = {.kind = MU_WINDOW_STEPS,
                                      .attempt = 1,
                                      .track = i + 1 < TRACKS ? i : 0,
                                      .width = 100,
                                      .steps = 100,
                                      .first_step = (int64_t)i * 100,
                                      .last_step = (int64_t)i * 100 + 99};
        mu_window_block_seal(blocks + (size_t)i * BYTES, &head, 0);
    }
    CHECK_INT(mu_window_table_init(&table, NULL), MU_OK);
    CHECK_INT(mu_window_table_add(&table, blocks, (size_t)TRACKS * BYTES, NULL), MU_ERR_LIMIT);
    CHECK_INT(table.damaged_bytes, 0);
    CHECK_INT(table.head_count, table.track_count + 1);
    CHECK_INT(table.heads[table.head_count - 1].track, 0);
    CHECK_INT(table.heads[table.head_count - 1].first_step, (int64_t)(TRACKS - 1) * 100);
    mu_window_table_reset(&table);
    free(blocks);
}

int main(void) {
    test_sums();
    test_levels();
    test_short_runs_leave_nothing();
    test_steps_that_go_back();
    test_bound();
    test_restart();
    test_damage();
    test_hostile_numbers();
    test_a_stage_that_ends_late_takes_nothing_from_another();
    test_the_windows_of_too_many_tracks_cost_no_others();
    return check_report();
}
