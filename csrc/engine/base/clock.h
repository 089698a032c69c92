/* Time: raw counter ticks where the kernel itself keeps time with that counter, and the anchors
 * that turn ticks into nanoseconds afterwards.
 *
 * A tick is a step of the TSC (x86-64) or of CNTVCT (aarch64) when the kernel's clock source is
 * that counter, and a nanosecond of CLOCK_MONOTONIC elsewhere. Readers interpolate between
 * anchors (ticks, monotonic, real). Unix times are monotonic times plus an offset, so that a step
 * of the system's clock never changes a duration.
 */
#ifndef MU_CLOCK_H
#define MU_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

struct mu_anchor {
    uint64_t ticks;
    int64_t mono_ns; /* CLOCK_MONOTONIC */
    int64_t real_ns; /* CLOCK_REALTIME */
};

enum { MU_TIMELINE_ANCHORS = 64 };

/* The first anchor and the newest ones, in order. Conversion after the last one extrapolates at
 * the rate over the whole time. Not thread-safe. */
struct mu_timeline {
    struct mu_anchor anchors[MU_TIMELINE_ANCHORS];
    uint64_t rate[MU_TIMELINE_ANCHORS]; /* from this anchor on: ns per tick, 24.40 fixed point */
    int count;
    int hit; /* the segment of the last conversion */
};

/* Whether the kernel's current clock source is the counter that user space can read
 * (clock_source.c). /sys says so; in a sandbox without it, mu_clock_counter_by_timing decides. */
bool mu_clock_counter_is_kernel_clock(void);

/* The same without /sys: the processor's counter never stops nor changes its rate, and the libc
 * reads CLOCK_MONOTONIC without a system call, which it can only where the kernel's clock is made
 * of that counter. Takes some microseconds. */
bool mu_clock_counter_by_timing(void);

static inline int64_t mu_clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline struct timespec mu_clock_after(clockid_t clock, int64_t ns) {
    int64_t at = mu_clock_ns(clock) + ns;
    struct timespec when = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
    return when;
}

/* A wait for another thread is made of pieces of this length. So a time in which the whole process
 * was stopped counts as one piece only. */
enum { MU_WAIT_ONCE_NS = 50000000 };

static inline int64_t mu_clock_monotonic_ns(void) {
    return mu_clock_ns(CLOCK_MONOTONIC);
}

static inline uint64_t mu_clock_ticks(bool counter) {
#if defined(__x86_64__)
    if (counter) {
        return __rdtsc();
    }
#elif defined(__aarch64__)
    if (counter) {
        uint64_t ticks;
        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
        return ticks;
    }
#else
    (void)counter;
#endif
    return (uint64_t)mu_clock_ns(CLOCK_MONOTONIC);
}

/* How many ns the first clock is ahead of the second. Takes the tightest of a few tries: the thread
 * may be kept from running between two readings. */
int64_t mu_clock_offset(clockid_t of, clockid_t over);

/* Reads the three clocks together; takes the tightest of a few tries. */
struct mu_anchor mu_clock_anchor(bool counter);

void mu_timeline_reset(struct mu_timeline *timeline);

/* Appends an anchor; one that is not later than the last in ticks and in time is left out. */
void mu_timeline_add(struct mu_timeline *timeline, struct mu_anchor anchor);

/* NULL where there is none. Borrowed until the next one is added. */
static inline const struct mu_anchor *mu_timeline_newest(const struct mu_timeline *timeline) {
    return timeline->count > 0 ? &timeline->anchors[timeline->count - 1] : NULL;
}

/* CLOCK_MONOTONIC nanoseconds at `ticks`; the rate is 1 while fewer than two anchors are known. */
int64_t mu_timeline_mono_ns(struct mu_timeline *timeline, uint64_t ticks);

/* ns per tick over all that the timeline knows, as 24.40 fixed point. */
uint64_t mu_timeline_rate(const struct mu_timeline *timeline);

enum { MU_CLOCK_RATE_SHIFT = 40 };

/* Wraps around, because times from files may have any value. */
static inline int64_t mu_clock_add(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static inline uint64_t mu_clock_scale(uint64_t ticks, uint64_t rate) {
    return (uint64_t)(((unsigned __int128)ticks * rate) >> MU_CLOCK_RATE_SHIFT);
}

#endif
