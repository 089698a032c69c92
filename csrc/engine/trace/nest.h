/* Keeps the intervals of a track, to decide whether one more nests with them.
 *
 * Intervals come roughly in the order of their ends. Only the outermost ones are kept, at most 256;
 * beyond that the oldest are merged into one. So the result may be an unnecessary "no". It is never
 * a wrong "yes" for intervals that come in order. Nanoseconds.
 */
#ifndef MU_NEST_H
#define MU_NEST_H

#include <stdint.h>

enum { MU_NEST_MAX = 256, MU_NEST_ERROR_MAX = 1000000000 };

struct mu_interval {
    int64_t begin, end;
    int64_t called; /* when the host began it: what began earlier holds this, or has ended */
    int64_t error;  /* how far it may be from there, at most MU_NEST_ERROR_MAX */
};

struct mu_nest {
    int count;
    struct mu_interval kept[MU_NEST_MAX];
};

/* Returns 1 and keeps the interval when each kept one is inside it or apart from it. An interval
 * that begins at the same time as a kept one inside it is refused: readers that sort by time would
 * nest the two the other way round. */
int mu_nest_accept(struct mu_nest *nest, struct mu_interval interval);

/* The interval moved to where it nests, if that is within its error and that of its neighbours;
 * else as it came. Its end moves farther than its begin where those inside leave no other place.
 * What is moved has the largest of these errors. */
struct mu_interval mu_nest_fit(const struct mu_nest *nest, struct mu_interval interval);

#endif
