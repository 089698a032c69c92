/* A GPU's grid of threads on the processor, for the kernels of csrc/engine/gpu_kernels/kernels.
 *
 * Every thread of a block is a fiber with its own stack; blocks run one after the other. A
 * fiber runs until it comes to a barrier or a shuffle. A barrier opens when all threads of the
 * block have reached it. A shuffle opens when all lanes of the warp have reached it with the same
 * argument. When no thread can go on, the program ends and prints where its threads are. So it
 * finds a barrier that some threads do not reach, and lanes that diverge before a shuffle.
 *
 * One launch at a time. Device memory is the process's own, so that sanitizers see every access.
 */
#ifndef MU_GPU_EMULATION_H
#define MU_GPU_EMULATION_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "gpu_kernels/gpu_layout.h"

#define MU_DEVICE static inline __attribute__((unused))
#define MU_KERNEL(threads) static void __attribute__((unused))
#define MU_UNROLL
#define MU_NO_UNROLL
#define __shared__ static

enum { GPU_BLOCK_MAX = 1024, GPU_WARP = 32, GPU_STACK_BYTES = 64 * 1024 };

enum gpu_state { GPU_READY, GPU_AT_BARRIER, GPU_AT_SHUFFLE, GPU_DONE };

struct gpu_index {
    unsigned x, y, z;
};

struct gpu_thread {
    void *resume[5]; /* where it goes on, of __builtin_setjmp */
    char *stack;     /* owned; kept from launch to launch */
    enum gpu_state state;
    uint64_t value; /* at a shuffle: what the lane gives, then what it gets */
    int lanes;      /* at a shuffle: with whom */
};

/* Calls a kernel with arguments as cuLaunchKernel takes them. */
typedef void (*gpu_kernel)(void **arguments);

static struct {
    struct gpu_thread threads[GPU_BLOCK_MAX];
    void *scheduler[5];
    gpu_kernel kernel;
    void **arguments;
    int count;
    int current;
} gpu;

static struct gpu_index threadIdx, blockIdx, blockDim, gridDim;

static void gpu_fail(const char *why) {
    fprintf(stderr, "%s, block %u of %u:", why, blockIdx.x, gridDim.x);
    for (int i = 0; i < gpu.count; i++) {
        fprintf(stderr, "%s%c", i % GPU_WARP == 0 ? " " : "", "rbsd"[gpu.threads[i].state]);
    }
    fprintf(stderr, " (r: ready, b: at a barrier, s: at a shuffle, d: done)\n");
    abort();
}

/* Must not be inlined or analysed by callers: a switch changes all registers, which only its own
 * code knows. ASan would take a jump for the end of a stack. */
#if defined(__clang__)
#define GPU_APART __attribute__((noinline, no_sanitize("address")))
#else
#define GPU_APART __attribute__((noipa, no_sanitize("address")))
#endif

/* Much faster than swapcontext, which asks the kernel for the signal mask each time. */
static GPU_APART __attribute__((noreturn)) void gpu_jump(void **to) {
    __builtin_longjmp(to, 1);
}

static GPU_APART void gpu_switch(void **from, void **to) {
    if (__builtin_setjmp(from) == 0) {
        gpu_jump(to);
    }
}

static void gpu_wait(enum gpu_state state) {
    struct gpu_thread *thread = &gpu.threads[gpu.current];
    thread->state = state;
    gpu_switch(thread->resume, gpu.scheduler);
}

static inline void __syncthreads(void) {
    gpu_wait(GPU_AT_BARRIER);
}

MU_DEVICE uint64_t mu_shuffle(uint64_t value, int lanes) {
    struct gpu_thread *thread = &gpu.threads[gpu.current];
    thread->value = value;
    thread->lanes = lanes;
    gpu_wait(GPU_AT_SHUFFLE);
    return thread->value;
}

MU_DEVICE void mu_atomic_add(uint64_t *sum, uint64_t value) {
    *sum += value;
}

MU_DEVICE struct mu_quad mu_load_quad(const uint8_t *at) {
    struct mu_quad quad;
    if ((uintptr_t)at % sizeof(quad) != 0) {
        gpu_fail("a load of 16 bytes that is not aligned");
    }
    memcpy(&quad, at, sizeof(quad));
    return quad;
}

/* Never ends, so that the next launch finds it. */
static void gpu_fiber(void) {
    for (;;) {
        gpu.kernel(gpu.arguments);
        gpu_wait(GPU_DONE);
    }
}

/* Runs the fiber for the first time, on its own stack. */
static GPU_APART void gpu_enter(struct gpu_thread *thread) {
    ucontext_t context;
    thread->stack = malloc(GPU_STACK_BYTES);
    if (thread->stack == NULL || getcontext(&context) != 0) {
        abort();
    }
    context.uc_stack.ss_sp = thread->stack;
    context.uc_stack.ss_size = GPU_STACK_BYTES;
    context.uc_link = NULL;
    makecontext(&context, gpu_fiber, 0);
    if (__builtin_setjmp(gpu.scheduler) == 0) {
        setcontext(&context);
    }
}

static void gpu_run_thread(struct gpu_thread *thread) {
    if (thread->stack == NULL) {
        gpu_enter(thread);
    } else {
        gpu_switch(gpu.scheduler, thread->resume);
    }
}

static int gpu_run_ready(void) {
    int ran = 0;
    for (int i = 0; i < gpu.count; i++) {
        if (gpu.threads[i].state == GPU_READY) {
            gpu.current = i;
            threadIdx = (struct gpu_index){(unsigned)i, 0, 0};
            gpu_run_thread(&gpu.threads[i]);
            ran = 1;
        }
    }
    return ran;
}

static int gpu_all_are(int from, int count, enum gpu_state state) {
    for (int i = from; i < from + count; i++) {
        if (gpu.threads[i].state != state) {
            return 0;
        }
    }
    return 1;
}

static void gpu_exchange(int from) {
    uint64_t given[GPU_WARP];
    for (int lane = 0; lane < GPU_WARP; lane++) {
        given[lane] = gpu.threads[from + lane].value;
        if (gpu.threads[from + lane].lanes != gpu.threads[from].lanes) {
            gpu_fail("lanes of one warp at different shuffles");
        }
    }
    for (int lane = 0; lane < GPU_WARP; lane++) {
        struct gpu_thread *thread = &gpu.threads[from + lane];
        thread->value = given[lane ^ thread->lanes];
        thread->state = GPU_READY;
    }
}

static int gpu_release(void) {
    int released = 0;
    for (int from = 0; from + GPU_WARP <= gpu.count; from += GPU_WARP) {
        if (gpu_all_are(from, GPU_WARP, GPU_AT_SHUFFLE)) {
            gpu_exchange(from);
            released = 1;
        }
    }
    if (gpu_all_are(0, gpu.count, GPU_AT_BARRIER)) {
        for (int i = 0; i < gpu.count; i++) {
            gpu.threads[i].state = GPU_READY;
        }
        released = 1;
    }
    return released;
}

static void gpu_run_block(void) {
    for (int i = 0; i < gpu.count; i++) {
        gpu.threads[i].state = GPU_READY;
    }
    do {
        while (gpu_run_ready()) {
        }
    } while (gpu_release());
    if (!gpu_all_are(0, gpu.count, GPU_DONE)) {
        gpu_fail("threads wait for others that never come");
    }
}

static __attribute__((unused)) void gpu_launch(gpu_kernel kernel, unsigned blocks, unsigned threads,
                                               void **arguments) {
    gpu.kernel = kernel;
    gpu.arguments = arguments;
    gpu.count = (int)threads;
    gridDim = (struct gpu_index){blocks, 1, 1};
    blockDim = (struct gpu_index){threads, 1, 1};
    for (unsigned block = 0; block < blocks; block++) {
        blockIdx = (struct gpu_index){block, 0, 0};
        gpu_run_block();
    }
}

static __attribute__((unused)) void gpu_free_stacks(void) {
    for (int i = 0; i < GPU_BLOCK_MAX; i++) {
        free(gpu.threads[i].stack);
        gpu.threads[i].stack = NULL;
    }
}

#endif
