/* Trimmed means of steps, and the draws of the block bootstrap against draws that are written out
 * one step after the other. */
#include "stats/block_bootstrap.h"

#include <math.h>
#include <stdlib.h>

#include "tests/check.h"

enum { FIGURES = 3 };

static uint64_t next(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u;
    uint64_t mixed = (*state ^ (*state >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

static double uniform(uint64_t *state) {
    return (double)(next(state) >> 11) * 0x1p-53;
}

/* Steps around 100 whose last two figures add up to the first; each depends on the one before by
 * `memory`, 0 not at all. The caller frees it. */
static double *steps_of(size_t steps, double memory, uint64_t seed) {
    double *values = malloc(steps * FIGURES * sizeof(*values)), last = 0;
    for (size_t i = 0; values != NULL && i < steps; i++) {
        last = memory * last + uniform(&seed) + uniform(&seed) + uniform(&seed) - 1.5;
        double *row = values + i * FIGURES;
        row[1] = 60 + last + (uniform(&seed) < 0.02 ? 50 : 0);
        row[2] = 40 + uniform(&seed);
        row[0] = row[1] + row[2];
    }
    return values;
}

static void test_means_by_hand(void) {
    const double values[] = {5, 50, 1, 90, 3, 30, 4, 10, 100, 20};
    struct mu_step_rows rows = {values, 5, 2, 1};
    double means[2];
    CHECK_INT(mu_trimmed_means(&rows, means, NULL), MU_OK);
    CHECK(means[0] == 4 && means[1] == 30);
    rows.trimmed = 2;
    CHECK_INT(mu_trimmed_means(&rows, means, NULL), MU_OK);
    CHECK(means[0] == 5 - 1 && means[1] == 10);
    rows.trimmed = 0;
    CHECK_INT(mu_trimmed_means(&rows, means, NULL), MU_OK);
    CHECK(fabs(means[0] - 22.6) < 1e-12 && means[1] == 40);
}

static int by_first(const void *left, const void *right) {
    const double *a = *(const double *const *)left, *b = *(const double *const *)right;
    return a[0] != b[0] ? (a[0] > b[0]) - (a[0] < b[0]) : (a > b) - (a < b);
}

/* One draw, written out: its steps, sorted, cut, averaged. */
static void oracle(const struct mu_step_rows *rows, size_t block, uint64_t *state, double *means) {
    const double **drawn = malloc(rows->steps * sizeof(*drawn));
    for (size_t at = 0; drawn != NULL && at < rows->steps;) {
        size_t first = (size_t)(((next(state) >> 32) * rows->steps) >> 32);
        for (size_t i = 0; i < block && at < rows->steps; i++) {
            drawn[at++] = rows->values + (first + i) % rows->steps * FIGURES;
        }
    }
    if (!CHECK(drawn != NULL)) {
        return;
    }
    qsort(drawn, rows->steps, sizeof(*drawn), by_first);
    for (size_t figure = 0; figure < FIGURES; figure++) {
        means[figure] = 0;
        for (size_t at = rows->trimmed; at < rows->steps - rows->trimmed; at++) {
            means[figure] += drawn[at][figure];
        }
        means[figure] /= (double)(rows->steps - 2 * rows->trimmed);
    }
    free(drawn);
}

static void test_draws_written_out(size_t steps, size_t trimmed, size_t block) {
    enum { DRAWS = 40 };
    double *values = steps_of(steps, 0.5, steps);
    struct mu_step_rows rows = {values, steps, FIGURES, trimmed};
    struct mu_draws draws = {block, DRAWS, 7};
    double got[DRAWS * FIGURES], want[FIGURES];
    uint64_t state = draws.seed;
    if (!CHECK(values != NULL) || !CHECK_INT(mu_block_bootstrap(&rows, &draws, got, NULL), MU_OK)) {
        free(values);
        return;
    }
    for (size_t i = 0; i < DRAWS; i++) {
        oracle(&rows, block, &state, want);
        for (size_t figure = 0; figure < FIGURES; figure++) {
            CHECK(fabs(got[i * FIGURES + figure] - want[figure]) < 1e-9);
        }
        const double *one = got + i * FIGURES;
        CHECK(fabs(one[1] + one[2] - one[0]) < 1e-9);
    }
    free(values);
}

/* The standard deviation of the draws of the first figure, and that their parts add up. */
static double spread(const double *values, size_t steps, size_t block, size_t count) {
    struct mu_step_rows rows = {values, steps, FIGURES, steps / 10};
    struct mu_draws draws = {block, count, 11};
    double *got = malloc(count * FIGURES * sizeof(*got)), sum = 0, squares = 0;
    if (!CHECK(got != NULL) || !CHECK_INT(mu_block_bootstrap(&rows, &draws, got, NULL), MU_OK)) {
        free(got);
        return NAN;
    }
    for (size_t i = 0; i < count; i++) {
        double apart = got[i * FIGURES] - got[0];
        sum += apart;
        squares += apart * apart;
        CHECK(fabs(got[i * FIGURES + 1] + got[i * FIGURES + 2] - got[i * FIGURES]) < 1e-6);
    }
    free(got);
    double mean = sum / (double)count;
    return sqrt(squares / (double)count - mean * mean);
}

/* One step more, and the draws come from influences: no other interval. */
static void test_influences_agree(size_t block) {
    size_t steps = MU_BOOTSTRAP_EXACT_MAX;
    double *values = steps_of(steps + 1, 0.5, 3);
    if (CHECK(values != NULL)) {
        double exact = spread(values, steps, block, 3000);
        double influences = spread(values, steps + 1, block, 3000);
        CHECK(fabs(influences / exact - 1) < 0.06); /* of 3,000 draws, known to 2 % */
    }
    free(values);
}

static void test_blocks_keep_what_depends(void) {
    size_t steps = 20000;
    double *values = steps_of(steps, 0.8, 5);
    if (CHECK(values != NULL)) {
        double alone = spread(values, steps, 1, 1000), blocks = spread(values, steps, 200, 1000);
        CHECK(blocks / alone > 2.2 && blocks / alone < 3.2); /* sqrt(1.8 / 0.2) = 3 less trimming */
    }
    free(values);
}

static void test_whole_blocks_do_not_vary(void) {
    double *values = steps_of(300, 0.5, 9);
    if (CHECK(values != NULL)) {
        CHECK(spread(values, 300, 300, 50) < 1e-6);
    }
    free(values);
}

static void test_what_is_refused(void) {
    double values[6] = {1, 2, 3, 4, 5, 6}, means[6];
    struct mu_error err;
    struct mu_step_rows rows = {values, 3, 2, 1};
    struct mu_draws draws = {0, 1, 0};
    CHECK_INT(mu_block_bootstrap(&rows, &draws, means, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, "block must be 1 to 3 steps, not 0");
    draws.block = 4;
    CHECK_INT(mu_block_bootstrap(&rows, &draws, means, &err), MU_ERR_ARGUMENT);
    rows.trimmed = 2;
    CHECK_INT(mu_trimmed_means(&rows, means, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, "trimmed must leave a step: 2 at each end of 3 do not");
    rows.trimmed = 1;
    values[3] = NAN;
    CHECK_INT(mu_trimmed_means(&rows, means, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, "figure 1 of step 1 is not finite");
    rows.steps = 0;
    CHECK_INT(mu_trimmed_means(&rows, means, &err), MU_ERR_ARGUMENT);
}

int main(void) {
    test_means_by_hand();
    test_draws_written_out(1, 0, 1);
    test_draws_written_out(23, 2, 1);
    test_draws_written_out(200, 20, 7);
    test_draws_written_out(200, 0, 200);
    test_draws_written_out(501, 250, 40);
    test_influences_agree(1);
    test_influences_agree(32);
    test_blocks_keep_what_depends();
    test_whole_blocks_do_not_vary();
    test_what_is_refused();
    return check_report();
}
