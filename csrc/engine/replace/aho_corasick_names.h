/* The names that patterns are or begin with, by their bytes.
 *
 * Where whole names are searched, a name of the text is found as one key instead of byte by byte.
 * The cost hardly depends on the number of patterns. A table does not change once it is filled; any
 * number of threads may search it at a time.
 */
#ifndef MU_AHO_CORASICK_NAMES_H
#define MU_AHO_CORASICK_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/hash_table.h"

struct mu_ac_name {
    uint32_t pattern; /* that the name is, or MU_AC_NONE */
    uint32_t state;   /* of the automaton after the name, where a pattern goes on there, or 0 */
    char bytes[];     /* and a NUL */
};

struct mu_ac_names {
    struct mu_hash_table by_bytes; /* a name's number is its place in `words` */
    uint32_t *words;               /* owned: the names one after the other; the first is not used */
    size_t used;                   /* of `words` */
};

/* For `count` names of `bytes` bytes together at most. What was made must be given to
 * mu_ac_names_reset, also after an error. */
MU_MUST_CHECK int mu_ac_names_init(struct mu_ac_names *names, size_t count, size_t bytes,
                                   struct mu_error *err);
void mu_ac_names_reset(struct mu_ac_names *names);

/* The name of these bytes; a new one has no state yet. The bytes are copied. */
struct mu_ac_name *mu_ac_names_add(struct mu_ac_names *names, const char *bytes, size_t length);

/* The name of these bytes, or NULL. */
const struct mu_ac_name *mu_ac_names_find(const struct mu_ac_names *names, const char *bytes,
                                          size_t length);

#endif
