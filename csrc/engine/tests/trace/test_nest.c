/* Stages of one stream, placed by clocks that are known to within an error, stay on one track. */
#include "trace/nest.h"

#include "tests/check.h"

#include <stdlib.h>

static uint64_t random_state;

static int64_t random_below(int64_t bound) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)bound);
}

static struct mu_interval interval(int64_t begin, int64_t end, int64_t called, int64_t error) {
    return (struct mu_interval){.begin = begin, .end = end, .called = called, .error = error};
}

static void check_fit(const struct mu_nest *nest, struct mu_interval came, int64_t begin,
                      int64_t end, int64_t error) {
    struct mu_interval got = mu_nest_fit(nest, came);
    CHECK_INT(got.begin, begin);
    CHECK_INT(got.end, end);
    CHECK_INT(got.error, error);
    CHECK_INT(got.called, came.called);
}

static void test_what_came_later_follows(void) {
    struct mu_nest nest = {0};
    CHECK(mu_nest_accept(&nest, interval(1000, 2000, 500, 100)));
    check_fit(&nest, interval(3000, 4000, 600, 50), 3000, 4000, 50);
    check_fit(&nest, interval(2016, 3000, 600, 50), 2016, 3000, 50);
    check_fit(&nest, interval(2000, 3000, 600, 50), 2016, 3016, 100);
    check_fit(&nest, interval(1900, 2900, 600, 150), 2016, 3016, 150);
    check_fit(&nest, interval(1900, 1902, 600, 16), 2016, 2018, 100);
    check_fit(&nest, interval(1900, 2900, 600, 15), 1900, 2900, 15);
}

static void test_what_came_earlier_holds(void) {
    struct mu_nest nest = {0};
    CHECK(mu_nest_accept(&nest, interval(1000, 2000, 500, 100)));
    check_fit(&nest, interval(999, 2000, 400, 50), 999, 2000, 50);
    check_fit(&nest, interval(1000, 2100, 400, 0), 999, 2099, 100);
    check_fit(&nest, interval(1050, 3000, 400, 50), 999, 2949, 100);
    check_fit(&nest, interval(850, 1950, 400, 50), 900, 2000, 100);
    check_fit(&nest, interval(1050, 1980, 400, 50), 999, 2000, 100);
    check_fit(&nest, interval(1300, 3000, 400, 50), 1300, 3000, 50);
    check_fit(&nest, interval(500, 1800, 400, 50), 500, 1800, 50);
}

static void test_what_is_known_exactly_stays(void) {
    struct mu_nest nest = {0};
    CHECK(mu_nest_accept(&nest, interval(1000, 2000, 500, 0)));
    check_fit(&nest, interval(2000, 3000, 600, 0), 2000, 3000, 0);
    check_fit(&nest, interval(1999, 3000, 600, 0), 1999, 3000, 0);
    check_fit(&nest, interval(1000, 3000, 400, 0), 1000, 3000, 0);
}

static void test_far_times_do_not_overflow(void) {
    const int64_t far = INT64_MAX / 2;
    struct mu_nest nest = {0};
    CHECK(mu_nest_accept(&nest, interval(-far, far, 0, MU_NEST_ERROR_MAX)));
    check_fit(&nest, interval(-far, far, 0, 0), -far - 1, far, MU_NEST_ERROR_MAX);
    check_fit(&nest, interval(far, far, 0, 0), far, far, 0);
    check_fit(&nest, interval(-far, far, 1, MU_NEST_ERROR_MAX), -far, far, MU_NEST_ERROR_MAX);
    check_fit(&nest, interval(0, 1, 0, 0), 0, 1, 0);
}

enum { ERROR = 1000, APART = 100, SLACK = 100 };

struct placed {
    struct mu_nest nest;
    int64_t now, off, error;
};

/* The clocks are asked again: another error of another size. */
static void drain(struct placed *placed) {
    placed->error = APART + random_below(ERROR - APART);
    placed->off = random_below(2 * placed->error + 1) - placed->error;
}

/* A stage that holds up to three others; its row follows theirs. */
static void run_stage(struct placed *placed, int depth) {
    int64_t begin = placed->now += APART + random_below(ERROR);
    for (int64_t left = depth < 3 ? random_below(4) : 0; left > 0; left--) {
        run_stage(placed, depth + 1);
    }
    int64_t end = placed->now += APART + random_below(ERROR);
    if (random_below(3) == 0) {
        drain(placed);
    }
    struct mu_interval came =
        interval(begin + placed->off, end + placed->off, begin, placed->error);
    struct mu_interval fit = mu_nest_fit(&placed->nest, came);
    CHECK(llabs(fit.begin - begin) <= fit.error + SLACK);
    CHECK(llabs(fit.end - end) <= fit.error + SLACK);
    CHECK(fit.error <= ERROR);
    CHECK(mu_nest_accept(&placed->nest, fit));
}

static void test_nested_stages_of_many_drains(void) {
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct placed placed = {0};
        random_state = seed;
        for (int step = 0; step < 200; step++) {
            run_stage(&placed, 0);
        }
    }
}

int main(void) {
    test_what_came_later_follows();
    test_what_came_earlier_holds();
    test_what_is_known_exactly_stays();
    test_far_times_do_not_overflow();
    test_nested_stages_of_many_drains();
    return check_report();
}
