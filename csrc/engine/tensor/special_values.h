/* The rule by which the bits of a floating type are NaN or infinite, as numbers to compare with.
 *
 * Shared by the processor, which makes the rule of a type, and the GPU, whose one kernel follows
 * it. With `m = (bits + add) & mask` a value is NaN when `m > limit`, and infinite when `m` is
 * `infinity`, negative when its top bit is set.
 */
#ifndef MU_SPECIAL_VALUES_H
#define MU_SPECIAL_VALUES_H

#include "tensor/number.h"

/* Their kinds, as places in an array of counts. */
enum { MU_NANS, MU_POS_INFS, MU_NEG_INFS, MU_NAN_INF_COUNTS };

struct mu_special_rule {
    uint64_t add, mask, limit;
    uint64_t infinity; /* beyond `mask` where the type has none */
    uint64_t negative; /* the sign */
    int32_t bits;      /* of a value: 8, 16, 32 or 64; 0: no value is NaN or infinite */
    /* A 32-bit word has a NaN or an infinity only where (word & quick_mask) + quick_add has one of
     * the bits of quick_top; of 64-bit values that is for the high word. */
    uint32_t quick_mask, quick_add, quick_top;
};

/* `word` in all parts of a 32-bit word. */
MU_SHARED uint32_t mu_spread(uint32_t word, int bits) {
    return bits == 8 ? word * 0x01010101u : bits == 16 ? word * 0x00010001u : word;
}

/* A type of IEEE's make: all ones in the exponent are an infinity without a fraction, NaN with
 * one. `infinity`: its bits. */
MU_SHARED struct mu_special_rule mu_special_ieee(int bits, uint64_t infinity) {
    struct mu_special_rule rule;
    int word = bits < 32 ? bits : 32;
    uint32_t top = 1u << (word - 1);
    rule.bits = bits;
    rule.add = 0;
    rule.negative = (uint64_t)1 << (bits - 1);
    rule.mask = rule.negative - 1;
    rule.limit = rule.infinity = infinity;
    rule.quick_mask = mu_spread(top - 1, word);
    rule.quick_add = mu_spread(top - (uint32_t)(bits == 64 ? infinity >> 32 : infinity), word);
    rule.quick_top = mu_spread(top, word);
    return rule;
}

/* An 8-bit type without infinities, and NaN where (bits + add) & mask is the mask. */
MU_SHARED struct mu_special_rule mu_special_nan8(uint64_t add, uint64_t mask) {
    struct mu_special_rule rule = mu_special_ieee(8, 0x7F);
    rule.add = add;
    rule.mask = mask;
    rule.limit = mask - 1;
    rule.infinity = 0x100;
    if (mask == 0xFF) {
        rule.quick_mask = 0; /* every word is checked */
        rule.quick_add = rule.quick_top;
    }
    return rule;
}

/* The rule of a type's numbers: those of its parts where it is complex. */
MU_SHARED struct mu_special_rule mu_special_rule_of(int dtype) {
    struct mu_special_rule none = mu_special_ieee(32, 0x7F800000u);
    none.bits = 0;
    switch (dtype) {
    case MU_DTYPE_FLOAT16:
    case MU_DTYPE_COMPLEX32:
        return mu_special_ieee(16, 0x7C00);
    case MU_DTYPE_BFLOAT16:
        return mu_special_ieee(16, 0x7F80);
    case MU_DTYPE_FLOAT32:
    case MU_DTYPE_COMPLEX64:
        return mu_special_ieee(32, 0x7F800000u);
    case MU_DTYPE_FLOAT64:
    case MU_DTYPE_COMPLEX128:
        return mu_special_ieee(64, (uint64_t)0x7FF << 52);
    case MU_DTYPE_FLOAT8_E5M2:
        return mu_special_ieee(8, 0x7C);
    case MU_DTYPE_FLOAT8_E4M3FN:
        return mu_special_nan8(0, 0x7F);
    case MU_DTYPE_FLOAT8_E4M3FNUZ:
    case MU_DTYPE_FLOAT8_E5M2FNUZ:
        return mu_special_nan8(0x7F, 0xFF); /* 0x80 alone */
    case MU_DTYPE_FLOAT8_E8M0FNU:
        return mu_special_nan8(0, 0xFF);
    default:
        return none;
    }
}

#endif
