/* Stage names and stage paths by number.
 *
 * Names live in the journal's string table, so that readers of a dead process find them; a path (a
 * name under a parent path) exists only in memory, for the aggregates. Both are bounded. Beyond the
 * bound a name has number 0 and is stored in its record, and a path is MU_PATH_OTHER. One caller at
 * a time (the recorder's registry lock).
 */
#ifndef MU_NAMES_H
#define MU_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash_table.h"
#include "base/utf8.h"
#include "journal/journal.h"

enum {
    MU_NAME_NONE = 0,
    MU_PATHS_MAX = 4096,
    MU_PATH_ROOT = 0,
    MU_PATH_OTHER = 1,
};

struct mu_path {
    uint16_t parent;
    uint16_t name; /* MU_NAME_NONE for the root and the rest */
};

struct mu_names {
    struct mu_journal *journal; /* borrowed */
    struct mu_path paths[MU_PATHS_MAX];
    uint32_t path_count;
    struct mu_hash_table by_bytes; /* the names' numbers; its slots are the next field */
    struct mu_hash_slot name_slots[2 * MU_STRINGS_MAX];
    struct mu_hash_table by_parent_and_name; /* the paths' numbers */
    struct mu_hash_slot path_slots[2 * MU_PATHS_MAX];
};

/* The names must stay where they are: their tables point into them. */
void mu_names_init(struct mu_names *names, struct mu_journal *journal);

/* For callers that have no hash yet. Never 0. */
uint64_t mu_name_hash(const char *bytes, size_t length);

/* `length` cut to what a name may have, at the start of a UTF-8 character. */
static inline size_t mu_name_cut(const char *bytes, size_t length) {
    return mu_utf8_cut(bytes, length, MU_STRING_BYTES_MAX);
}

/* The number of the name, MU_NAME_NONE when there is no room for a new one. The same bytes must
 * always have the same hash. */
uint16_t mu_names_intern(struct mu_names *names, const char *bytes, size_t length, uint64_t hash);

uint16_t mu_names_path(struct mu_names *names, uint16_t parent, uint16_t name);

#endif
