/* The names that a replacement watched, each of them once. */
#ifndef MU_REPLACE_NAMES_H
#define MU_REPLACE_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "replace/replace.h"

struct mu_replace_name {
    struct mu_replace_span span; /* where it came first */
    uint64_t count;              /* how often it came */
    uint64_t line;               /* of the first, from 1; only \n ends a line */
};

/* Returns the `*count` names that were watched in `text`, in the order of their first places. The
 * caller frees them with free(). NULL for none, and after an error. */
MU_MUST_CHECK int mu_replace_names(const struct mu_replaced *replaced, const char *text,
                                   struct mu_replace_name **names, size_t *count,
                                   struct mu_error *err);

#endif
