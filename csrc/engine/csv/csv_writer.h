/* Formatting of profile CSV rows. Columns and quoting are stated in docs/traces/profile-csv.md.
 *
 * The writer keeps the texts that neighbouring rows share (the second, the machine and the step),
 * so that most of a row is copied. It appends to a buffer that it owns. Not thread-safe.
 */
#ifndef MU_CSV_WRITER_H
#define MU_CSV_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

extern const char mu_csv_header[]; /* with its line end */
extern const size_t mu_csv_header_length;

enum { MU_CSV_MACHINE_MAX = 520, MU_CSV_TRACK_MAX = 256 };

struct mu_csv_writer {
    char *buffer; /* owned */
    size_t length;
    size_t allocated;
    int failed; /* a code of error.h once memory ran out; rows are dropped from then on */

    int64_t second;       /* Unix second that the two texts below stand for */
    char second_text[16]; /* "1750000000." */
    uint8_t second_length;
    char readable_text[24]; /* "2025-06-15 15:06:40." */
    uint8_t readable_length;

    char machine[MU_CSV_MACHINE_MAX]; /* ",host," quoted if need be */
    size_t machine_length;
    int64_t step;
    char step_text[24]; /* "12," */
    uint8_t step_length;
};

void mu_csv_writer_init(struct mu_csv_writer *writer);
void mu_csv_writer_free(struct mu_csv_writer *writer);

/* Sets the machine_id column; a long name is cut. */
void mu_csv_writer_set_machine(struct mu_csv_writer *writer, const char *machine);

/* Text as a CSV field: quoted when it holds a comma, a quote or a line end. Returns the length;
 * `out` has room for 2 * length + 2 bytes. */
size_t mu_csv_quote(char *out, const char *text, size_t length);

/* ",tid=T[,tag=X]" as it is inside the quoted metadata of every row of a track. */
size_t mu_csv_track_text(char out[MU_CSV_TRACK_MAX], uint32_t tid, const char *tag,
                         size_t tag_length);

/* Percent-encodes what would break a key or a value: , = " % CR LF. `out` has room for
 * 3 * length bytes. */
size_t mu_metadata_encode(char *out, const char *text, size_t length);

struct mu_csv_stage_row {
    int64_t real_ns;
    int64_t step;
    const char *name; /* quoted */
    size_t name_length;
    uint64_t node;
    uint64_t parent;
    const char *track; /* from mu_csv_track_text */
    size_t track_length;
};

void mu_csv_write_start(struct mu_csv_writer *writer, const struct mu_csv_stage_row *row);

/* `extra` is further metadata, with a leading comma and without quotes. It may be empty. */
void mu_csv_write_end(struct mu_csv_writer *writer, const struct mu_csv_stage_row *row,
                      int64_t duration_ns, const char *extra, size_t extra_length);

struct mu_csv_event_row {
    int64_t real_ns;
    int64_t step;
    int type;         /* enum mu_event_type */
    const char *name; /* as it is */
    size_t name_length;
    bool has_duration;
    int64_t duration_ns;
    const char *metadata; /* as it is */
    size_t metadata_length;
    const char *track;
    size_t track_length;
};

/* The track is written after metadata that begins with node_id, and before any other metadata. A
 * row of another type than START and END follows a START row of its time and name, which opens it
 * for readers that take whatever is not a START for an end. Our own readers ignore that row. */
void mu_csv_write_event(struct mu_csv_writer *writer, const struct mu_csv_event_row *row);

/* An INSTANT that the tool writes itself, of no step, on the track of the process. */
void mu_csv_write_own(struct mu_csv_writer *writer, int64_t real_ns, int32_t pid, const char *name,
                      const char *metadata);

/* Appends rows that were formatted before. */
void mu_csv_write_text(struct mu_csv_writer *writer, const char *rows, size_t length);

/* How many rows a text of whole rows has, without those that only open the next one. */
size_t mu_csv_count_rows(const char *text, size_t length);

#endif
