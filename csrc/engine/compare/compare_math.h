/* The arithmetic of a comparison: compares two elements, and merges results.
 *
 * Shared by the processor and the GPU. Two elements are close by the rule of torch.isclose,
 * computed in double: equal, or both finite with |a - b| <= atol + rtol * |b|; two NaNs by
 * `equal_nan`. -0 and +0 are equal. 64-bit integers lose nothing: a pair of integers is subtracted
 * exactly, and of an integer and a float the difference is right to an ulp. Pure functions, safe on
 * any thread.
 *
 * Errors and sums, and the figures made of them, use only the pairs in which both elements are
 * finite. NaNs and infinities are counted, so that one of them does not hide the rest. An element
 * of two numbers (complex, float4_e2m1fn_x2) counts once, even when both numbers differ.
 */
#ifndef MU_COMPARE_MATH_H
#define MU_COMPARE_MATH_H

#include "tensor/shared_math.h"

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

struct mu_compare_tolerance {
    double atol, rtol; /* finite, none negative */
    int equal_nan;
};

/* The result of comparing two elements. */
struct mu_compare_verdict {
    double abs_error;                      /* |a - b|; of a complex number its modulus */
    double rel_error;                      /* |a - b| / |b|; 0 where b is 0 */
    uint64_t exact_error[2];               /* |a - b| of integers, the low half first */
    double sum_aa, sum_bb, sum_ab, sum_dd; /* what they add to the sums */
    int finite;                            /* both; else all of the above is 0 */
    int close;
    int signs_differ; /* one is below zero, the other above */
    int nans_differ;  /* NaN in exactly one */
    int infs_differ;  /* one is infinite, and the other is not the same infinity */
};

/* The sum of two doubles, so that 64-bit integers fit: `high` is the nearest double. */
struct mu_compare_wide {
    double high, low;
};

/* An integer as its sign and its absolute value. */
struct mu_compare_integer {
    int negative; /* never with magnitude 0 */
    uint64_t magnitude;
};

MU_SHARED int mu_compare_is_nan(double x) {
    return x != x;
}

/* Of what is not finite the difference from itself is NaN. */
MU_SHARED int mu_compare_is_finite(double x) {
    return !mu_compare_is_nan(x - x); /* NOLINT(misc-redundant-expression) */
}

MU_SHARED int mu_compare_is_inf(double x) {
    return !mu_compare_is_nan(x) && !mu_compare_is_finite(x);
}

MU_SHARED struct mu_compare_integer mu_compare_signed(int64_t x) {
    struct mu_compare_integer result;
    result.negative = x < 0;
    result.magnitude = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    return result;
}

MU_SHARED struct mu_compare_integer mu_compare_unsigned(uint64_t x) {
    struct mu_compare_integer result;
    result.negative = 0;
    result.magnitude = x;
    return result;
}

/* What rounding to a double takes away. */
MU_SHARED double mu_compare_rounded_off(uint64_t magnitude, double rounded) {
    if (rounded >= 18446744073709551616.0) {
        return -(double)(0 - magnitude);
    }
    uint64_t back = (uint64_t)rounded;
    return magnitude >= back ? (double)(magnitude - back) : -(double)(back - magnitude);
}

MU_SHARED struct mu_compare_wide mu_compare_widen(struct mu_compare_integer x) {
    struct mu_compare_wide result;
    result.high = (double)x.magnitude;
    result.low = mu_compare_rounded_off(x.magnitude, result.high);
    if (x.negative) {
        result.high = -result.high;
        result.low = -result.low;
    }
    return result;
}

MU_SHARED struct mu_compare_wide mu_compare_narrow(double x) {
    struct mu_compare_wide result;
    result.high = x;
    result.low = 0;
    return result;
}

/* Where the high parts are near each other, their difference is exact. Only there do the low parts
 * matter. */
MU_SHARED double mu_compare_difference(struct mu_compare_wide a, struct mu_compare_wide b) {
    double high = a.high - b.high;
    double low = a.low - b.low;
    return low == 0 ? high : high + low;
}

MU_SHARED int mu_compare_opposite(double a, double b) {
    return (a < 0 && b > 0) || (a > 0 && b < 0);
}

MU_SHARED int mu_compare_inf_differs(double a, double b) {
    return (mu_compare_is_inf(a) || mu_compare_is_inf(b)) && a != b;
}

/* Without overflow or loss on the way, as hypot. */
MU_SHARED double mu_compare_modulus(double re, double im) {
    double square = re * re + im * im;
    return (square > 1e-280 && square < 1e300) || (re == 0 && im == 0) ? sqrt(square)
                                                                       : hypot(re, im);
}

MU_SHARED double mu_compare_threshold(const struct mu_compare_tolerance *tolerance, double b) {
    return tolerance->atol + tolerance->rtol * b;
}

MU_SHARED void mu_compare_set_errors(struct mu_compare_verdict *verdict,
                                     const struct mu_compare_tolerance *tolerance, double error,
                                     double b) {
    verdict->abs_error = error;
    verdict->rel_error = b != 0 ? error / b : 0;
    verdict->close = mu_compare_is_finite(error) && error <= mu_compare_threshold(tolerance, b);
}

MU_SHARED struct mu_compare_verdict mu_compare_no_verdict(void) {
    struct mu_compare_verdict none;
    none.abs_error = none.rel_error = 0;
    none.exact_error[0] = none.exact_error[1] = 0;
    none.sum_aa = none.sum_bb = none.sum_ab = none.sum_dd = 0;
    none.finite = none.close = 0;
    none.signs_differ = none.nans_differ = none.infs_differ = 0;
    return none;
}

MU_SHARED struct mu_compare_verdict mu_compare_numbers(const struct mu_compare_tolerance *tolerance,
                                                       struct mu_compare_wide a,
                                                       struct mu_compare_wide b) {
    struct mu_compare_verdict verdict = mu_compare_no_verdict();
    verdict.signs_differ = mu_compare_opposite(a.high, b.high);
    verdict.finite = mu_compare_is_finite(a.high) && mu_compare_is_finite(b.high);
    if (!verdict.finite) {
        int nan_a = mu_compare_is_nan(a.high), nan_b = mu_compare_is_nan(b.high);
        verdict.nans_differ = nan_a != nan_b;
        verdict.infs_differ = mu_compare_inf_differs(a.high, b.high);
        verdict.close = nan_a && nan_b ? tolerance->equal_nan : a.high == b.high;
        return verdict;
    }
    double difference = mu_compare_difference(a, b);
    mu_compare_set_errors(&verdict, tolerance, fabs(difference), fabs(b.high));
    verdict.sum_aa = a.high * a.high;
    verdict.sum_bb = b.high * b.high;
    verdict.sum_ab = a.high * b.high;
    verdict.sum_dd = difference * difference;
    return verdict;
}

/* `a` and `b`: real and imaginary part. */
MU_SHARED struct mu_compare_verdict mu_compare_complex(const struct mu_compare_tolerance *tolerance,
                                                       const struct mu_compare_wide *a,
                                                       const struct mu_compare_wide *b) {
    struct mu_compare_verdict verdict = mu_compare_no_verdict();
    double re = mu_compare_difference(a[0], b[0]), im = mu_compare_difference(a[1], b[1]);
    verdict.signs_differ =
        mu_compare_opposite(a[0].high, b[0].high) || mu_compare_opposite(a[1].high, b[1].high);
    verdict.finite = mu_compare_is_finite(a[0].high) && mu_compare_is_finite(a[1].high) &&
                     mu_compare_is_finite(b[0].high) && mu_compare_is_finite(b[1].high);
    if (!verdict.finite) {
        int nan_a = mu_compare_is_nan(a[0].high) || mu_compare_is_nan(a[1].high);
        int nan_b = mu_compare_is_nan(b[0].high) || mu_compare_is_nan(b[1].high);
        verdict.nans_differ = nan_a != nan_b;
        verdict.infs_differ = mu_compare_inf_differs(a[0].high, b[0].high) ||
                              mu_compare_inf_differs(a[1].high, b[1].high);
        verdict.close = nan_a && nan_b ? tolerance->equal_nan
                                       : a[0].high == b[0].high && a[1].high == b[1].high;
        return verdict;
    }
    mu_compare_set_errors(&verdict, tolerance, mu_compare_modulus(re, im),
                          mu_compare_modulus(b[0].high, b[1].high));
    verdict.sum_aa = a[0].high * a[0].high + a[1].high * a[1].high;
    verdict.sum_bb = b[0].high * b[0].high + b[1].high * b[1].high;
    verdict.sum_ab = a[0].high * b[0].high + a[1].high * b[1].high;
    verdict.sum_dd = re * re + im * im;
    return verdict;
}

/* Of two finite numbers in one element (float4_e2m1fn_x2): the worse of the two. */
MU_SHARED struct mu_compare_verdict mu_compare_both(struct mu_compare_verdict x,
                                                    struct mu_compare_verdict y) {
    x.abs_error = x.abs_error > y.abs_error ? x.abs_error : y.abs_error;
    x.rel_error = x.rel_error > y.rel_error ? x.rel_error : y.rel_error;
    x.sum_aa += y.sum_aa;
    x.sum_bb += y.sum_bb;
    x.sum_ab += y.sum_ab;
    x.sum_dd += y.sum_dd;
    x.finite = x.finite && y.finite;
    x.close = x.close && y.close;
    x.signs_differ = x.signs_differ || y.signs_differ;
    x.nans_differ = x.nans_differ || y.nans_differ;
    x.infs_differ = x.infs_differ || y.infs_differ;
    return x;
}

MU_SHARED int mu_compare_exact_above(const uint64_t *x, const uint64_t *y) {
    return x[1] != y[1] ? x[1] > y[1] : x[0] > y[0];
}

/* |a - b|, 65 bits at most. */
MU_SHARED void mu_compare_exact_error(struct mu_compare_integer a, struct mu_compare_integer b,
                                      uint64_t *error) {
    error[1] = 0;
    if (a.negative != b.negative) {
        error[0] = a.magnitude + b.magnitude;
        error[1] = error[0] < a.magnitude;
    } else {
        error[0] =
            a.magnitude > b.magnitude ? a.magnitude - b.magnitude : b.magnitude - a.magnitude;
    }
}

/* As a double: the nearest or the one next to it, and itself where it is a double. */
MU_SHARED double mu_compare_exact_double(const uint64_t *x) {
    return (double)x[1] * 18446744073709551616.0 + (double)x[0];
}

/* Rounding keeps the order, so only a tie with the threshold must be decided in integers. */
MU_SHARED int mu_compare_exact_within(const uint64_t *error, double rounded, double threshold) {
    if (rounded != threshold) {
        return rounded < threshold;
    }
    uint64_t limit[2];
    limit[1] = threshold >= 18446744073709551616.0;
    limit[0] = (uint64_t)(threshold - (limit[1] ? 18446744073709551616.0 : 0.0));
    return !mu_compare_exact_above(error, limit);
}

/* The difference is exact; the threshold is a double. */
MU_SHARED struct mu_compare_verdict
mu_compare_integers(const struct mu_compare_tolerance *tolerance, struct mu_compare_integer a,
                    struct mu_compare_integer b) {
    struct mu_compare_verdict verdict = mu_compare_no_verdict();
    double high_a = a.negative ? -(double)a.magnitude : (double)a.magnitude;
    double high_b = b.negative ? -(double)b.magnitude : (double)b.magnitude;
    double size_b = (double)b.magnitude;
    mu_compare_exact_error(a, b, verdict.exact_error);
    double error = mu_compare_exact_double(verdict.exact_error);
    mu_compare_set_errors(&verdict, tolerance, error, size_b);
    verdict.close = mu_compare_exact_within(verdict.exact_error, error,
                                            mu_compare_threshold(tolerance, size_b));
    verdict.signs_differ = mu_compare_opposite(high_a, high_b);
    verdict.finite = 1;
    verdict.sum_aa = high_a * high_a;
    verdict.sum_bb = high_b * high_b;
    verdict.sum_ab = high_a * high_b;
    verdict.sum_dd = error * error;
    return verdict;
}

/* --- results of many elements ------------------------------------------------------------- */

struct mu_compare_part {
    double sum_aa, sum_bb, sum_ab, sum_dd;
    double max_abs, max_rel;
    uint64_t max_exact[2];  /* the greatest |a - b| of integers, the low half first */
    int64_t max_abs_index;  /* of the first element with that error; -1: no error above 0 */
    int64_t max_rel_index;  /* the same */
    int64_t first_mismatch; /* index; -1: none */
    int64_t mismatches;
    int64_t sign_differences;
    int64_t nan_disagreements;
    int64_t inf_disagreements;
    int64_t bits_differ; /* not 0 where two elements of one type are not the same bits */
};

MU_SHARED void mu_compare_part_init(struct mu_compare_part *part) {
    part->sum_aa = part->sum_bb = part->sum_ab = part->sum_dd = 0;
    part->max_abs = part->max_rel = 0;
    part->max_exact[0] = part->max_exact[1] = 0;
    part->max_abs_index = part->max_rel_index = part->first_mismatch = -1;
    part->mismatches = part->sign_differences = 0;
    part->nan_disagreements = part->inf_disagreements = 0;
    part->bits_differ = 0;
}

/* Keeps the greater error. Of equal errors it keeps the first: that of `part`, which comes before
 * `index`. Where there is an exact error, it decides. */
MU_SHARED void mu_compare_part_raise_abs(struct mu_compare_part *part, double error,
                                         const uint64_t *exact, int64_t index) {
    if (mu_compare_exact_above(exact, part->max_exact) ||
        (error > part->max_abs && !mu_compare_exact_above(part->max_exact, exact))) {
        part->max_abs = error;
        part->max_exact[0] = exact[0];
        part->max_exact[1] = exact[1];
        part->max_abs_index = index;
    }
}

MU_SHARED void mu_compare_part_raise_rel(struct mu_compare_part *part, double error,
                                         int64_t index) {
    if (error > part->max_rel) {
        part->max_rel = error;
        part->max_rel_index = index;
    }
}

/* Adds everything but the sums and the bits. Elements must come in the order of their indices. */
MU_SHARED void mu_compare_part_add(struct mu_compare_part *part,
                                   const struct mu_compare_verdict *verdict, int64_t index) {
    mu_compare_part_raise_abs(part, verdict->abs_error, verdict->exact_error, index);
    mu_compare_part_raise_rel(part, verdict->rel_error, index);
    if (!verdict->close && part->first_mismatch < 0) {
        part->first_mismatch = index;
    }
    part->mismatches += !verdict->close;
    part->sign_differences += verdict->signs_differ;
    part->nan_disagreements += verdict->nans_differ;
    part->inf_disagreements += verdict->infs_differ;
}

/* The elements of `next` come after those of `part`. */
MU_SHARED void mu_compare_part_merge(struct mu_compare_part *part,
                                     const struct mu_compare_part *next) {
    part->sum_aa += next->sum_aa;
    part->sum_bb += next->sum_bb;
    part->sum_ab += next->sum_ab;
    part->sum_dd += next->sum_dd;
    mu_compare_part_raise_abs(part, next->max_abs, next->max_exact, next->max_abs_index);
    mu_compare_part_raise_rel(part, next->max_rel, next->max_rel_index);
    if (part->first_mismatch < 0) {
        part->first_mismatch = next->first_mismatch;
    }
    part->mismatches += next->mismatches;
    part->sign_differences += next->sign_differences;
    part->nan_disagreements += next->nan_disagreements;
    part->inf_disagreements += next->inf_disagreements;
    part->bits_differ |= next->bits_differ;
}

#endif
