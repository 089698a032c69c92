/* What a journal holds whose pages may be of different ages.
 *
 * Nobody orders the pages of a mapped file on their way to the disk. After a power loss each page
 * may have the content of another moment, or none. So no number that one page says about another
 * one counts: neither the head, nor what was drained, nor how many strings there are. A record is
 * taken for what it says itself, wherever it is in its ring.
 */
#ifndef MU_DOUBTFUL_ROWS_H
#define MU_DOUBTFUL_ROWS_H

#include "journal/journal_reader.h"

/* Whether the pages cannot all be of one moment. A kill leaves none of what this finds, but for a
 * name with a zero byte where a page ends. */
bool mu_journal_image_is_mixed(const struct mu_journal_image *image);

/* Writes the rows of all records and open stages that prove to be whole, also those that are in the
 * CSV. `unproven` counts those that were not in it by what the commits say, and do not. */
MU_MUST_CHECK int mu_doubtful_rows(struct mu_journal_image *image, struct mu_csv_writer *writer,
                                   uint64_t *unproven, struct mu_error *err);

/* Writes the rows of records that follow a newer one in their ring: they look whole, but one of
 * them may have been in part replaced when its page went to the disk. Adds to `unproven` those of
 * which no row can be written. */
MU_MUST_CHECK int mu_doubtful_rows_behind(struct mu_journal_image *image,
                                          struct mu_csv_writer *writer, uint64_t *unproven,
                                          struct mu_error *err);

#endif
