/* Replaces names in a text by rules, in one pass.
 *
 * The rules come in tiers. The first tier is applied to the whole text, the next one to the text
 * between its matches, and so on. So a rule of an earlier tier wins where two rules overlap. Within
 * a tier the leftmost match wins, and of those that begin there the longest. Replacement texts are
 * not searched again. The functions work on bytes: any encoding that contains ASCII unchanged is
 * accepted.
 *
 * A replacer does not change once it is made; any number of threads may use it at a time.
 */
#ifndef MU_REPLACE_H
#define MU_REPLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { MU_REPLACE_TIERS_MAX = 4 };

/* `to` NULL makes a watch: a name that begins with `from`, is longer and matches no rule stays as
 * it is and is reported. Only in a tier of whole names. The bytes are borrowed while the replacer
 * is made. */
struct mu_replace_rule {
    const char *from;
    size_t from_length; /* 1 at least */
    const char *to;
    size_t to_length;
};

struct mu_replace_tier {
    const struct mu_replace_rule *rules; /* of equal ones the first counts */
    size_t count;
    bool whole; /* matches neither begin nor end inside a name, see aho_corasick.h */
};

struct mu_replace_span {
    size_t start, end; /* bytes of the input */
};

struct mu_replaced {
    char *bytes; /* owned; NULL while nothing is replaced, as then the text is the result */
    size_t length, capacity;
    uint64_t count;                  /* replacements that changed something */
    struct mu_replace_span *watched; /* owned: names that a watch matched, in order */
    size_t watched_count, watched_capacity;
};

struct mu_replacer;

MU_MUST_CHECK int mu_replacer_new(const struct mu_replace_tier *tiers, size_t count,
                                  struct mu_replacer **replacer, struct mu_error *err);
void mu_replacer_free(struct mu_replacer *replacer);

/* Fills `out`, which mu_replaced_reset frees, also after an error. */
MU_MUST_CHECK int mu_replacer_run(const struct mu_replacer *replacer, const char *text,
                                  size_t length, struct mu_replaced *out, struct mu_error *err);
void mu_replaced_reset(struct mu_replaced *out);

#endif
