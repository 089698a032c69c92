/* Windows of steps of many ranks, by the writer itself.
 *
 *   windows FOLDER RANKS STEPS FINE
 *
 * Each rank has twelve stages a step, of which the last is a meeting. Rank 3 takes longer in one
 * from the middle on, and the others wait for it. Of a step in 50 the times are passed on, so that
 * a month of 10,000 ranks takes seconds: a window has as many bytes as with all of its steps. The
 * first FINE ranks have the windows of all widths, the others those of 10,000 steps alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "journal/step_windows.h"
#include "profile_files/window_files.h"

enum { STAGES = 12, NAME_BYTES = 16, EVERY = 50, SLOW_RANK = 3, SLOW_STAGE = 5 };

static const int64_t step_ns = 1200000000, stage_ns = 105000000, longer_ns = 300000000;

struct names {
    char blob[STAGES * NAME_BYTES];
    struct mu_string_entry entries[STAGES + 1];
    _Atomic uint32_t count;
};

static void fill_names(struct names *names) {
    names->entries[0] = (struct mu_string_entry){0, 0};
    for (uint32_t i = 0; i < STAGES; i++) {
        char *name = names->blob + (size_t)i * NAME_BYTES;
        int length = i == STAGES - 1 ? snprintf(name, NAME_BYTES, "all_reduce")
                                     : snprintf(name, NAME_BYTES, "stage%02u", i);
        names->entries[i + 1] = (struct mu_string_entry){i * NAME_BYTES, (uint32_t)length};
    }
    names->count = STAGES + 1;
}

/* What goes to the files of a rank: of most ranks only the coarsest windows. */
struct filter {
    struct mu_window_sink sink;
    int finest;
};

static uint32_t begin(void *owner, int level) {
    struct filter *filter = owner;
    return level < filter->finest ? 0 : filter->sink.begin(filter->sink.owner, level);
}

static bool write_block(void *owner, int level, const char *block, size_t bytes) {
    struct filter *filter = owner;
    return filter->sink.write(filter->sink.owner, level, block, bytes);
}

static bool has_file(void *owner, int level) {
    struct filter *filter = owner;
    return level >= filter->finest && filter->sink.has_file(filter->sink.owner, level);
}

/* The same noise for a rank and a step in all runs. */
static int64_t noise(uint64_t rank, uint64_t step) {
    uint64_t hash = mu_hash_u64(mu_hash_u64(rank + 1) ^ step);
    return (int64_t)(hash % 4000000);
}

static void take_step(struct mu_step_windows *windows, const struct mu_strings *strings,
                      int64_t rank, int64_t step, int64_t steps) {
    bool later = step >= steps / 2;
    int64_t at = step * step_ns + (later ? (step - steps / 2) * longer_ns : 0);
    int64_t end = at + step_ns + (later ? longer_ns : 0);
    for (uint32_t i = 0; i < STAGES; i++) {
        int64_t took = stage_ns + noise((uint64_t)(rank * STAGES + i), (uint64_t)step);
        took += later && rank == SLOW_RANK && i == SLOW_STAGE ? longer_ns : 0;
        took = i == STAGES - 1 ? end - at : took;
        const struct mu_window_stage stage = {(uint64_t)(step * STAGES + i + 1), 0, step, 0, i + 1};
        mu_step_windows_start(windows, strings, &stage, at);
        mu_step_windows_end(windows, strings, &stage, at, took);
        at += took;
    }
}

static bool write_rank(const char *folder, int64_t rank, int64_t steps, bool fine,
                       const struct mu_strings *strings) {
    struct mu_window_files files;
    struct mu_output output = {.user = geteuid()};
    struct mu_step_windows *windows;
    char label[MU_LABEL_BYTES];
    const struct mu_window_track track = {1, 0, 1, "", 0};
    snprintf(output.directory, sizeof(output.directory), "%s", folder);
    snprintf(label, sizeof(label), "rank_%lld", (long long)rank);
    mu_window_files_init(&files);
    mu_window_files_begin(&files, &output, label, 128 << 20);
    struct filter filter = {mu_window_files_sink(&files), fine ? 0 : MU_WINDOW_LEVELS - 1};
    const struct mu_window_sink sink = {begin, write_block, has_file, &filter};
    if (mu_step_windows_create(&windows, &track, &sink, NULL) != MU_OK) {
        return false;
    }
    mu_step_windows_set_offset(windows, 1750000000000000000);
    for (int64_t step = 0; step < steps; step += EVERY) {
        take_step(windows, strings, rank, step, steps);
    }
    mu_step_windows_flush(windows);
    mu_step_windows_free(windows);
    bool written = files.failed == 0;
    mu_window_files_end(&files);
    return written;
}

int main(int count, char **arguments) {
    static struct names names;
    if (count != 5) {
        fprintf(stderr, "usage: windows FOLDER RANKS STEPS FINE\n");
        return 2;
    }
    fill_names(&names);
    const struct mu_strings strings = {names.entries, names.blob, &names.count, sizeof(names.blob),
                                       false};
    int64_t ranks = atoll(arguments[2]), steps = atoll(arguments[3]), fine = atoll(arguments[4]);
    for (int64_t rank = 0; rank < ranks; rank++) {
        if (!write_rank(arguments[1], rank, steps, rank < fine, &strings)) {
            fprintf(stderr, "the windows of rank %lld could not be written\n", (long long)rank);
            return 1;
        }
    }
    return 0;
}
