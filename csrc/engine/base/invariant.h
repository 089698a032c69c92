/* Conditions that always hold unless the project has a fault.
 *
 * Builds for tests (asan, tsan, fuzzing) define MU_INVARIANTS: there a condition that does not hold
 * prints its text and ends the process. Release builds check nothing. Conditions on what comes from
 * outside, such as arguments and files, are errors and not invariants.
 */
#ifndef MU_INVARIANT_H
#define MU_INVARIANT_H

#ifdef MU_INVARIANTS

#include <stdio.h>
#include <stdlib.h>

__attribute__((cold)) static inline _Noreturn void mu_invariant_broken(const char *condition,
                                                                       const char *file, int line) {
    fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, condition);
    abort();
}

#define MU_INVARIANT(condition)                                                                    \
    ((condition) ? (void)0 : mu_invariant_broken(#condition, __FILE__, __LINE__))

#else

/* The condition is compiled, so that it stays valid, and never evaluated. */
#define MU_INVARIANT(condition) ((void)(0 && (condition)))

#endif

#endif
