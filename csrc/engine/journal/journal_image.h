/* A journal in memory, and what only the files that read journals use: journal_reader.c (the
 * contents of an image), journal_copy.c (the bytes of a file) and journal_csv.c (the CSV beside
 * it).
 */
#ifndef MU_JOURNAL_IMAGE_H
#define MU_JOURNAL_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/error.h"
#include "csv/csv_writer.h"
#include "journal/journal_format.h"
#include "journal/rows.h"

struct mu_journal_image {
    const uint8_t *bytes; /* borrowed */
    size_t size;
    uint8_t *owned; /* the bytes when they were read from a file */
    /* The heads of the threads when their open stages were read; NULL when no process writes.
     * Owned. */
    uint64_t *later_heads;
    bool overrun; /* the process wrote faster than its rings could be read */
    const struct mu_journal_header *header;
    struct mu_strings strings;
    uint32_t chunk_count;
    uint32_t whole_chunks;   /* that the bytes hold, also those that were never used */
    uint32_t missing_chunks; /* that the header counts but the truncated file does not have */
    struct mu_timeline timeline;
    /* The valid commit; all 0 before the first. */
    uint64_t epoch;
    uint64_t csv_bytes;
    uint64_t csv_part;
    int64_t real_offset_ns;
    int64_t user_offset_ns;
    uint64_t reported_drops;    /* one more than rows report, 0: not known */
    uint64_t reported_unplaced; /* the same of records that found no chunk */
};

/* Whether the bytes begin like a journal that this program can read. */
MU_MUST_CHECK int mu_journal_check_header(const struct mu_journal_header *header,
                                          struct mu_error *err);

/* `index` is below the image's chunk_count. */
static inline const struct mu_chunk_header *
mu_journal_image_chunk(const struct mu_journal_image *image, uint32_t index) {
    return (const struct mu_chunk_header *)(const void *)(image->bytes + MU_CHUNKS_OFFSET +
                                                          (size_t)index * MU_CHUNK_BYTES);
}

/* The state of the thread buffer's output that belongs to the image's commit, NULL before the
 * first. */
const struct mu_chunk_commit *mu_journal_chunk_commit(const struct mu_journal_image *image,
                                                      const struct mu_chunk_header *chunk);

/* The chunk's ring, of MU_RING_SLOTS. */
static inline const struct mu_record *mu_journal_image_ring(const struct mu_chunk_header *chunk) {
    return (const struct mu_record *)(const void *)((const uint8_t *)chunk + MU_CHUNK_HEADER_BYTES);
}

/* The time of the newest anchor, as rows have it: every drain and every beat takes one. False where
 * the image has none. */
MU_MUST_CHECK bool mu_journal_image_last_ns(const struct mu_journal_image *image, int64_t *real_ns);

/* Sets the machine_id column for the rows of the image. */
void mu_journal_image_set_machine(const struct mu_journal_image *image,
                                  struct mu_csv_writer *writer);

#endif
