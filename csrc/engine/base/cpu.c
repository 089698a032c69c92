#include "base/cpu.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

static const char *const flags_of[MU_CPU_SETS] = {
    [MU_CPU_AVX2] = "-mavx2,-mbmi2,-mf16c,-mfma,-mpclmul",
    [MU_CPU_AVX512] =
        "-mavx2,-mbmi2,-mf16c,-mfma,-mpclmul,-mavx512f,-mavx512bw,-mavx512dq,-mavx512vl",
    [MU_CPU_NEON] = "",
};

const char *mu_cpu_flags(enum mu_cpu_set set) {
    return flags_of[set];
}

#ifdef __x86_64__

#include <cpuid.h>

/* What CPUID says of the processor, and XCR0 of the registers that the system saves. Source: Intel
 * 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapters 14.3 and 15.2. */
struct cpu_words {
    unsigned leaf1_ecx, leaf7_ebx, xcr0;
};

/* XMM and YMM; then the masks and both parts of ZMM too. */
enum { YMM_SAVED = 0x6, ZMM_SAVED = 0xE6 };

/* The bits that must all be set for the instructions that one flag allows. A flag includes others:
 * -mavx2 includes the instructions from SSE3 to AVX, and POPCNT. */
static const struct feature {
    const char *flag;
    struct cpu_words needed;
} features[] = {
    {"-mavx2",
     {bit_SSE3 | bit_SSSE3 | bit_SSE4_1 | bit_SSE4_2 | bit_POPCNT | bit_AVX, bit_AVX2, YMM_SAVED}},
    {"-mbmi2", {0, bit_BMI2, 0}},
    {"-mf16c", {bit_F16C, 0, YMM_SAVED}},
    {"-mfma", {bit_FMA, 0, YMM_SAVED}},
    {"-mpclmul", {bit_PCLMUL, 0, 0}},
    {"-mavx512f", {0, bit_AVX512F, ZMM_SAVED}},
    {"-mavx512bw", {0, bit_AVX512BW, ZMM_SAVED}},
    {"-mavx512dq", {0, bit_AVX512DQ, ZMM_SAVED}},
    {"-mavx512vl", {0, bit_AVX512VL, ZMM_SAVED}},
};

static struct cpu_words read_cpu(void) {
    struct cpu_words found = {0, 0, 0};
    unsigned eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
        found.leaf1_ecx = ecx;
    }
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        found.leaf7_ebx = ebx;
    }
    if (found.leaf1_ecx & bit_OSXSAVE) {                   /* without it XGETBV does not exist */
        __asm__("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0)); /* NOLINT(portability-no-assembler) */
        found.xcr0 = eax;
    }
    return found;
}

static bool has_feature(const struct cpu_words *found, const struct feature *feature) {
    const struct cpu_words *needed = &feature->needed;
    return (found->leaf1_ecx & needed->leaf1_ecx) == needed->leaf1_ecx &&
           (found->leaf7_ebx & needed->leaf7_ebx) == needed->leaf7_ebx &&
           (found->xcr0 & needed->xcr0) == needed->xcr0;
}

/* An unknown flag is one that the processor does not have. */
static bool has_flag(const struct cpu_words *found, const char *flag, size_t length) {
    for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++) {
        if (strncmp(features[i].flag, flag, length) == 0 && features[i].flag[length] == '\0') {
            return has_feature(found, &features[i]);
        }
    }
    return false;
}

static bool has_all(const struct cpu_words *found, const char *flags) {
    for (;;) {
        size_t length = strcspn(flags, ",");
        if (!has_flag(found, flags, length)) {
            return false;
        }
        if (flags[length] == '\0') {
            return true;
        }
        flags += length + 1;
    }
}

/* The sets that are there, one bit each. */
static unsigned find_sets(void) {
    struct cpu_words found = read_cpu();
    unsigned sets = 0;
    for (int set = 0; set < MU_CPU_SETS; set++) {
        sets |= (unsigned)has_all(&found, flags_of[set]) << set;
    }
    return sets;
}

#elif defined(__aarch64__)

#include <sys/auxv.h>

/* The kernel's word on the processor. Linux runs on none without NEON, "advanced SIMD". */
static unsigned find_sets(void) {
    enum { ADVANCED_SIMD = 1 << 1 }; /* HWCAP_ASIMD */
    bool has_neon = (getauxval(AT_HWCAP) & ADVANCED_SIMD) != 0;
    return (unsigned)has_neon << MU_CPU_NEON;
}

#else

static unsigned find_sets(void) {
    return 0;
}

#endif

/* The first caller reads the processor. Threads that do so at the same time find the same. */
bool mu_cpu_has(enum mu_cpu_set set) {
    static const unsigned KNOWN = 1u << MU_CPU_SETS;
    static _Atomic unsigned known;
    unsigned sets = atomic_load_explicit(&known, memory_order_relaxed);
    if (sets == 0) {
        sets = find_sets() | KNOWN;
        atomic_store_explicit(&known, sets, memory_order_relaxed);
    }
    return (sets >> set & 1) != 0;
}
