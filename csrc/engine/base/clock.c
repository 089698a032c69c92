#include "base/clock.h"

#include <string.h>

enum { TRIES = 4 };

int64_t mu_clock_offset(clockid_t of, clockid_t over) {
    int64_t offset = 0;
    int64_t best_width = INT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        int64_t before = mu_clock_ns(over);
        int64_t found = mu_clock_ns(of);
        int64_t width = mu_clock_ns(over) - before;
        if (width < best_width) {
            best_width = width;
            offset = found - (before + width / 2);
        }
        if (i > 0 && width <= best_width + best_width / 4) {
            break;
        }
    }
    return offset;
}

struct mu_anchor mu_clock_anchor(bool counter) {
    struct mu_anchor best = {0, 0, 0};
    uint64_t best_width = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        uint64_t before = mu_clock_ticks(counter);
        int64_t mono = mu_clock_ns(CLOCK_MONOTONIC);
        uint64_t after = mu_clock_ticks(counter);
        uint64_t width = after - before;
        if (width < best_width) {
            best_width = width;
            best.ticks = before + width / 2;
            best.mono_ns = mono;
        }
        if (i > 0 && width <= best_width + best_width / 4) {
            break;
        }
    }
    best.real_ns = best.mono_ns + mu_clock_offset(CLOCK_REALTIME, CLOCK_MONOTONIC);
    return best;
}

static uint64_t segment_rate(const struct mu_anchor *from, const struct mu_anchor *to) {
    unsigned __int128 ns = (uint64_t)to->mono_ns - (uint64_t)from->mono_ns;
    return (uint64_t)((ns << MU_CLOCK_RATE_SHIFT) / (to->ticks - from->ticks));
}

void mu_timeline_reset(struct mu_timeline *timeline) {
    memset(timeline, 0, sizeof(*timeline));
}

/* The first anchor stays for good: it makes the long-term rate exact. */
static void drop_second(struct mu_timeline *timeline) {
    size_t tail = (size_t)timeline->count - 2;
    memmove(timeline->anchors + 1, timeline->anchors + 2, tail * sizeof(timeline->anchors[0]));
    memmove(timeline->rate + 1, timeline->rate + 2, tail * sizeof(timeline->rate[0]));
    timeline->rate[0] = segment_rate(&timeline->anchors[0], &timeline->anchors[1]);
    timeline->count--;
    timeline->hit = 0;
}

void mu_timeline_add(struct mu_timeline *timeline, struct mu_anchor anchor) {
    if (timeline->count > 0) {
        const struct mu_anchor *last = &timeline->anchors[timeline->count - 1];
        if (anchor.ticks <= last->ticks || anchor.mono_ns <= last->mono_ns) {
            return;
        }
    }
    if (timeline->count == MU_TIMELINE_ANCHORS) {
        drop_second(timeline);
    }
    int n = timeline->count++;
    timeline->anchors[n] = anchor;
    if (n > 0) {
        timeline->rate[n - 1] = segment_rate(&timeline->anchors[n - 1], &anchor);
    }
    timeline->rate[n] = mu_timeline_rate(timeline);
}

static bool segment_holds(const struct mu_timeline *timeline, int i, uint64_t ticks) {
    return (i == 0 || timeline->anchors[i].ticks <= ticks) &&
           (i + 1 >= timeline->count || ticks < timeline->anchors[i + 1].ticks);
}

/* The last anchor at or before `ticks`, or the first when there is none. */
static int find_segment(const struct mu_timeline *timeline, uint64_t ticks) {
    if (segment_holds(timeline, timeline->hit, ticks)) {
        return timeline->hit;
    }
    int i = timeline->count - 1;
    while (i > 0 && timeline->anchors[i].ticks > ticks) {
        i--;
    }
    return i;
}

int64_t mu_timeline_mono_ns(struct mu_timeline *timeline, uint64_t ticks) {
    if (timeline->count == 0) {
        return (int64_t)ticks;
    }
    int i = find_segment(timeline, ticks);
    timeline->hit = i;
    const struct mu_anchor *anchor = &timeline->anchors[i];
    if (ticks >= anchor->ticks) {
        uint64_t since = mu_clock_scale(ticks - anchor->ticks, timeline->rate[i]);
        return mu_clock_add(anchor->mono_ns, (int64_t)since);
    }
    uint64_t before = mu_clock_scale(anchor->ticks - ticks, timeline->rate[i]);
    return mu_clock_add(anchor->mono_ns, (int64_t)(0 - before));
}

uint64_t mu_timeline_rate(const struct mu_timeline *timeline) {
    if (timeline->count < 2) {
        return UINT64_C(1) << MU_CLOCK_RATE_SHIFT;
    }
    return segment_rate(&timeline->anchors[0], &timeline->anchors[timeline->count - 1]);
}
