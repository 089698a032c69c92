#include "timing/module_times.h"

#include <stdlib.h>

#include "base/clock.h"

enum {
    SPANS = 16384,
    COLLECT_EVERY = SPANS / 16, /* spans ended since the last poll */
    NO_ACCOUNT = -1,
    FIRST_DEPTH = 16,
};

struct frame {
    uint32_t slot;
    uint32_t account;
    uint64_t tag;
    uint32_t span; /* 0: none */
    int64_t inner_ns;
    int64_t start_ns;
};

/* The open calls of one thread; without any it is free for another one. */
struct stack {
    uint64_t thread;
    uint32_t depth;
    uint32_t capacity;
    struct frame *frames; /* owned */
};

/* A call that has ended, and whose GPU time is not known yet. */
struct pending {
    uint32_t span;
    uint32_t account;
    int64_t around; /* account of the call around it, NO_ACCOUNT for none */
    bool counted;
};

struct mu_module_times {
    int64_t (*now_ns)(void);
    uint32_t slots;
    struct mu_module_figures *figures; /* owned, one a slot */
    struct stack *stacks;              /* owned */
    uint32_t stack_count;
    struct mu_cuda_pool *pool; /* owned; NULL for no GPU times */
    struct pending *pending;   /* owned, SPANS of them with a pool */
    uint32_t pending_count;
    uint32_t collect_at; /* the number of pending ones at which to poll */
    struct mu_module_counts counts;
};

MU_MUST_CHECK static int use_gpu(struct mu_module_times *times,
                                 const struct mu_cuda_pool_options *gpu, struct mu_error *err) {
    struct mu_cuda_pool_options options = *gpu;
    options.capacity = SPANS;
    times->pending = calloc(SPANS, sizeof(*times->pending));
    if (times->pending == NULL) {
        return mu_error_no_memory(err, "the GPU times of modules");
    }
    times->collect_at = COLLECT_EVERY;
    return mu_cuda_pool_create(&times->pool, &options, err);
}

int mu_module_times_create(struct mu_module_times **out, uint32_t slots,
                           const struct mu_cuda_pool_options *gpu, int64_t (*now_ns)(void),
                           struct mu_error *err) {
    *out = NULL;
    if (slots == 0 || slots > MU_MODULE_SLOTS_MAX) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "times of modules have 1 to %d slots, not %u",
                            MU_MODULE_SLOTS_MAX, slots);
    }
    struct mu_module_times *times = calloc(1, sizeof(*times));
    struct mu_module_figures *figures = calloc(slots, sizeof(*figures));
    if (times == NULL || figures == NULL) {
        free(times);
        free(figures);
        return mu_error_no_memory(err, "the times of modules");
    }
    times->now_ns = now_ns == NULL ? mu_clock_monotonic_ns : now_ns;
    times->slots = slots;
    times->figures = figures;
    if (gpu != NULL) {
        int code = use_gpu(times, gpu, err);
        if (code != MU_OK) {
            mu_module_times_free(times);
            return code;
        }
    }
    *out = times;
    return MU_OK;
}

void mu_module_times_free(struct mu_module_times *times) {
    if (times == NULL) {
        return;
    }
    for (uint32_t i = 0; i < times->stack_count; i++) {
        free(times->stacks[i].frames);
    }
    mu_cuda_pool_free(times->pool);
    free(times->pending);
    free(times->stacks);
    free(times->figures);
    free(times);
}

/* --- stacks --- */

static struct stack *stack_find(struct mu_module_times *times, uint64_t thread) {
    for (uint32_t i = 0; i < times->stack_count; i++) {
        if (times->stacks[i].depth > 0 && times->stacks[i].thread == thread) {
            return &times->stacks[i];
        }
    }
    return NULL;
}

static struct stack *stack_free(struct mu_module_times *times) {
    for (uint32_t i = 0; i < times->stack_count; i++) {
        if (times->stacks[i].depth == 0) {
            return &times->stacks[i];
        }
    }
    size_t bytes = (times->stack_count + 1) * sizeof(struct stack);
    struct stack *grown = realloc(times->stacks, bytes);
    if (grown == NULL) {
        return NULL;
    }
    times->stacks = grown;
    grown[times->stack_count] = (struct stack){0};
    return &grown[times->stack_count++];
}

/* Room for one frame more, or NULL. */
static struct frame *frame_add(struct stack *stack) {
    if (stack->depth == stack->capacity) {
        uint32_t capacity = stack->capacity == 0 ? FIRST_DEPTH : 2 * stack->capacity;
        if (capacity > MU_MODULE_DEPTH_MAX) {
            return NULL;
        }
        struct frame *grown = realloc(stack->frames, capacity * sizeof(*grown));
        if (grown == NULL) {
            return NULL;
        }
        stack->frames = grown;
        stack->capacity = capacity;
    }
    return &stack->frames[stack->depth++];
}

/* Ends all calls of the stack from `depth` on without a time. */
static void stack_cut(struct mu_module_times *times, struct stack *stack, uint32_t depth) {
    while (stack->depth > depth) {
        mu_cuda_span_cancel(times->pool, stack->frames[--stack->depth].span);
        times->counts.abandoned++;
    }
}

void mu_module_enter(struct mu_module_times *times, uint64_t thread, uint32_t slot,
                     uint32_t account, uint64_t tag) {
    struct stack *stack = stack_find(times, thread);
    if (stack == NULL) {
        stack = stack_free(times);
    }
    struct frame *frame = stack == NULL ? NULL : frame_add(stack);
    if (frame == NULL) {
        times->counts.dropped++;
        return;
    }
    stack->thread = thread;
    *frame = (struct frame){.slot = slot, .account = account, .tag = tag};
    if (times->pool != NULL) {
        frame->span = mu_cuda_span_begin(times->pool);
        times->counts.gpu_missed += frame->span == 0;
    }
    frame->start_ns = times->now_ns();
}

/* --- figures --- */

static void add(struct mu_module_total *total, int64_t ns, bool counted) {
    if (total->max_ns < ns) {
        total->max_ns = ns;
    }
    if (total->parts == 0 || total->min_ns > ns) {
        total->min_ns = ns;
    }
    total->calls += counted;
    total->parts++;
    total->total_ns += ns;
}

static int64_t account_around(const struct stack *stack) {
    for (uint32_t depth = stack->depth; depth > 0; depth--) {
        if (stack->frames[depth - 1].span != 0) {
            return stack->frames[depth - 1].account;
        }
    }
    return NO_ACCOUNT;
}

static void span_end(struct mu_module_times *times, const struct stack *stack,
                     const struct frame *frame, bool counted) {
    mu_cuda_span_end(times->pool, frame->span);
    times->pending[times->pending_count++] =
        (struct pending){frame->span, frame->account, account_around(stack), counted};
    if (times->pending_count >= times->collect_at) {
        mu_module_collect(times);
    }
}

bool mu_module_exit(struct mu_module_times *times, uint64_t thread, uint32_t slot, bool counted,
                    uint64_t *tag) {
    int64_t now = times->now_ns();
    struct stack *stack = stack_find(times, thread);
    uint32_t depth = stack == NULL ? 0 : stack->depth;
    while (depth > 0 && stack->frames[depth - 1].slot != slot) {
        depth--;
    }
    if (depth == 0) {
        times->counts.unmatched++;
        return false;
    }
    stack_cut(times, stack, depth);
    struct frame frame = stack->frames[--stack->depth];
    int64_t duration = now - frame.start_ns;
    struct mu_module_total *cpu = &times->figures[frame.account].cpu;
    add(cpu, duration, counted);
    cpu->inner_ns += frame.inner_ns;
    if (stack->depth > 0) {
        stack->frames[stack->depth - 1].inner_ns += duration;
    }
    if (frame.span != 0) {
        span_end(times, stack, &frame, counted);
    }
    *tag = frame.tag;
    return true;
}

/* True when the span needs no more work. */
static bool finish(struct mu_module_times *times, const struct pending *pending) {
    struct mu_cuda_times gpu;
    enum mu_cuda_span_state state = mu_cuda_span_poll(times->pool, pending->span, &gpu);
    if (state == MU_CUDA_SPAN_PENDING) {
        return false;
    }
    if (state == MU_CUDA_SPAN_READY) {
        add(&times->figures[pending->account].gpu, gpu.duration_ns, pending->counted);
        if (pending->around != NO_ACCOUNT) {
            times->figures[pending->around].gpu.inner_ns += gpu.duration_ns;
        }
    } else {
        times->counts.gpu_lost++;
    }
    mu_cuda_span_release(times->pool, pending->span);
    return true;
}

void mu_module_collect(struct mu_module_times *times) {
    uint32_t kept = 0;
    mu_cuda_collect(times->pool);
    for (uint32_t i = 0; i < times->pending_count; i++) {
        if (!finish(times, &times->pending[i])) {
            times->pending[kept++] = times->pending[i];
        }
    }
    times->pending_count = kept;
    times->collect_at = kept + COLLECT_EVERY < SPANS ? kept + COLLECT_EVERY : SPANS;
}

struct mu_module_figures mu_module_figures_of(const struct mu_module_times *times, uint32_t slot) {
    return times->figures[slot];
}

uint32_t mu_module_slots(const struct mu_module_times *times) {
    return times->slots;
}

struct mu_module_counts mu_module_counts_of(const struct mu_module_times *times) {
    struct mu_module_counts counts = times->counts;
    counts.gpu_waits = times->pending_count;
    return counts;
}

struct mu_cuda_pool *mu_module_pool(const struct mu_module_times *times) {
    return times->pool;
}

/* --- forgetting --- */

void mu_module_drop_open(struct mu_module_times *times) {
    for (uint32_t i = 0; i < times->stack_count; i++) {
        stack_cut(times, &times->stacks[i], 0);
    }
}

/* The pool stays in memory: its events are the parent's. */
void mu_module_after_fork(struct mu_module_times *times) {
    times->pool = NULL;
    times->pending_count = 0;
    mu_module_drop_open(times);
}
