/* Statistics that can be merged: the values kept for a part of the numbers, and the merge of two
 * parts.
 *
 * Shared by the processor and the GPU. Means and squares are merged after Chan, Golub, LeVeque
 * (Updating formulae and a pairwise algorithm for computing sample variances, Stanford
 * STAN-CS-79-773, 1979): no sum of squares about zero is ever subtracted, so 1e4 +- 1e-2 keeps its
 * deviation.
 *
 * float64 values whose squares would leave the range of a double are summed times a power of two.
 * Statistics are those of the finite numbers; NaN and Inf are counted apart.
 */
#ifndef MU_STATS_MATH_H
#define MU_STATS_MATH_H

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

#include "tensor/number.h"

/* The result. The first 15 fields, as doubles and in this order, are the tensor that
 * torch.ops.my_utils.stats returns; its sixteenth number is 0. */
struct mu_stats {
    int64_t count;  /* numbers: complex and float4_e2m1fn_x2 elements have two */
    int64_t finite; /* of them */
    double min;     /* NaN where nothing is finite, as max, mean and abs_max */
    double max;
    double mean;
    double std; /* of a sample, divided by finite - 1; NaN below two */
    double l1;  /* 0 where nothing is finite, as l2 */
    double l2;
    double abs_max;
    int64_t zeros; /* of either sign */
    int64_t nans;
    int64_t pos_infs;
    int64_t neg_infs;
    int64_t first_nan; /* row-major index of the element, -1: none */
    int64_t first_inf;
    int64_t int_min; /* of an int64 or uint64 tensor with elements: exact, as two's complement */
    int64_t int_max;
};

/* Values are held times 2^-scale. No sum or square leaves the range of a double then: those of
 * class 0 reach from 2^-400 to 2^400. */
enum { MU_STATS_SCALE_STEP = 750 };

struct mu_stats_part {
    int64_t finite, zeros, nans, pos_infs, neg_infs;
    int64_t first_nan, first_inf; /* index of the element, -1: none */
    double min, max;              /* not scaled; Inf and -Inf where nothing is finite */
    double mean, mean_rest;       /* their sum is the mean, to twice the digits; times 2^-scale */
    double abs_sum;               /* times 2^-scale */
    double m2;                    /* sum of squared differences from the mean; times 2^(-2 scale) */
    int64_t int_min, int_max;     /* of int64; of uint64 with the top bit flipped, so as to order */
    int32_t scale;                /* -MU_STATS_SCALE_STEP, 0 or MU_STATS_SCALE_STEP */
};

#define MU_STATS_INT_MAX 0x7FFFFFFFFFFFFFFF
#define MU_STATS_UP 0x1p750
#define MU_STATS_DOWN 0x1p-750
#define MU_STATS_CLASS_MAX 0x1p400
#define MU_STATS_CLASS_MIN 0x1p-400

MU_SHARED void mu_stats_part_clear(struct mu_stats_part *part) {
    part->finite = part->zeros = part->nans = part->pos_infs = part->neg_infs = 0;
    part->first_nan = part->first_inf = -1;
    part->min = (double)MU_FLOAT_INFINITY;
    part->max = -part->min;
    part->mean = part->mean_rest = part->abs_sum = part->m2 = 0;
    part->int_min = MU_STATS_INT_MAX;
    part->int_max = -MU_STATS_INT_MAX - 1;
    part->scale = -MU_STATS_SCALE_STEP;
}

/* The scale of numbers whose greatest magnitude is `abs_max`, which is finite. */
MU_SHARED int32_t mu_stats_scale_of(double abs_max) {
    if (abs_max > MU_STATS_CLASS_MAX) {
        return MU_STATS_SCALE_STEP;
    }
    return abs_max < MU_STATS_CLASS_MIN ? -MU_STATS_SCALE_STEP : 0;
}

/* `value` times 2^scale. */
MU_SHARED double mu_stats_scaled(double value, int32_t scale) {
    return scale == 0 ? value : value * (scale > 0 ? MU_STATS_UP : MU_STATS_DOWN);
}

MU_SHARED double mu_stats_within(double value, double low, double high) {
    return value < low ? low : value > high ? high : value;
}

/* Rescales to a greater scale. Two steps up nothing is left: next to numbers above 2^400, numbers
 * below 2^-400 do not matter. */
MU_SHARED void mu_stats_rescale(struct mu_stats_part *part, int32_t scale) {
    for (; part->scale < scale; part->scale += MU_STATS_SCALE_STEP) {
        part->mean *= MU_STATS_DOWN;
        part->mean_rest *= MU_STATS_DOWN;
        part->abs_sum *= MU_STATS_DOWN;
        part->m2 = part->m2 * MU_STATS_DOWN * MU_STATS_DOWN;
    }
}

MU_SHARED int64_t mu_stats_first(int64_t left, int64_t right) {
    return left < 0 || (right >= 0 && right < left) ? right : left;
}

/* Adds to the mean and keeps what is rounded off (Knuth's two-sum). */
MU_SHARED void mu_stats_move_mean(struct mu_stats_part *part, double by) {
    double mean = part->mean, step = part->mean_rest + by;
    double moved = mean + step;
    double stepped = moved - mean;
    part->mean = moved;
    part->mean_rest = (mean - (moved - stepped)) + (step - stepped);
}

/* Sets mean and m2 of a part whose sum of magnitudes is known already. `near_mean` is a mean of the
 * block that is exact to a few digits less. `apart` is the sum of the differences from it, which
 * corrects that. `squares` is the sum of the squared differences from it. */
MU_SHARED void mu_stats_set_moments(struct mu_stats_part *part, double near_mean, double apart,
                                    double squares) {
    double rest = apart / (double)part->finite;
    double m2 = squares - apart * rest;
    part->mean = near_mean;
    part->mean_rest = 0;
    mu_stats_move_mean(part, rest);
    part->m2 = m2 > 0 ? m2 : 0;
}

MU_SHARED void mu_stats_merge_moments(struct mu_stats_part *into, struct mu_stats_part next) {
    double left = (double)into->finite, right = (double)next.finite;
    if (next.finite == 0) {
        return;
    }
    mu_stats_rescale(into, next.scale);
    mu_stats_rescale(&next, into->scale);
    if (into->finite == 0) {
        into->mean = next.mean;
        into->mean_rest = next.mean_rest;
        into->m2 = next.m2;
    } else {
        double apart = (next.mean - into->mean) + (next.mean_rest - into->mean_rest);
        double share = right / (left + right);
        mu_stats_move_mean(into, apart * share);
        into->m2 += next.m2 + apart * apart * (left * share);
    }
    into->abs_sum += next.abs_sum;
    into->finite += next.finite;
}

/* Adds the numbers of `next` to those of `into`. For bit-equal results merge in a fixed order. */
MU_SHARED void mu_stats_merge(struct mu_stats_part *into, const struct mu_stats_part *next) {
    mu_stats_merge_moments(into, *next);
    into->zeros += next->zeros;
    into->nans += next->nans;
    into->pos_infs += next->pos_infs;
    into->neg_infs += next->neg_infs;
    into->first_nan = mu_stats_first(into->first_nan, next->first_nan);
    into->first_inf = mu_stats_first(into->first_inf, next->first_inf);
    into->min = next->min < into->min ? next->min : into->min;
    into->max = next->max > into->max ? next->max : into->max;
    into->int_min = next->int_min < into->int_min ? next->int_min : into->int_min;
    into->int_max = next->int_max > into->int_max ? next->int_max : into->int_max;
}

MU_SHARED void mu_stats_finish_moments(const struct mu_stats_part *part, struct mu_stats *out) {
    double finite = (double)part->finite;
    double mean = part->mean + part->mean_rest;
    out->mean = mu_stats_within(mu_stats_scaled(mean, part->scale), part->min, part->max);
    out->l1 = mu_stats_scaled(part->abs_sum, part->scale);
    out->l2 = mu_stats_scaled(sqrt(part->m2 + finite * mean * mean), part->scale);
    if (part->finite > 1) {
        out->std = mu_stats_scaled(sqrt(part->m2 / (finite - 1)), part->scale);
    }
}

/* The statistics of a whole. A result beyond the greatest double (an L1 norm of huge numbers, say)
 * is Inf. */
MU_SHARED void mu_stats_finish(const struct mu_stats_part *part, struct mu_stats *out) {
    out->count = part->finite + part->nans + part->pos_infs + part->neg_infs;
    out->finite = part->finite;
    out->min = out->max = out->mean = out->std = out->abs_max = (double)MU_FLOAT_NAN;
    out->l1 = out->l2 = 0;
    if (part->finite > 0) {
        out->min = part->min + 0.0; /* no negative zero */
        out->max = part->max + 0.0;
        out->abs_max = -part->min > part->max ? -part->min : out->max;
        mu_stats_finish_moments(part, out);
    }
    out->zeros = part->zeros;
    out->nans = part->nans;
    out->pos_infs = part->pos_infs;
    out->neg_infs = part->neg_infs;
    out->first_nan = part->first_nan;
    out->first_inf = part->first_inf;
    out->int_min = part->int_min;
    out->int_max = part->int_max;
}

#endif
