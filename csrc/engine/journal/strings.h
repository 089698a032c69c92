/* The strings of a journal: names of stages, threads and timers, by their numbers. Neither offsets
 * nor lengths are trusted. */
#ifndef MU_STRINGS_H
#define MU_STRINGS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "journal/journal_format.h"

/* As far as they are known to be within it. */
struct mu_strings {
    const struct mu_string_entry *entries;
    const char *blob;
    /* How many there are. Borrowed, and loaded again at every look-up. A string is counted before
     * its number is published. So a reader that has the number finds the string, also when it was
     * added during the read. */
    const _Atomic uint32_t *count;
    uint32_t blob_bytes;
    /* Bytes of the blob may be missing: they are 0 then, for each is written once. A string that
     * has such a byte is not known. */
    bool may_lack_bytes;
};

/* NULL when there is no such string. In a living process `index` was read with acquire. */
const char *mu_strings_get(const struct mu_strings *strings, uint32_t index, size_t *length);

#endif
