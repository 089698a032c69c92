/* The instruction sets of the processor. The flags that are checked are those that csrc/flags.py
 * compiles with. The result equals that of the compiler's own library, in every thread and after a
 * fork. */
#include "base/cpu.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

#define TEXT(...) #__VA_ARGS__
#define TEXT_OF(...) TEXT(__VA_ARGS__)

enum { THREADS = 8 };

static unsigned all_sets(void) {
    unsigned sets = 0;
    for (int set = 0; set < MU_CPU_SETS; set++) {
        sets |= (unsigned)mu_cpu_has((enum mu_cpu_set)set) << set;
    }
    return sets;
}

static void *ask(void *out) {
    *(unsigned *)out = all_sets();
    return NULL;
}

/* Before anybody else has asked. */
static void test_threads(void) {
    pthread_t threads[THREADS];
    unsigned found[THREADS];
    for (int i = 0; i < THREADS; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, ask, &found[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
        CHECK_INT(found[i], all_sets());
    }
}

static void test_fork(void) {
    unsigned here = all_sets();
    int status;
    pid_t child = fork();
    if (child == 0) {
        _exit(all_sets() == here ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_flags(void) {
    CHECK_STR(mu_cpu_flags(MU_CPU_AVX2), TEXT_OF(FLAGS_AVX2));
    CHECK_STR(mu_cpu_flags(MU_CPU_AVX512), TEXT_OF(FLAGS_AVX512));
    CHECK_STR(mu_cpu_flags(MU_CPU_NEON), TEXT_OF(FLAGS_NEON));
}

#ifdef __x86_64__
/* The oracle knows no F16C before GCC 11 and newer clangs; no processor has FMA without it. */
static void test_oracle(void) {
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
                __builtin_cpu_supports("fma") && __builtin_cpu_supports("pclmul") &&
                __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("ssse3");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#if __GNUC__ >= 11
    bool f16c = __builtin_cpu_supports("f16c");
    avx2 = avx2 && f16c;
    avx512 = avx512 && f16c;
#endif
    CHECK_INT(mu_cpu_has(MU_CPU_AVX2), avx2);
    CHECK_INT(mu_cpu_has(MU_CPU_AVX512), avx512);
    CHECK_INT(mu_cpu_has(MU_CPU_NEON), 0);
}
#elif defined(__aarch64__)
/* The architecture's oracle is the compiler, which uses NEON everywhere. */
static void test_oracle(void) {
    CHECK_INT(all_sets(), 1 << MU_CPU_NEON);
}
#else
static void test_oracle(void) {
    CHECK_INT(all_sets(), 0);
}
#endif

int main(void) {
    test_threads();
    test_fork();
    test_flags();
    test_oracle();
    return check_report();
}
