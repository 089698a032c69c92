/* Checks for the tests of the engine.
 *
 * A test is a program: its main calls functions that use the macros below and ends in
 * `return check_report();`. A check that fails prints where and what, and the test goes on.
 * Counts are atomic, so threads may check too.
 */
#ifndef MU_CHECK_H
#define MU_CHECK_H

#include <inttypes.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static atomic_int check_passed;
static atomic_int check_failed;

static inline int check_count(int ok) {
    atomic_fetch_add(ok ? &check_passed : &check_failed, 1);
    return ok;
}

static inline int check_condition(int ok, const char *text, const char *file, int line) {
    if (!check_count(ok)) {
        fprintf(stderr, "%s:%d: failed: %s\n", file, line, text);
    }
    return ok;
}

static inline int check_int(int64_t got, int64_t want, const char *text, const char *file,
                            int line) {
    int ok = check_count(got == want);
    if (!ok) {
        fprintf(stderr, "%s:%d: %s is %" PRId64 ", not %" PRId64 "\n", file, line, text, got, want);
    }
    return ok;
}

static inline int check_string(const char *got, const char *want, const char *text,
                               const char *file, int line) {
    int ok = got == NULL || want == NULL ? got == want : strcmp(got, want) == 0;
    if (!check_count(ok)) {
        fprintf(stderr, "%s:%d: %s is\n  \"%s\", not\n  \"%s\"\n", file, line, text,
                got == NULL ? "(null)" : got, want == NULL ? "(null)" : want);
    }
    return ok;
}

static inline int check_bytes(const void *got, const void *want, size_t length, const char *text,
                              const char *file, int line) {
    size_t at = 0;
    const unsigned char *left = got;
    const unsigned char *right = want;
    while (at < length && left[at] == right[at]) {
        at++;
    }
    int ok = check_count(at == length);
    if (!ok) {
        fprintf(stderr, "%s:%d: %s has 0x%02x at byte %zu, not 0x%02x\n", file, line, text,
                left[at], at, right[at]);
    }
    return ok;
}

/* Each is an expression, true when the check passed: `if (!CHECK(p != NULL)) return;`. */
#define CHECK(condition) check_condition(!!(condition), #condition, __FILE__, __LINE__)
#define CHECK_INT(got, want) check_int((int64_t)(got), (int64_t)(want), #got, __FILE__, __LINE__)
#define CHECK_STR(got, want) check_string((got), (want), #got, __FILE__, __LINE__)
#define CHECK_BYTES(got, want, length)                                                             \
    check_bytes((got), (want), (length), #got, __FILE__, __LINE__)

/* The closing line and the exit status of main. A test without a single check has failed. */
static inline int check_report(void) {
    int passed = atomic_load(&check_passed);
    int failed = atomic_load(&check_failed);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0 || passed == 0;
}

#endif
