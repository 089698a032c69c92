/* Capture windows: they decide at each hook whether a profiler starts or stops.
 *
 * A window is armed with a gate to start at, a way to stop, and filters. Hooks report that a
 * profiled function begins or ends. The result says which window opens or closes there. Nothing
 * here starts a profiler: the caller does, and reports when it could not.
 *
 * One window is open at a time, because there is one profiler. It belongs to the call that opened
 * it: the caller numbers the calls, since calls of one function overlap, in threads and coroutines.
 * Every window is bounded, and ends with one of the outcomes below. It keeps its place until the
 * caller removes it. Texts are borrowed during a call, and copied where they are kept. The caller
 * holds a lock around every call.
 */
#ifndef MU_CAPTURE_H
#define MU_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    MU_CAPTURE_WINDOWS_MAX = 64,
    MU_CAPTURE_LIST_MAX = 1024,
    /* Iterations past a gate at which any function of the window's filters shows that it was
     * missed. The next iteration may have begun already, where iterations overlap. */
    MU_CAPTURE_ITERS_PAST = 2,
};

enum mu_capture_edge { MU_CAPTURE_ENTER, MU_CAPTURE_EXIT };

enum mu_capture_policy {
    MU_CAPTURE_MANUAL,       /* only mu_capture_disarm closes it */
    MU_CAPTURE_TRIGGER_EXIT, /* the call that opened it ends */
    MU_CAPTURE_STOP_NAME,    /* the stop gate is met */
};

enum mu_capture_outcome {
    MU_CAPTURE_DONE,       /* opened, and closed as its policy says */
    MU_CAPTURE_RAISED,     /* opened, and closed by an exception out of its trigger or stop */
    MU_CAPTURE_OVERRUN,    /* opened, and closed because its last iteration was over */
    MU_CAPTURE_ABANDONED,  /* opened by a call that will not end, as the caller found out */
    MU_CAPTURE_DISARMED,   /* disarmed by the caller, open or not */
    MU_CAPTURE_FAILED,     /* the profiler could not be started */
    MU_CAPTURE_LATE,       /* never opened: the start gate's iteration was over */
    MU_CAPTURE_OVERLAPPED, /* never opened: another window was open at its moment */
};

struct mu_capture_text {
    const char *bytes;
    size_t length;
};

struct mu_capture_texts {
    const struct mu_capture_text *items;
    size_t count;
};

/* A gate, where a window starts or stops: a function of one of these names, at this edge. A call
 * without a micro-batch does the work of all, and so meets a gate of any. */
struct mu_capture_gate {
    struct mu_capture_texts names;
    bool has_iter, has_microbatch; /* false: any */
    int64_t iter, microbatch;
    enum mu_capture_edge edge;
};

struct mu_capture_spec {
    struct mu_capture_text id;
    struct mu_capture_gate start;
    struct mu_capture_gate stop; /* used by MU_CAPTURE_STOP_NAME only */
    enum mu_capture_policy policy;
    struct mu_capture_texts roles; /* none: any */
    const int64_t *ranks;          /* none: any */
    size_t rank_count;
    int64_t iters_max; /* the window is open for that many iterations at most; at least 1 */
};

struct mu_capture_event {
    struct mu_capture_text name;
    struct mu_capture_text role; /* bytes NULL: none */
    bool has_rank, has_iter, has_microbatch;
    int64_t rank, iter, microbatch;
    uint64_t call; /* the same at both ends of a call, and of no other; 0: not known */
    bool inside;   /* it begins in the call that opened the window */
};

enum mu_capture_state {
    MU_CAPTURE_FREE,
    MU_CAPTURE_ARMED,
    MU_CAPTURE_OPEN,
    MU_CAPTURE_ENDED,
};

struct mu_capture_window {
    enum mu_capture_state state;
    enum mu_capture_outcome outcome;
    struct mu_capture_spec spec;    /* its texts and numbers are in `memory` */
    void *memory;                   /* owned */
    uint64_t call;                  /* that opened it; 0: it has ended, or opened it at its end */
    struct mu_capture_text trigger; /* the name of the start gate that opened it */
    bool has_first_iter;
    int64_t first_iter; /* that was reported while it was open */
    int64_t calls;      /* of the trigger that named no iteration, while it was open */
    bool stopping;      /* a call that meets the stop gate has begun */
    uint64_t serial;    /* the number of its arming, from 1 */
};

struct mu_capture {
    struct mu_capture_window windows[MU_CAPTURE_WINDOWS_MAX];
    int pending; /* windows armed or open */
    int open;    /* index of the open one, -1 for none */
    uint64_t serial;
};

/* Indices of windows, -1 for none. When both are set, the one closes before the other opens. */
struct mu_capture_change {
    int closed;
    int opened;
};

void mu_capture_init(struct mu_capture *capture);
void mu_capture_release(struct mu_capture *capture);

/* Arms a window and stores its place in `*index`. When several windows could open at the same
 * moment, the one that was armed first opens. A window that is armed under the same id ends as
 * disarmed. MU_ERR_STATE when the window of that id is open, MU_ERR_LIMIT when all places are
 * taken, MU_ERR_ARGUMENT for lists that are too long. */
MU_MUST_CHECK int mu_capture_arm(struct mu_capture *capture, const struct mu_capture_spec *spec,
                                 int *index, struct mu_error *err);

/* Whether a pending window names functions of this name. Calls of others only show that its
 * iteration is over. */
bool mu_capture_names(const struct mu_capture *capture, struct mu_capture_text name);

struct mu_capture_change mu_capture_enter(struct mu_capture *capture,
                                          const struct mu_capture_event *event);

/* `raised`: an exception ends the call. */
struct mu_capture_change mu_capture_exit(struct mu_capture *capture,
                                         const struct mu_capture_event *event, bool raised);

/* The place of the window of that id that is armed or open, or -1. */
int mu_capture_find(const struct mu_capture *capture, struct mu_capture_text id);

/* Ends a window that is armed or open. */
void mu_capture_end(struct mu_capture *capture, int index, enum mu_capture_outcome outcome);

/* The place of a window that has ended, or -1; its place is free after mu_capture_forget. */
int mu_capture_next_ended(const struct mu_capture *capture);
void mu_capture_forget(struct mu_capture *capture, int index);

#endif
