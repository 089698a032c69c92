/* Finds the places of a text where a pattern may begin, so that an automaton checks no others. Also
 * finds where names end.
 *
 * The patterns are distributed over eight buckets by their first byte. A place is a start when its
 * next three bytes have a bucket in common. Among whole names a place inside a name is never a
 * start. A start may be false, but none is missed. Any number of threads may search with the same
 * starts. Source: the packed string matching of the Hyperscan project, known as Teddy (G.
 * Langdale).
 */
#ifndef MU_AHO_CORASICK_STARTS_H
#define MU_AHO_CORASICK_STARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MU_AC_STARTS_BYTES = 3 };

struct mu_ac_starts {
    bool whole;
    bool is_name[256]; /* a letter, a digit or an underscore */
    /* By place in the pattern and byte there: the buckets, as bits. */
    uint8_t buckets[MU_AC_STARTS_BYTES][256];
    /* The same for each half of the byte. The buckets common to both halves are a superset of
     * `buckets`. */
    uint8_t low[MU_AC_STARTS_BYTES][16], high[MU_AC_STARTS_BYTES][16];
};

/* The first start in [at, limit) of `text`, or `limit`. */
typedef size_t mu_ac_next_start(const struct mu_ac_starts *starts, const unsigned char *text,
                                size_t at, size_t limit);

mu_ac_next_start mu_ac_next_start_portable;
mu_ac_next_start mu_ac_next_start_avx2;
mu_ac_next_start mu_ac_next_start_neon;

/* The first byte in [at, limit) of `text` that is none of a name, or `limit`. */
typedef size_t mu_ac_name_end(const unsigned char *text, size_t at, size_t limit);

mu_ac_name_end mu_ac_name_end_portable;
mu_ac_name_end mu_ac_name_end_avx2;
mu_ac_name_end mu_ac_name_end_neon;

/* The quickest ones that this processor has. */
mu_ac_next_start *mu_ac_next_start_best(void);
mu_ac_name_end *mu_ac_name_end_best(void);

void mu_ac_starts_init(struct mu_ac_starts *starts, bool whole);

/* `length` is 1 at least. */
void mu_ac_starts_add(struct mu_ac_starts *starts, const char *bytes, size_t length);

static inline bool mu_is_name_byte(int byte) {
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= '0' && byte <= '9') || byte == '_';
}

#endif
