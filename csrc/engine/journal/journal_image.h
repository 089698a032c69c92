/* Shared by the files that read journals: journal_reader.c (the contents of an image),
 * journal_copy.c (the bytes of a file) and journal_csv.c (the CSV beside it).
 */
#ifndef MU_JOURNAL_IMAGE_H
#define MU_JOURNAL_IMAGE_H

#include "journal/journal_reader.h"

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
