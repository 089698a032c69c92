/* What this processor has, asked once.
 *
 * One name for each kind of files that csrc/flags.py compiles for more than every processor has,
 * by the end of their names: x_avx2.c runs only behind mu_cpu_has(MU_CPU_AVX2). On machines of
 * another kind there are no such files, and the answer is false. Any thread may ask at any time,
 * also in a child after a fork.
 */
#ifndef MU_CPU_H
#define MU_CPU_H

#include <stdbool.h>

enum mu_cpu_set {
    MU_CPU_AVX2,
    MU_CPU_AVX512,
    MU_CPU_SETS,
};

/* True when the processor has every instruction that the compiler may use under the flags of `set`,
 * and the system keeps the registers that they need. */
bool mu_cpu_has(enum mu_cpu_set set);

/* The compiler's flags that `set` stands for, "-mavx2,-mfma"; for the test that compares them with
 * those that files are compiled with. */
const char *mu_cpu_flags(enum mu_cpu_set set);

#endif
