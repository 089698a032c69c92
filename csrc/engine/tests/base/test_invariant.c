/* Invariants end the process in builds that check them, and cost nothing in the others. */
#include "base/invariant.h"

#include "tests/check.h"
#include "tests/child.h"

static void check_number(const void *context) {
    const int *number = context;
    MU_INVARIANT(*number < 3);
}

static void test_that_holds(void) {
    const int small = 2;
    struct child_end end = child_run(check_number, &small);
    CHECK_INT(end.status, 0);
    CHECK_STR(end.text, "");
}

#ifdef MU_INVARIANTS

static void test_broken(void) {
    const int large = 4;
    struct child_end end = child_run(check_number, &large);
    CHECK(child_aborted(&end));
    CHECK(strstr(end.text, "test_invariant.c:9: broken invariant: *number < 3\n") != NULL);
}

#else

static void test_broken(void) {
    const int large = 4;
    CHECK_INT(child_run(check_number, &large).status, 0);
}

#endif

static void test_evaluated_only_where_checked(void) {
    int evaluated = 0;
    MU_INVARIANT(++evaluated > 0);
#ifdef MU_INVARIANTS
    CHECK_INT(evaluated, 1);
#else
    CHECK_INT(evaluated, 0);
#endif
}

int main(void) {
    test_that_holds();
    test_broken();
    test_evaluated_only_where_checked();
    return check_report();
}
