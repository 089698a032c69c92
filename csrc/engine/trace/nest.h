/* Remembers which intervals stand on a track, to tell whether one more nests with them.
 *
 * Intervals come in the order of their ends, more or less. Kept are the outermost ones only, 256 at
 * most; the oldest are then melted into one. So the answer may be a needless "no", never a wrong
 * "yes" for intervals that come in order. Nanoseconds.
 */
#ifndef MU_NEST_H
#define MU_NEST_H

#include <stdint.h>

enum { MU_NEST_MAX = 256 };

struct mu_interval {
    int64_t begin, end;
};

struct mu_nest {
    int count;
    struct mu_interval kept[MU_NEST_MAX];
};

/* 1, and the interval is kept, when it holds or is apart from all kept ones. One that begins with
 * a kept one that it holds is refused: readers that sort by time would nest the two the other way
 * round. */
int mu_nest_accept(struct mu_nest *nest, int64_t begin, int64_t end);

#endif
