#include "timing/duration_codes.h"

enum { BITS_MAX = 62, CODE_MAX = UINT16_MAX };

struct scale {
    unsigned bits;
    uint64_t first; /* the shortest duration's step */
    uint64_t last;  /* the longest one's step, relative to `first` */
};

static inline uint64_t step_of(uint64_t ns, unsigned bits) {
    if (ns >> bits == 0) {
        return ns;
    }
    unsigned octave = 63u - (unsigned)__builtin_clzll(ns) - bits;
    uint64_t below = (ns >> octave) - (UINT64_C(1) << bits);
    return ((uint64_t)(octave + 1) << bits) + below;
}

static inline double middle_of(uint64_t step, unsigned bits) {
    uint64_t octave = step >> bits;
    if (octave <= 1) {
        return (double)step; /* one nanosecond wide */
    }
    uint64_t width = UINT64_C(1) << (octave - 1);
    uint64_t begins = (step & ((UINT64_C(1) << bits) - 1)) + (UINT64_C(1) << bits);
    return ((double)begins + 0.5) * (double)width;
}

static inline double clamped(double ns, double low, double high) {
    return ns < low ? low : ns > high ? high : ns;
}

/* With ten bits, all durations of 64 bits are within 65,536 steps. */
static struct scale scale_of(int64_t shortest, int64_t longest) {
    unsigned bits = BITS_MAX;
    while (step_of((uint64_t)longest, bits) - step_of((uint64_t)shortest, bits) > CODE_MAX) {
        bits--;
    }
    uint64_t first = step_of((uint64_t)shortest, bits);
    return (struct scale){bits, first, step_of((uint64_t)longest, bits) - first};
}

bool mu_coded_names_agree(const struct mu_coded_names *names, size_t total) {
    for (size_t i = 0; i < names->count; i++) {
        if (names->values[i] < 0 || (uint64_t)names->values[i] > total || names->shortest[i] < 0 ||
            names->longest[i] < names->shortest[i]) {
            return false;
        }
        total -= (size_t)names->values[i];
    }
    return total == 0;
}

bool mu_durations_encode(const struct mu_coded_names *names, const int64_t *ns, uint16_t *codes) {
    bool inside = true;
    for (size_t i = 0; i < names->count; i++) {
        int64_t low = names->shortest[i];
        int64_t high = names->longest[i];
        struct scale scale = scale_of(low, high);
        for (const int64_t *end = ns + names->values[i]; ns < end; ns++) {
            inside &= *ns >= low && *ns <= high;
            *codes++ = (uint16_t)(step_of((uint64_t)*ns, scale.bits) - scale.first);
        }
    }
    return inside;
}

bool mu_durations_decode(const struct mu_coded_names *names, const uint16_t *codes, double *ns) {
    bool inside = true;
    for (size_t i = 0; i < names->count; i++) {
        double low = (double)names->shortest[i];
        double high = (double)names->longest[i];
        struct scale scale = scale_of(names->shortest[i], names->longest[i]);
        for (const uint16_t *end = codes + names->values[i]; codes < end; codes++) {
            inside &= *codes <= scale.last;
            *ns++ = clamped(middle_of(scale.first + *codes, scale.bits), low, high);
        }
    }
    return inside;
}
