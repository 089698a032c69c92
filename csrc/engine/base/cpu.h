/* The instruction sets that this processor has. They are read once.
 *
 * Files with some endings, such as x_avx2.c, are compiled by csrc/flags.py for instructions that
 * not every processor has. Each ending has one name here: x_avx2.c runs only after
 * mu_cpu_has(MU_CPU_AVX2). On machines of another architecture there are no such files, and the
 * result is false. Any thread may call at any time, also in a child after a fork.
 */
#ifndef MU_CPU_H
#define MU_CPU_H

#include <stdbool.h>

enum mu_cpu_set {
    MU_CPU_AVX2,
    MU_CPU_AVX512,
    MU_CPU_NEON,
    MU_CPU_SETS,
};

/* True when the processor has every instruction that the compiler may use under the flags of `set`,
 * and the system keeps the registers that they need. */
bool mu_cpu_has(enum mu_cpu_set set);

/* The compiler's flags for `set`, such as "-mavx2,-mfma", or "" for a set that its architecture
 * always has. A test compares them with the flags that files are compiled with. */
const char *mu_cpu_flags(enum mu_cpu_set set);

#endif
