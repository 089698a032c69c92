/* The names that patterns are or begin with, in a hash table.
 *
 * Where whole names are searched, a name of the text is looked up as one key instead of byte by
 * byte. The cost hardly depends on the number of patterns. A table does not change once it is
 * filled; any number of threads may look names up at a time.
 */
#ifndef MU_AHO_CORASICK_NAMES_H
#define MU_AHO_CORASICK_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* A slot of the table. */
struct mu_ac_name {
    uint32_t tag;     /* the upper half of the hash */
    uint32_t begin;   /* in `bytes`; 0: the slot is free */
    uint32_t pattern; /* that the name is, or MU_AC_NONE */
    uint32_t state;   /* of the automaton after the name, where a pattern goes on there, or 0 */
};

struct mu_ac_names {
    struct mu_ac_name *slots; /* owned; open addressing, half of them at most taken */
    size_t mask;              /* slots - 1, all ones */
    char *bytes;              /* owned: a NUL, and after each name another one */
    size_t used;              /* of `bytes` */
};

/* For `count` names of `bytes` bytes together at most. What was made must be given to
 * mu_ac_names_reset, also after an error. */
MU_MUST_CHECK int mu_ac_names_init(struct mu_ac_names *names, size_t count, size_t bytes,
                                   struct mu_error *err);
void mu_ac_names_reset(struct mu_ac_names *names);

/* The slot of a name; a new one has no state yet. The bytes are copied. */
struct mu_ac_name *mu_ac_names_add(struct mu_ac_names *names, const char *bytes, size_t length);

/* The slot of a name, or NULL. */
const struct mu_ac_name *mu_ac_names_find(const struct mu_ac_names *names, const char *bytes,
                                          size_t length);

#endif
