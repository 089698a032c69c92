#include "replace/aho_corasick_starts.h"

#include "base/cpu.h"

void mu_ac_starts_init(struct mu_ac_starts *starts, bool whole) {
    *starts = (struct mu_ac_starts){.whole = whole};
    for (int byte = 0; byte < 256; byte++) {
        starts->is_name[byte] = mu_is_name_byte(byte);
    }
}

void mu_ac_starts_add(struct mu_ac_starts *starts, const char *bytes, size_t length) {
    uint8_t bucket = (uint8_t)(1 << ((unsigned char)bytes[0] % 8));
    for (size_t i = 0; i < MU_AC_STARTS_BYTES; i++) {
        for (int byte = 0; byte < 256; byte++) {
            if (i >= length || byte == (unsigned char)bytes[i]) {
                starts->buckets[i][byte] |= bucket;
                starts->low[i][byte % 16] |= bucket;
                starts->high[i][byte / 16] |= bucket;
            }
        }
    }
}

static bool may_begin(const struct mu_ac_starts *starts, const unsigned char *text, size_t at,
                      size_t limit) {
    uint8_t buckets = starts->buckets[0][text[at]];
    for (size_t i = 1; i < MU_AC_STARTS_BYTES && at + i < limit; i++) {
        buckets &= starts->buckets[i][text[at + i]];
    }
    return buckets != 0;
}

size_t mu_ac_next_start_portable(const struct mu_ac_starts *starts, const unsigned char *text,
                                 size_t at, size_t limit) {
    bool inside = starts->whole && at > 0 && starts->is_name[text[at - 1]];
    for (; at < limit; at++) {
        bool is_name = starts->is_name[text[at]];
        if (!(inside && is_name) && may_begin(starts, text, at, limit)) {
            break;
        }
        inside = starts->whole && is_name;
    }
    return at;
}

size_t mu_ac_name_end_portable(const unsigned char *text, size_t at, size_t limit) {
    while (at < limit && mu_is_name_byte(text[at])) {
        at++;
    }
    return at;
}

mu_ac_next_start *mu_ac_next_start_best(void) {
#if defined(__x86_64__)
    if (mu_cpu_has(MU_CPU_AVX2)) {
        return mu_ac_next_start_avx2;
    }
#elif defined(__aarch64__)
    if (mu_cpu_has(MU_CPU_NEON)) {
        return mu_ac_next_start_neon;
    }
#endif
    return mu_ac_next_start_portable;
}

mu_ac_name_end *mu_ac_name_end_best(void) {
#if defined(__x86_64__)
    if (mu_cpu_has(MU_CPU_AVX2)) {
        return mu_ac_name_end_avx2;
    }
#elif defined(__aarch64__)
    if (mu_cpu_has(MU_CPU_NEON)) {
        return mu_ac_name_end_neon;
    }
#endif
    return mu_ac_name_end_portable;
}
