/* Stages of one thread that need not end in the order in which they began.
 *
 * A stage of a handle has an owner. It may end while younger ones go on, and begin inside a stage
 * that is not the innermost: tasks and greenlets take turns on a thread. The stages are out of
 * order then. The frames stay in the order of the starts, without gaps. Each has its parent, and
 * its slot among the open stages of the chunk, by which a drain knows of which it has written the
 * START row. New stages take free slots. Once every frame is at its slot, above its parent, the
 * stages are in order again. Only the thread that owns the buffer calls these functions.
 */
#ifndef MU_FRAME_ORDER_H
#define MU_FRAME_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "stages/thread_buffer_state.h"

static inline bool mu_frames_in_order(const struct mu_thread_buffer *buffer) {
    return buffer->frames_in_order > 0;
}

/* Sets what follows from `too_deep` and from the order. */
static inline void mu_frames_choose_stops(struct mu_thread_buffer *buffer) {
    buffer->stops_slowly = buffer->too_deep > 0 || !mu_frames_in_order(buffer);
}

static inline bool mu_frame_has_owner(const struct mu_frame *frame) {
    return frame->hash == MU_HASH_OF_OWNED;
}

static inline bool mu_frame_is_of_flow(const struct mu_frame *frame,
                                       const struct mu_stage_owner *owner) {
    return frame->owner.context == owner->context && frame->owner.stack == owner->stack;
}

/* Gives the innermost stage an owner. */
static inline void mu_frames_own(struct mu_thread_buffer *buffer,
                                 const struct mu_stage_owner *owner) {
    struct mu_frame *frame = &buffer->frames[buffer->depth - 1];
    frame->hash = MU_HASH_OF_OWNED;
    frame->owner = *owner;
}

/* Whether a frame has called the one that runs. */
typedef bool (*mu_frame_calls)(const void *frame);

/* Before a stage of this owner starts: chooses its parent. That is the innermost stage of the same
 * flow which has not outlived one around it, else the innermost one of a frame that has called the
 * owner's, with the stages without owner directly inside. Where there is neither, only stages
 * without owner can be around it. */
void mu_frames_choose_parent(struct mu_thread_buffer *buffer, const struct mu_stage_owner *owner,
                             mu_frame_calls calls);

/* Whether that is the innermost stage, in a few instructions; false where it may be. */
static inline bool mu_frames_parent_is_top(const struct mu_thread_buffer *buffer,
                                           const struct mu_stage_owner *owner) {
    const struct mu_frame *frames = buffer->frames;
    uint32_t depth = buffer->depth;
    return depth == 0 || (mu_frame_has_owner(&frames[depth - 1]) &&
                          mu_frame_is_of_flow(&frames[depth - 1], owner));
}

/* The next stage begins inside the frame of that number, from 1, and 0 inside none. */
void mu_frames_branch(struct mu_thread_buffer *buffer, uint32_t parent);

/* Gives the frames the slots and parents that they have in order. */
void mu_frames_leave_order(struct mu_thread_buffer *buffer);

/* Out of order: the number of the parent of the stage that starts now. */
uint32_t mu_frames_take_branch(struct mu_thread_buffer *buffer);

/* Out of order: the slot for a new stage, MU_DEPTH_UNKEPT when all are in use. */
uint32_t mu_frames_free_slot(const struct mu_thread_buffer *buffer);

/* Out of order: publishes how many slots readers look at. */
void mu_frames_publish_depth(struct mu_thread_buffer *buffer);

/* Out of order: takes a frame whose stage has ended from the stack. */
void mu_frames_remove(struct mu_thread_buffer *buffer, uint32_t index);

#endif
