/* Adds up what the stages of one thread buffer take in windows of 100, 1,000 and 10,000 steps.
 *
 * The drain passes each START and END as it becomes a row, in the order of time. A step begins with
 * its first stage and ends with that of the next one. Windows begin at multiples of their width, so
 * that those of all ranks have the same steps. Times are of the monotonic clock, in ns. Not
 * thread-safe.
 */
#ifndef MU_STEP_WINDOWS_H
#define MU_STEP_WINDOWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "journal/strings.h"
#include "timing/window_block.h"

enum { MU_WINDOW_LEVELS = 3, MU_WINDOW_BACKWARD_MAX = 1000 };

extern const uint32_t mu_window_widths[MU_WINDOW_LEVELS];

/* Where blocks go. `begin` makes room for some, and returns the number of the file that they go to,
 * from 1; 0: there is none. A new file has no names. `write` returns whether the block is in it.
 * `has_file`: whether there are blocks of that level already. */
struct mu_window_sink {
    uint32_t (*begin)(void *owner, int level);
    bool (*write)(void *owner, int level, const char *block, size_t bytes);
    bool (*has_file)(void *owner, int level);
    void *owner; /* borrowed */
};

struct mu_step_windows;

/* tid, tag: what tells the track from others; the tag is copied. attempt, track: its numbers. */
struct mu_window_track {
    uint32_t attempt, track, tid;
    const char *tag;
    size_t tag_length;
};

MU_MUST_CHECK int mu_step_windows_create(struct mu_step_windows **out,
                                         const struct mu_window_track *track,
                                         const struct mu_window_sink *sink, struct mu_error *err);
void mu_step_windows_free(struct mu_step_windows *windows);

/* What is added to the monotonic time for Unix time, from here on. */
void mu_step_windows_set_offset(struct mu_step_windows *windows, int64_t offset_ns);

struct mu_window_stage {
    uint64_t node, parent;
    int64_t step;
    uint32_t depth; /* its slot among the open stages */
    uint32_t name;  /* of `strings` */
};

void mu_step_windows_start(struct mu_step_windows *windows, const struct mu_strings *strings,
                           const struct mu_window_stage *stage, int64_t begin_ns);

/* Also of a stage whose START did not come. */
void mu_step_windows_end(struct mu_step_windows *windows, const struct mu_strings *strings,
                         const struct mu_window_stage *stage, int64_t begin_ns,
                         int64_t duration_ns);

/* Writes the windows that are open, as far as there are files of their level. The next step begins
 * new ones. */
void mu_step_windows_flush(struct mu_step_windows *windows);

#endif
