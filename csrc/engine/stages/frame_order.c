#include "stages/frame_order.h"

#include <string.h>

#include "journal/journal_format.h"

enum { NO_BRANCH = UINT32_MAX };

/* --- parents ------------------------------------------------------------------------------ */

/* The number of the last frame without owner directly above the one of this number. */
static uint32_t inside_of(const struct mu_thread_buffer *buffer, uint32_t number) {
    while (number < buffer->depth && !mu_frame_has_owner(&buffer->frames[number])) {
        number++;
    }
    return number;
}

static uint32_t parent_of(const struct mu_thread_buffer *buffer, const struct mu_stage_owner *owner,
                          mu_frame_calls calls) {
    for (uint32_t number = buffer->depth; number > 0; number--) {
        const struct mu_frame *frame = &buffer->frames[number - 1];
        if (mu_frame_has_owner(frame) && mu_frame_is_of_flow(frame, owner)) {
            return inside_of(buffer, number);
        }
    }
    for (uint32_t number = buffer->depth; number > 0; number--) {
        const struct mu_frame *frame = &buffer->frames[number - 1];
        if (mu_frame_has_owner(frame) && calls(frame->owner.frame)) {
            return inside_of(buffer, number);
        }
    }
    return inside_of(buffer, 0);
}

void mu_frames_choose_parent(struct mu_thread_buffer *buffer, const struct mu_stage_owner *owner,
                             mu_frame_calls calls) {
    uint32_t parent = parent_of(buffer, owner, calls);
    if (parent < buffer->depth) {
        mu_frames_branch(buffer, parent);
    }
}

void mu_frames_branch(struct mu_thread_buffer *buffer, uint32_t parent) {
    if (mu_frames_in_order(buffer)) {
        mu_frames_leave_order(buffer);
    }
    buffer->branch = parent;
}

uint32_t mu_frames_take_branch(struct mu_thread_buffer *buffer) {
    uint32_t parent = buffer->branch == NO_BRANCH ? buffer->depth : buffer->branch;
    buffer->branch = NO_BRANCH;
    return parent;
}

/* --- slots -------------------------------------------------------------------------------- */

static uint64_t used_slots(const struct mu_thread_buffer *buffer) {
    uint64_t used = 0;
    for (uint32_t i = 0; i < buffer->depth; i++) {
        uint32_t slot = buffer->frames[i].slot;
        used |= slot < MU_OPEN_MAX ? UINT64_C(1) << slot : 0;
    }
    return used;
}

uint32_t mu_frames_free_slot(const struct mu_thread_buffer *buffer) {
    uint64_t used = used_slots(buffer);
    return used == UINT64_MAX ? MU_DEPTH_UNKEPT : (uint32_t)__builtin_ctzll(~used);
}

void mu_frames_publish_depth(struct mu_thread_buffer *buffer) {
    uint64_t used = used_slots(buffer);
    uint32_t slots = used == 0 ? 0 : MU_OPEN_MAX - (uint32_t)__builtin_clzll(used);
    atomic_store_explicit(&buffer->chunk->depth, slots, memory_order_release);
}

/* --- order -------------------------------------------------------------------------------- */

static uint64_t parent_in_order(const struct mu_thread_buffer *buffer, uint32_t index) {
    return index == 0 ? 0 : buffer->frames[index - 1].node;
}

void mu_frames_leave_order(struct mu_thread_buffer *buffer) {
    for (uint32_t i = 0; i < buffer->depth; i++) {
        buffer->frames[i].slot = i;
        buffer->frames[i].parent = parent_in_order(buffer, i);
    }
    buffer->frames_in_order = 0;
    buffer->branch = NO_BRANCH;
    mu_frames_choose_stops(buffer);
}

static void return_to_order(struct mu_thread_buffer *buffer) {
    for (uint32_t i = 0; i < buffer->depth; i++) {
        const struct mu_frame *frame = &buffer->frames[i];
        if (frame->slot != i || frame->parent != parent_in_order(buffer, i)) {
            return;
        }
    }
    buffer->frames_in_order = buffer->frames_allocated;
    mu_frames_choose_stops(buffer);
    atomic_store_explicit(&buffer->chunk->depth, buffer->depth, memory_order_release);
}

/* --- stages that outlive the one around them ------------------------------------------------ */

static bool is_loose(const struct mu_frame *frame) {
    return mu_frame_has_owner(frame) && frame->owner.stack == NULL;
}

static bool has_inner(const struct mu_thread_buffer *buffer, uint32_t index) {
    uint32_t i = index + 1;
    while (i < buffer->depth && buffer->frames[i].parent != buffer->frames[index].node) {
        i++;
    }
    return i < buffer->depth;
}

/* Whether one of the stages around it has ended, or is the one that ends now. */
static bool loses_one(const struct mu_thread_buffer *buffer, uint32_t index, uint64_t gone) {
    uint64_t around = buffer->frames[index].parent;
    while (index > 0 && around != 0 && around != gone) {
        const struct mu_frame *frame = &buffer->frames[--index];
        if (frame->node == around && mu_frame_has_owner(frame)) {
            return is_loose(frame);
        }
        around = frame->node == around ? frame->parent : around;
    }
    return around != 0;
}

/* As that of a generator, which pauses within it. It belongs to no flow any more: what begins later
 * is inside only where its own frame has called it. Else the stages of a loop would be inside those
 * of the step before, and their paths grow with each step. */
static void loosen_inner(struct mu_thread_buffer *buffer, uint32_t index) {
    uint64_t gone = buffer->frames[index].node;
    for (uint32_t i = index + 1; i < buffer->depth; i++) {
        struct mu_frame *frame = &buffer->frames[i];
        if (mu_frame_has_owner(frame) && loses_one(buffer, i, gone)) {
            frame->owner.stack = NULL;
        }
    }
}

void mu_frames_remove(struct mu_thread_buffer *buffer, uint32_t index) {
    struct mu_frame *frame = &buffer->frames[index];
    if (has_inner(buffer, index)) {
        loosen_inner(buffer, index);
    }
    if (frame->slot < MU_OPEN_MAX) {
        atomic_store_explicit(&buffer->chunk->open[frame->slot].node, 0, memory_order_release);
    }
    buffer->depth--;
    memmove(frame, frame + 1, (buffer->depth - index) * sizeof(*frame));
    mu_frames_publish_depth(buffer);
    return_to_order(buffer);
}
