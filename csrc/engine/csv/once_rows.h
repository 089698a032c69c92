/* The rows that a process writes once, kept as text so that each part of its CSV begins with them.
 *
 * They are kept with `repeated=1` behind their track, by which readers know the copies. Of
 * `my_utils.clock_sync` and `my_utils.run_end`, which a later row replaces, the last one is kept.
 * Bounded: what comes after MU_ONCE_BYTES_MAX is in one part only. One caller at a time.
 */
#ifndef MU_ONCE_ROWS_H
#define MU_ONCE_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "csv/csv_writer.h"
#include "csv/metadata.h"

enum { MU_ONCE_ROWS_MAX = 4096, MU_ONCE_BYTES_MAX = 1 << 20 };

struct mu_once_row {
    uint64_t hash; /* of what no other row has: its name and metadata, or its name alone */
    uint32_t bytes;
};

struct mu_once_rows {
    struct mu_csv_writer writer; /* its buffer is the rows */
    uint32_t count;
    struct mu_once_row rows[MU_ONCE_ROWS_MAX];
};

enum { MU_COPY_TRACK_MAX = MU_CSV_TRACK_MAX + 16 };

/* The track of a row, and behind it that the row is a copy. Returns the length. */
size_t mu_copy_track(char out[MU_COPY_TRACK_MAX], const char *track, size_t length);

/* Whether all rows of that name are kept: those that describe the run and its process. */
bool mu_once_row_is_kept(struct mu_span name);

/* Also before mu_once_rows_free. Zeroed memory is enough. */
void mu_once_rows_free(struct mu_once_rows *once);

/* Keeps the row if it is one of these. `writer`: that which wrote it, for its machine. Where there
 * is no memory, it is not kept. */
void mu_once_rows_add(struct mu_once_rows *once, const struct mu_csv_writer *writer,
                      const struct mu_csv_event_row *row);

#endif
