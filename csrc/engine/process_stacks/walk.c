#include "process_stacks/walk.h"

#include <string.h>

enum {
    TRIES = 3,
    LIST_TRIES = 5,
    RECORD_BYTES = 512,                 /* the most that is read of a thread state */
    FRAME_BYTES = 128,                  /* and of a frame */
    OUTSIDE_MAX = 64,                   /* frames outside the chunk that are read a second time */
    STEPS_MAX = 2 * MU_STACK_DEPTH_MAX, /* frames that belong to no function included */
};

static const uint64_t chunk_bytes_max = (uint64_t)1 << 32;

static uint64_t word_at(const unsigned char *bytes, uint32_t offset) {
    uint64_t word;
    memcpy(&word, bytes + offset, sizeof(word));
    return word;
}

static bool read_word(struct mu_walk *walk, uint64_t address, uint64_t *word) {
    return mu_own_memory_read(walk->memory, address, word, sizeof(*word));
}

static bool is_pointer(uint64_t value) {
    return value != 0 && value % sizeof(void *) == 0;
}

/* --- the list of threads -------------------------------------------------------------------- */

static size_t end_of(size_t end, uint32_t offset) {
    return offset + sizeof(uint64_t) > end ? offset + sizeof(uint64_t) : end;
}

static bool read_thread(struct mu_walk *walk, uint64_t address,
                        unsigned char record[RECORD_BYTES]) {
    const struct mu_python_layout *layout = walk->layout;
    size_t end = end_of(0, layout->thread.next);
    end = end_of(end, layout->thread.previous);
    end = end_of(end, layout->thread.interpreter);
    end = end_of(end, layout->thread.native_id);
    end = end_of(end, layout->thread.chunk);
    end = end_of(end, layout->thread.frame);
    return end <= RECORD_BYTES && is_pointer(address) &&
           mu_own_memory_read(walk->memory, address, record, end);
}

/* Adds the threads of an interpreter; false when the list changed while it was read. */
static bool list_threads(struct mu_walk *walk, uint64_t interpreter) {
    const struct mu_python_layout *layout = walk->layout;
    unsigned char record[RECORD_BYTES];
    uint64_t before = 0, at;
    if (!read_word(walk, interpreter + layout->interpreter.threads, &at)) {
        return false;
    }
    while (at != 0) {
        if (!read_thread(walk, at, record) ||
            word_at(record, layout->thread.interpreter) != interpreter ||
            word_at(record, layout->thread.previous) != before ||
            walk->thread_count == MU_STACK_THREADS_MAX) {
            return false;
        }
        walk->threads[walk->thread_count++] =
            (struct mu_walk_thread){at, interpreter, word_at(record, layout->thread.native_id)};
        before = at;
        at = word_at(record, layout->thread.next);
    }
    return true;
}

static bool list_once(struct mu_walk *walk) {
    uint64_t interpreter;
    walk->thread_count = 0;
    if (!read_word(walk, walk->layout->interpreters, &interpreter)) {
        return false;
    }
    for (int i = 0; i < MU_STACK_INTERPRETERS_MAX && is_pointer(interpreter); i++) {
        if (!list_threads(walk, interpreter) ||
            !read_word(walk, interpreter + walk->layout->interpreter.next, &interpreter)) {
            return false;
        }
    }
    return interpreter == 0;
}

void mu_walk_list(struct mu_walk *walk) {
    walk->incomplete = true;
    for (int i = 0; i < LIST_TRIES && walk->incomplete; i++) {
        walk->incomplete = !list_once(walk);
    }
}

/* --- one stack ------------------------------------------------------------------------------ */

/* The head of a thread's chain of frames, and the memory that holds most of them. */
struct head {
    uint64_t link_at; /* in the thread state: the frame, or the cframe */
    uint64_t link;
    uint64_t frame_at; /* where the pointer to the innermost frame is */
    uint64_t frame;
};

static bool read_head(struct mu_walk *walk, const struct mu_walk_thread *thread,
                      struct head *head) {
    const struct mu_python_layout *layout = walk->layout;
    unsigned char record[RECORD_BYTES], chunk[RECORD_BYTES];
    if (!read_thread(walk, thread->address, record) || thread->tid == 0 ||
        word_at(record, layout->thread.interpreter) != thread->interpreter ||
        word_at(record, layout->thread.native_id) != thread->tid) {
        return false;
    }
    head->link_at = thread->address + layout->thread.frame;
    head->link = word_at(record, layout->thread.frame);
    head->frame_at =
        layout->thread.has_cframe ? head->link + layout->thread.frame_in_cframe : head->link_at;
    if (!is_pointer(head->link) || !read_word(walk, head->frame_at, &head->frame)) {
        return false;
    }
    walk->chunk_at = word_at(record, layout->thread.chunk);
    walk->chunk_length = 0;
    size_t header = layout->chunk.size + sizeof(uint64_t);
    if (header > RECORD_BYTES || !is_pointer(walk->chunk_at) ||
        !mu_own_memory_read(walk->memory, walk->chunk_at, chunk, header)) {
        return true; /* every frame is read by itself */
    }
    uint64_t size = word_at(chunk, layout->chunk.size);
    if (size > chunk_bytes_max) {
        return true;
    }
    uint64_t end = walk->chunk_at + size;
    bool is_far = head->frame > walk->chunk_at + MU_STACK_CHUNK_BYTES / 2 && head->frame < end;
    uint64_t from = is_far ? head->frame - MU_STACK_CHUNK_BYTES / 2 : walk->chunk_at;
    walk->chunk_at = from;
    walk->chunk_length = end - from < MU_STACK_CHUNK_BYTES ? end - from : MU_STACK_CHUNK_BYTES;
    return true;
}

/* Copies the chunk, between two readings of the head. False when the head changed; where nothing
 * could be read it is 0 then. */
static bool read_chunk(struct mu_walk *walk, struct head *head) {
    uint64_t link_before = 0, frame_before = 0, link_after = 0, frame_after = 0;
    struct mu_memory_part parts[] = {
        {head->link_at, &link_before, sizeof(uint64_t)},
        {head->frame_at, &frame_before, sizeof(uint64_t)},
        {walk->chunk_at, walk->chunk, walk->chunk_length},
        {head->frame_at, &frame_after, sizeof(uint64_t)},
        {head->link_at, &link_after, sizeof(uint64_t)},
    };
    if (!mu_own_memory_read_parts(walk->memory, parts, sizeof(parts) / sizeof(parts[0]))) {
        head->frame = 0;
        return false;
    }
    head->frame = frame_before;
    return link_before == head->link && link_after == head->link && frame_after == frame_before;
}

struct frame {
    uint64_t previous, code, instruction;
    uint8_t owner;
};

static size_t frame_end(const struct mu_python_layout *layout) {
    size_t end = end_of(0, layout->frame.previous);
    end = end_of(end, layout->frame.code);
    end = end_of(end, layout->frame.instruction);
    return layout->frame.owner + 1 > end ? layout->frame.owner + 1 : end;
}

static void take_frame(const struct mu_python_layout *layout, const unsigned char *bytes,
                       struct frame *frame) {
    frame->previous = word_at(bytes, layout->frame.previous);
    frame->code = word_at(bytes, layout->frame.code) & ~(uint64_t)layout->frame.code_tag;
    frame->instruction = word_at(bytes, layout->frame.instruction);
    frame->owner = bytes[layout->frame.owner];
}

static bool read_frame(struct mu_walk *walk, uint64_t address, struct frame *frame) {
    unsigned char bytes[FRAME_BYTES];
    size_t end = frame_end(walk->layout);
    if (end > FRAME_BYTES || !mu_own_memory_read(walk->memory, address, bytes, end)) {
        return false;
    }
    take_frame(walk->layout, bytes, frame);
    return true;
}

static bool frame_in_chunk(const struct mu_walk *walk, uint64_t address, struct frame *frame) {
    size_t end = frame_end(walk->layout);
    uint64_t offset = address - walk->chunk_at;
    if (address < walk->chunk_at || walk->chunk_length < end || offset > walk->chunk_length - end) {
        return false;
    }
    take_frame(walk->layout, walk->chunk + offset, frame);
    return true;
}

/* Frames that were read by separate calls. */
struct outside {
    uint32_t count;
    uint64_t address[OUTSIDE_MAX];
    struct frame frame[OUTSIDE_MAX];
};

static void keep_outside(struct outside *outside, uint64_t address, const struct frame *frame) {
    if (outside->count < OUTSIDE_MAX) {
        outside->address[outside->count] = address;
        outside->frame[outside->count] = *frame;
        outside->count++;
    }
}

/* Whether the frames outside the chunk are as they were. */
static bool outside_held_still(struct mu_walk *walk, const struct outside *outside) {
    for (uint32_t i = 0; i < outside->count; i++) {
        struct frame now, before = outside->frame[i];
        if (!read_frame(walk, outside->address[i], &now) || now.previous != before.previous ||
            now.code != before.code) {
            return false;
        }
    }
    return true;
}

static void add_frame(struct mu_walk *walk, const struct frame *frame) {
    struct mu_raw_stack *stack = &walk->stack;
    stack->frames[stack->count].code = frame->code;
    stack->frames[stack->count].instruction =
        (int64_t)(frame->instruction - frame->code - walk->layout->code.bytecode);
    stack->count++;
}

/* Follows the chain from the head. False when it leads nowhere. */
static bool follow(struct mu_walk *walk, uint64_t address, struct outside *outside) {
    struct mu_raw_stack *stack = &walk->stack;
    stack->count = 0;
    outside->count = 0;
    for (int steps = 0; address != 0 && steps < STEPS_MAX; steps++) {
        struct frame frame;
        if (!is_pointer(address)) {
            return false;
        }
        if (!frame_in_chunk(walk, address, &frame)) {
            if (!read_frame(walk, address, &frame)) {
                return false;
            }
            keep_outside(outside, address, &frame);
        }
        if (stack->count == MU_STACK_DEPTH_MAX) {
            break;
        }
        if (frame.owner < walk->layout->frame.owner_no_function && is_pointer(frame.code)) {
            add_frame(walk, &frame);
        }
        address = frame.previous;
    }
    stack->cut = address != 0;
    return true;
}

bool mu_walk_stack(struct mu_walk *walk, const struct mu_walk_thread *thread) {
    struct outside outside;
    struct head head;
    walk->stack.tid = thread->tid;
    walk->stack.count = 0;
    walk->stack.torn = true;
    for (int i = 0; i < TRIES && walk->stack.torn; i++) {
        if (!read_head(walk, thread, &head)) {
            return false;
        }
        bool held = read_chunk(walk, &head);
        bool whole = follow(walk, head.frame, &outside);
        walk->stack.torn = !(held && whole && outside_held_still(walk, &outside));
    }
    return walk->stack.count > 0 || walk->stack.torn;
}
