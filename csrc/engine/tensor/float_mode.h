/* Turns off for a while, on this thread, the mode that torch.set_flush_denormal(True) turns on. In
 * that mode denormal numbers are read as zero, and zeros would be counted wrongly.
 */
#ifndef MU_FLOAT_MODE_H
#define MU_FLOAT_MODE_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { MU_FLUSH_BITS = 0x8040 }; /* MXCSR: flush to zero, denormals are zero */

static inline uint64_t mu_float_mode_exact(void) {
    uint32_t before = _mm_getcsr();
    if (before & MU_FLUSH_BITS) {
        _mm_setcsr(before & ~(uint32_t)MU_FLUSH_BITS);
    }
    return before;
}

static inline void mu_float_mode_restore(uint64_t before) {
    if (before & MU_FLUSH_BITS) {
        _mm_setcsr((uint32_t)before);
    }
}
#elif defined(__aarch64__)
#define MU_FLUSH_BITS (1ull << 24 | 1ull << 19) /* FPCR: FZ, FZ16 */

static inline uint64_t mu_float_mode_exact(void) {
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    if (before & MU_FLUSH_BITS) {
        __asm__ volatile("msr fpcr, %0" : : "r"(before & ~MU_FLUSH_BITS));
    }
    return before;
}

static inline void mu_float_mode_restore(uint64_t before) {
    if (before & MU_FLUSH_BITS) {
        __asm__ volatile("msr fpcr, %0" : : "r"(before));
    }
}
#else
static inline uint64_t mu_float_mode_exact(void) {
    return 0;
}

static inline void mu_float_mode_restore(uint64_t before) {
    (void)before;
}
#endif

#endif
