/* The handles that time_stage has made, for the next call with the same name.
 *
 * With a GIL a timer has one table of them. Where there is none each thread has its own, so that
 * threads neither wait for each other nor share the counts of references: who ends leaves his table
 * to the next one who comes.
 */
#ifndef MU_PY_HANDLES_H
#define MU_PY_HANDLES_H

#include "stages/timer_state.h"

enum { MU_RECENT_STAGES = 16 };

/* One of the handles that were requested last. */
struct mu_recent_stage {
    PyObject *name; /* borrowed: the handle owns it, so its address identifies the text */
    struct mu_py_stage *stage; /* borrowed from `stages` */
};

struct mu_py_handles {
    _Atomic bool in_use;        /* by a thread buffer, which has its address; first of the fields */
    PyObject *stages;           /* owned: name -> Stage; bounded */
    struct mu_py_handles *next; /* in the timer's list */
    struct mu_recent_stage recent[MU_RECENT_STAGES]; /* by the address of the name */
};

/* A table for the calling thread; NULL with MemoryError. */
struct mu_py_handles *mu_py_handles_new(struct mu_py_timer *timer);

/* The calling thread's table. NULL without an exception where the thread finds no room for a
 * buffer, or with MemoryError. */
static inline struct mu_py_handles *mu_py_handles_of(struct mu_py_timer *timer) {
#if MU_FREE_THREADED
    struct mu_thread_buffer *buffer = mu_py_thread_buffer(&timer->timer);
    if (__builtin_expect(buffer == NULL, 0)) {
        return NULL;
    }
    void *handles = buffer->in_use;
#else
    struct mu_py_handles *handles = timer->handles;
#endif
    return __builtin_expect(handles != NULL, 1) ? handles : mu_py_handles_new(timer);
}

static inline struct mu_recent_stage *mu_py_handles_recent(struct mu_py_handles *handles,
                                                           PyObject *name) {
    return &handles->recent[((uintptr_t)name >> 5) % MU_RECENT_STAGES];
}

/* A handle of that name of which no stage is open, cached or new. A new reference; NULL with an
 * exception. */
PyObject *mu_py_handles_get(struct mu_py_handles *handles, struct mu_py_timer *timer,
                            PyObject *stage_name);

int mu_py_handles_traverse(struct mu_py_timer *timer, visitproc visit, void *arg);
void mu_py_handles_clear(struct mu_py_timer *timer);

/* After the timer's thread buffers are gone. */
void mu_py_handles_free(struct mu_py_timer *timer);

#endif
