#include "stats/block_bootstrap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- the order of the steps ------------------------------------------------------------------- */

struct place {
    double first; /* the step's first figure */
    uint32_t step;
};

static int compare(const void *left, const void *right) {
    const struct place *a = left, *b = right;
    if (a->first != b->first) {
        return a->first < b->first ? -1 : 1;
    }
    return (a->step > b->step) - (a->step < b->step);
}

MU_MUST_CHECK static int check(const struct mu_step_rows *rows, struct mu_error *err) {
    if (rows->steps == 0 || rows->steps > UINT32_MAX || rows->figures == 0) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "%zu steps of %zu figures: 1 or more are needed",
                            rows->steps, rows->figures);
    }
    if (rows->trimmed > (rows->steps - 1) / 2) {
        return mu_error_set(err, MU_ERR_ARGUMENT,
                            "trimmed must leave a step: %zu at each end of %zu do not",
                            rows->trimmed, rows->steps);
    }
    for (size_t i = 0; i < rows->steps * rows->figures; i++) {
        if (!isfinite(rows->values[i])) {
            return mu_error_set(err, MU_ERR_ARGUMENT, "figure %zu of step %zu is not finite",
                                i % rows->figures, i / rows->figures);
        }
    }
    return MU_OK;
}

/* `*out` is the caller's to free. */
MU_MUST_CHECK static int in_order(const struct mu_step_rows *rows, struct place **out,
                                  struct mu_error *err) {
    *out = NULL;
    int code = check(rows, err);
    if (code != MU_OK) {
        return code;
    }
    struct place *places = malloc(rows->steps * sizeof(*places));
    if (places == NULL) {
        return mu_error_no_memory(err, "steps in their order");
    }
    for (size_t step = 0; step < rows->steps; step++) {
        places[step] = (struct place){rows->values[step * rows->figures], (uint32_t)step};
    }
    qsort(places, rows->steps, sizeof(*places), compare);
    *out = places;
    return MU_OK;
}

static void add(double *sums, const double *row, double weight, size_t figures) {
    for (size_t i = 0; i < figures; i++) {
        sums[i] += weight * row[i];
    }
}

static void scale(double *sums, double factor, size_t figures) {
    for (size_t i = 0; i < figures; i++) {
        sums[i] *= factor;
    }
}

/* The mean of the steps at [first, last) of the order. */
static void mean_of(const struct mu_step_rows *rows, const struct place *places, size_t first,
                    size_t last, double *means) {
    memset(means, 0, rows->figures * sizeof(*means));
    for (size_t at = first; at < last; at++) {
        add(means, rows->values + places[at].step * rows->figures, 1.0, rows->figures);
    }
    scale(means, 1.0 / (double)(last - first), rows->figures);
}

int mu_trimmed_means(const struct mu_step_rows *rows, double *means, struct mu_error *err) {
    struct place *places;
    int code = in_order(rows, &places, err);
    if (code == MU_OK) {
        mean_of(rows, places, rows->trimmed, rows->steps - rows->trimmed, means);
    }
    free(places);
    return code;
}

/* --- random numbers --------------------------------------------------------------------------- */

/* SplitMix64: Steele, Lea & Flood, Fast splittable pseudorandom number generators (2014). */
static uint64_t next(uint64_t *state) {
    uint64_t mixed = *state += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

static size_t below(uint64_t *state, size_t count) {
    return (size_t)(((next(state) >> 32) * (uint64_t)count) >> 32);
}

/* --- draws that are trimmed anew -------------------------------------------------------------- */

/* How often each step is drawn; `drawn` has a place more than there are steps. */
static void draw(int32_t *drawn, size_t steps, size_t block, uint64_t *state) {
    memset(drawn, 0, (steps + 1) * sizeof(*drawn));
    for (size_t left = steps; left > 0;) {
        size_t length = block < left ? block : left;
        size_t first = below(state, steps), last = first + length;
        drawn[first]++;
        if (last > steps) {
            drawn[0]++;
            last -= steps;
        }
        drawn[last]--;
        left -= length;
    }
    for (size_t step = 1; step < steps; step++) {
        drawn[step] += drawn[step - 1];
    }
}

static void trimmed_draw(const struct mu_step_rows *rows, const struct place *places,
                         const int32_t *drawn, double *means) {
    size_t low = rows->trimmed, high = rows->steps - rows->trimmed, before = 0;
    memset(means, 0, rows->figures * sizeof(*means));
    for (size_t at = 0; before < high; at++) {
        size_t step = places[at].step, after = before + (size_t)drawn[step];
        size_t first = before > low ? before : low, last = after < high ? after : high;
        if (last > first) {
            add(means, rows->values + step * rows->figures, (double)(last - first), rows->figures);
        }
        before = after;
    }
    scale(means, 1.0 / (double)(high - low), rows->figures);
}

MU_MUST_CHECK static int draw_and_trim(const struct mu_step_rows *rows, const struct place *places,
                                       const struct mu_draws *draws, double *means,
                                       struct mu_error *err) {
    int32_t *drawn = malloc((rows->steps + 1) * sizeof(*drawn));
    if (drawn == NULL) {
        return mu_error_no_memory(err, "a draw of steps");
    }
    uint64_t state = draws->seed;
    for (size_t i = 0; i < draws->count; i++) {
        draw(drawn, rows->steps, draws->block, &state);
        trimmed_draw(rows, places, drawn, means + i * rows->figures);
    }
    free(drawn);
    return MU_OK;
}

/* --- draws from what each step adds ----------------------------------------------------------- */

/* A step that is left out counts as those at the edge of what is kept do: the mean over this share
 * of the steps, around the edge. */
static size_t around_edge(const struct mu_step_rows *rows) {
    size_t share = rows->steps / 200;
    return share < rows->trimmed ? share : rows->trimmed;
}

/* Sums from the first step on of what each step adds, less the mean; a row more than there are
 * steps. work: three rows of figures. */
static void sum_influences(const struct mu_step_rows *rows, const struct place *places,
                           double *sums, double *work) {
    size_t figures = rows->figures, steps = rows->steps, low = rows->trimmed, high = steps - low;
    double *at_low = work, *at_high = work + figures, *mean = work + 2 * figures;
    size_t around = around_edge(rows);
    if (around > 0) {
        mean_of(rows, places, low - around, low + around, at_low);
        mean_of(rows, places, high - around, high + around, at_high);
    }
    memset(mean, 0, figures * sizeof(*mean));
    memset(sums, 0, figures * sizeof(*sums));
    for (size_t at = 0; at < steps; at++) {
        size_t step = places[at].step;
        const double *adds = at < low     ? at_low
                             : at >= high ? at_high
                                          : rows->values + step * figures;
        memcpy(sums + (step + 1) * figures, adds, figures * sizeof(*sums));
        add(mean, adds, 1.0 / (double)steps, figures);
    }
    for (size_t step = 1; step <= steps; step++) {
        add(sums + step * figures, mean, -1.0, figures);
        add(sums + step * figures, sums + (step - 1) * figures, 1.0, figures);
    }
}

static void add_blocks(const struct mu_step_rows *rows, const double *sums, size_t block,
                       uint64_t *state, double *means) {
    size_t figures = rows->figures, steps = rows->steps;
    for (size_t left = steps; left > 0;) {
        size_t length = block < left ? block : left;
        size_t first = below(state, steps), last = first + length;
        add(means, sums + first * figures, -1.0, figures);
        if (last > steps) { /* the sum over all steps is 0 */
            last -= steps;
        }
        add(means, sums + last * figures, 1.0, figures);
        left -= length;
    }
}

MU_MUST_CHECK static int draw_influences(const struct mu_step_rows *rows,
                                         const struct place *places, const struct mu_draws *draws,
                                         double *means, struct mu_error *err) {
    size_t figures = rows->figures;
    double *sums = calloc(rows->steps + 1, figures * sizeof(*sums));
    double *work = calloc(4 * figures, sizeof(*work));
    int code = MU_OK;
    if (sums == NULL || work == NULL) {
        code = mu_error_no_memory(err, "the influence of steps");
        goto done;
    }
    sum_influences(rows, places, sums, work);
    double *whole = work + 3 * figures;
    mean_of(rows, places, rows->trimmed, rows->steps - rows->trimmed, whole);
    uint64_t state = draws->seed;
    for (size_t i = 0; i < draws->count; i++) {
        double *out = means + i * figures;
        memset(out, 0, figures * sizeof(*out));
        add_blocks(rows, sums, draws->block, &state, out);
        scale(out, 1.0 / (double)(rows->steps - 2 * rows->trimmed), figures);
        add(out, whole, 1.0, figures);
    }
done:
    free(sums);
    free(work);
    return code;
}

int mu_block_bootstrap(const struct mu_step_rows *rows, const struct mu_draws *draws, double *means,
                       struct mu_error *err) {
    struct place *places;
    int code = in_order(rows, &places, err);
    if (code == MU_OK && (draws->block == 0 || draws->block > rows->steps)) {
        code = mu_error_set(err, MU_ERR_ARGUMENT, "block must be 1 to %zu steps, not %zu",
                            rows->steps, draws->block);
    }
    if (code == MU_OK) {
        code = rows->steps <= MU_BOOTSTRAP_EXACT_MAX
                   ? draw_and_trim(rows, places, draws, means, err)
                   : draw_influences(rows, places, draws, means, err);
    }
    free(places);
    return code;
}
