/* What a thread buffer holds: its open stages, its part of the ring, and the names that it knows.
 * Owned by its thread, as thread_buffer.h says. */
#ifndef MU_THREAD_BUFFER_STATE_H
#define MU_THREAD_BUFFER_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "journal/journal_format.h"
#include "timing/aggregate.h"

struct mu_nvtx_range;
struct mu_recorder;
struct mu_timer;

enum {
    MU_STAGE_CACHE = 256,
    MU_STAGE_DEPTH_MAX = 4096,
    MU_METADATA_BYTES_MAX = 32 * 1024,
    MU_STEP_CHANGES_MAX = 32,
};

/* A stage name under a parent path, resolved once. */
struct mu_stage {
    uint64_t hash;
    const char *name; /* in the journal's string table */
    uint32_t length;
    uint16_t name_id;
    uint16_t parent_path;
    uint16_t path;
    struct mu_aggregate *aggregate; /* of this thread buffer; NULL when memory ran out */
};

/* What ends a stage: a handle, and where in the interpreter it is used. The flow is what runs
 * without others in between, such as a task or a greenlet: its context and its stack of frames. The
 * pointers are only compared. */
struct mu_stage_owner {
    const void *handle;
    const void *frame;
    const void *context;
    const void *stack;
};

/* In mu_frame.hash: the stage has an owner, which ends it. No hash of Python is -1. */
#define MU_HASH_OF_OWNED UINT64_MAX

struct mu_frame {
    const char *name;
    char *owned_name; /* when the name could not be interned; freed at stop */
    uint64_t hash;    /* of the name, or MU_HASH_OF_OWNED */
    uint64_t node;
    uint64_t start; /* ticks */
    int64_t step;
    struct mu_aggregate *aggregate;
    const struct mu_nvtx_range *range; /* NULL: none */
    uint32_t length;
    uint32_t span; /* GPU time span, 0 none */
    uint16_t name_id;
    uint16_t path;
    uint32_t slot;   /* while stages are out of order: its place in the chunk's open stages */
    uint64_t parent; /* likewise: the node of its parent */
    struct mu_stage_owner owner; /* with MU_HASH_OF_OWNED */
};

/* Another step for the records between two positions of the ring. */
struct mu_step_change {
    uint64_t from, to;
    int64_t step;
};

struct mu_thread_buffer {
    struct mu_recorder *recorder; /* borrowed */
    struct mu_timer *timer;       /* borrowed; NULL once the timer is gone */
    struct mu_chunk_header *chunk;
    struct mu_record *ring;
    const _Atomic uint64_t *rate; /* ns per tick, 24.40 fixed point */
    uint64_t head;
    uint64_t free_until; /* the ring is known to have room below this position */
    uint64_t wake_at;    /* at this position the drain thread is called */
    uint64_t node_next, node_end;
    struct mu_frame *frames; /* owned: the open stages in the order of their starts */
    uint32_t frames_allocated;
    uint32_t frames_in_order; /* frames_allocated, 0 while stages are out of order */
    uint32_t depth;
    int32_t step_depth; /* depth at the last set_step, -1 before */
    uint32_t too_deep;  /* starts above MU_STAGE_DEPTH_MAX without their stops yet */
    uint32_t branch;    /* out of order: see mu_frames_branch */
    bool stops_slowly;  /* one was too deep, or stages are out of order */
    bool counter;
    uint32_t chunk_index;
    struct mu_aggregate **aggregates; /* owned: by path */
    struct mu_thread_buffer *next;    /* in the recorder's list */
    struct mu_stage cache[MU_STAGE_CACHE];
    _Atomic bool recording; /* see recording.h */
    _Atomic bool *in_use;   /* borrowed: set to false when the buffer goes; NULL: nothing is */
    struct mu_step_change changes[MU_STEP_CHANGES_MAX]; /* for the next drain; registry_lock */
    uint32_t changes_left;
};

#endif
