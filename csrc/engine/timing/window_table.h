/* Reads blocks of windows, of one process, into rows.
 *
 * Nothing in them is trusted: what is damaged is left out, and what follows it is read. Paths of
 * all tracks and attempts are numbered together, parents before their children; 0 is "(other)". All
 * memory is owned. One thread at a time.
 */
#ifndef MU_WINDOW_TABLE_H
#define MU_WINDOW_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/hash_table.h"
#include "timing/window_block.h"

enum { MU_WINDOW_NO_PARENT = UINT32_MAX };

/* A cell of a window. */
struct mu_window_entry {
    uint32_t window; /* its place in `heads` */
    uint32_t path;
    struct mu_window_cell cell;
};

struct mu_window_path {
    uint32_t parent; /* MU_WINDOW_NO_PARENT for none */
    uint32_t length;
    char *name; /* owned, not terminated */
};

/* The stages of one timer on one thread, in one attempt. */
struct mu_table_track {
    uint32_t attempt, track, tid;
    uint32_t tag_length;
    char tag[MU_WINDOW_NAME_MAX];
    uint32_t paths[MU_WINDOW_PATHS_MAX]; /* of its own numbers those of the table */
};

struct mu_window_table {
    struct mu_window_head *heads; /* `track` is the place in `tracks` */
    struct mu_window_entry *entries;
    struct mu_window_path *paths;
    struct mu_table_track *tracks;
    struct mu_hash_table tracks_by_number; /* and attempt */
    size_t head_count, entry_count, path_count, track_count;
    size_t head_capacity, entry_capacity, path_capacity, track_capacity;
    uint64_t damaged_bytes, newer_blocks; /* that were left out */
};

MU_MUST_CHECK int mu_window_table_init(struct mu_window_table *table, struct mu_error *err);
void mu_window_table_reset(struct mu_window_table *table);

/* Adds the blocks of a file, or of its end. MU_ERR_LIMIT where those of some tracks were left out,
 * for there are too many of them; what is of others was added. */
MU_MUST_CHECK int mu_window_table_add(struct mu_window_table *table, const char *bytes,
                                      size_t length, struct mu_error *err);

#endif
