/* Finds any of many patterns in a text: the automaton of Aho and Corasick in a double array.
 *
 * Of all matches the leftmost is found, and of those that begin there the longest. An automaton of
 * whole names matches a pattern only where it does not begin or end inside a name; a name is a run
 * of ASCII letters, digits and underscores. In such an automaton a pattern may also be a watch: it
 * matches the beginning of a longer name, and the match is the whole name. From its root such an
 * automaton also processes a whole name at once, by a table of the names that the patterns begin
 * with.
 *
 * An automaton does not change once it is made; any number of threads may search with it at a time.
 * Sources: A. Aho, M. Corasick, Efficient string matching, CACM 18 (1975); J. Aoe, An efficient
 * digital search algorithm by using a double-array structure, IEEE TSE 15 (1989).
 */
#ifndef MU_AHO_CORASICK_H
#define MU_AHO_CORASICK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "replace/aho_corasick_names.h"
#include "replace/aho_corasick_starts.h"

/* Bytes that the patterns of one automaton may have together. */
enum { MU_AC_BYTES_MAX = 1 << 28 };

struct mu_ac_pattern {
    const char *bytes; /* borrowed while the automaton is made */
    size_t length;     /* 1 at least */
    bool is_watch;     /* only among whole names */
};

struct mu_ac_match {
    size_t start, end;
    uint32_t pattern; /* its number in the list */
    bool is_watch;
};

/* One place of the double array: the child of a state by a byte stands at `base ^ byte`, and is
 * one when its `parent` is that state. A state is the number of its place; the root is 0. */
struct mu_ac_cell {
    uint32_t base;
    uint32_t parent : 31; /* MU_AC_FREE: no state stands here */
    uint32_t ends : 1;    /* the state has an `ending`; a copy, because few have one */
};

#define MU_AC_FREE ((uint32_t)INT32_MAX)

struct mu_ac_state {
    uint32_t fail;    /* the longest other state that the text so far may be the beginning of */
    uint32_t depth;   /* bytes from the root */
    uint32_t pattern; /* that ends here, or MU_AC_NONE */
    uint32_t watch;   /* likewise, but the name goes on */
    uint32_t ending;  /* the nearest state with one of them: this one, or along `fail`; 0: none */
};

#define MU_AC_NONE UINT32_MAX

struct mu_ac {
    struct mu_ac_cell *cells;   /* owned */
    struct mu_ac_state *states; /* owned, one a cell */
    uint32_t cell_count;
    bool whole;
    struct mu_ac_starts starts;
    mu_ac_next_start *next_start; /* of them */
    mu_ac_name_end *name_end;
    struct mu_ac_names names; /* that patterns are or begin with; among whole names only */
    uint32_t watch_depth;     /* of the longest watch that lies within a name */
};

/* Of equal patterns the first counts; a watch equals no other pattern. What was made must be given
 * to mu_ac_reset, also after an error. MU_ERR_ARGUMENT for an empty pattern, or a watch outside
 * whole names; MU_ERR_LIMIT. */
MU_MUST_CHECK int mu_ac_init(struct mu_ac *ac, const struct mu_ac_pattern *patterns, size_t count,
                             bool whole, struct mu_error *err);
void mu_ac_reset(struct mu_ac *ac);

/* The first match in [from, limit) of `text`; false for none. The `length` bytes around that range
 * say where names begin and end. */
bool mu_ac_find(const struct mu_ac *ac, const char *text, size_t length, size_t from, size_t limit,
                struct mu_ac_match *match);

#endif
