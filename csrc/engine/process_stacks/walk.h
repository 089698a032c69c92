/* Walks the Python frames of all threads of the own process, without the GIL and without stopping
 * anybody.
 *
 * What is read may change meanwhile: threads begin and end, functions are called and return. So
 * every pointer is checked before it is trusted, every read may fail, every list has a bound, and
 * the head of a thread's chain of frames is read before and after the frames, in one system call
 * with them. A chain that changed is read again, and marked as torn when it does not hold still.
 *
 * Frames are next to the pointers of their locals. Those pointers are never followed.
 */
#ifndef MU_WALK_H
#define MU_WALK_H

#include "process_stacks/own_memory.h"
#include "process_stacks/python_layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MU_STACK_DEPTH_MAX = 256,
    MU_STACK_THREADS_MAX = 1024,
    MU_STACK_INTERPRETERS_MAX = 16,
    MU_STACK_CHUNK_BYTES = 16 * 1024, /* of the memory of frames that is read at once */
};

struct mu_raw_frame {
    uint64_t code;       /* the address of what should be a code object */
    int64_t instruction; /* in bytes from the beginning of the code, below 0 before the first */
};

struct mu_raw_stack {
    uint64_t tid; /* as gettid */
    bool torn;    /* the thread called or returned in each of the tries */
    bool cut;     /* there are more frames than MU_STACK_DEPTH_MAX */
    uint32_t count;
    struct mu_raw_frame frames[MU_STACK_DEPTH_MAX]; /* innermost first */
};

struct mu_walk_thread {
    uint64_t address, interpreter, tid;
};

/* Scratch memory of a walk, 32 KiB and more: not for a stack. */
struct mu_walk {
    const struct mu_python_layout *layout; /* borrowed */
    struct mu_own_memory *memory;          /* borrowed */
    uint32_t thread_count;
    bool incomplete; /* the list of threads did not hold still, or is too long */
    struct mu_walk_thread threads[MU_STACK_THREADS_MAX];
    struct mu_raw_stack stack; /* of the last mu_walk_thread_stack */
    uint64_t chunk_at;         /* where the bytes of `chunk` come from */
    size_t chunk_length;
    unsigned char chunk[MU_STACK_CHUNK_BYTES];
};

/* Lists the threads that Python knows. */
void mu_walk_list(struct mu_walk *walk);

/* Reads the stack of a thread of the list into `walk->stack`; false when the thread has ended, or
 * runs no Python function. */
bool mu_walk_stack(struct mu_walk *walk, const struct mu_walk_thread *thread);

#endif
