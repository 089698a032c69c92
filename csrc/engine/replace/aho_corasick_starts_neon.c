#include "replace/aho_corasick_starts.h"

#include <arm_neon.h>

enum { BLOCK = 16 };

/* Each table of the starts, in a register. */
struct tables {
    uint8x16_t low[MU_AC_STARTS_BYTES], high[MU_AC_STARTS_BYTES];
};

static inline struct tables load_tables(const struct mu_ac_starts *starts) {
    struct tables tables;
    for (int i = 0; i < MU_AC_STARTS_BYTES; i++) {
        tables.low[i] = vld1q_u8(starts->low[i]);
        tables.high[i] = vld1q_u8(starts->high[i]);
    }
    return tables;
}

/* The buckets of each byte, where it stands `place` bytes into a pattern. */
static inline uint8x16_t buckets_of(const struct tables *tables, uint8x16_t bytes, int place) {
    uint8x16_t low = vandq_u8(bytes, vdupq_n_u8(15)), high = vshrq_n_u8(bytes, 4);
    return vandq_u8(vqtbl1q_u8(tables->low[place], low), vqtbl1q_u8(tables->high[place], high));
}

/* Not zero where a pattern may begin. */
static inline uint8x16_t starts_in(const struct tables *tables, const unsigned char *block) {
    uint8x16_t common = buckets_of(tables, vld1q_u8(block), 0);
    for (int i = 1; i < MU_AC_STARTS_BYTES; i++) {
        common = vandq_u8(common, buckets_of(tables, vld1q_u8(block + i), i));
    }
    return common;
}

static inline uint8x16_t between(uint8x16_t bytes, char first, char last) {
    return vcleq_u8(vsubq_u8(bytes, vdupq_n_u8((uint8_t)first)),
                    vdupq_n_u8((uint8_t)(last - first)));
}

/* All ones where a byte is one of a name. */
static inline uint8x16_t names_in(const unsigned char *block) {
    uint8x16_t bytes = vld1q_u8(block);
    uint8x16_t letters = between(vorrq_u8(bytes, vdupq_n_u8(' ')), 'a', 'z');
    uint8x16_t others = vorrq_u8(between(bytes, '0', '9'), vceqq_u8(bytes, vdupq_n_u8('_')));
    return vorrq_u8(letters, others);
}

/* Four bits for each byte, the first byte's are the lowest: ones where the byte has a bit set. */
static inline uint64_t mask_of(uint8x16_t bytes) {
    uint8x8_t mask = vshrn_n_u16(vreinterpretq_u16_u8(vtstq_u8(bytes, bytes)), 4);
    return vget_lane_u64(vreinterpret_u64_u8(mask), 0);
}

static inline size_t first_in(uint64_t mask) {
    return (size_t)__builtin_ctzll(mask) / 4;
}

size_t mu_ac_next_start_neon(const struct mu_ac_starts *starts, const unsigned char *text,
                             size_t at, size_t limit) {
    const struct tables tables = load_tables(starts);
    bool inside = at > 0 && starts->is_name[text[at - 1]];
    uint8x16_t names = vdupq_n_u8(inside ? 0xFF : 0);
    for (; limit - at >= BLOCK + MU_AC_STARTS_BYTES - 1; at += BLOCK) {
        uint8x16_t found = starts_in(&tables, text + at);
        if (starts->whole) {
            uint8x16_t before = names;
            names = names_in(text + at);
            found = vbicq_u8(found, vandq_u8(names, vextq_u8(before, names, BLOCK - 1)));
        }
        uint64_t mask = mask_of(found);
        if (mask != 0) {
            return at + first_in(mask);
        }
    }
    return mu_ac_next_start_portable(starts, text, at, limit);
}

size_t mu_ac_name_end_neon(const unsigned char *text, size_t at, size_t limit) {
    for (; limit - at >= BLOCK; at += BLOCK) {
        uint64_t others = ~mask_of(names_in(text + at));
        if (others != 0) {
            return at + first_in(others);
        }
    }
    return mu_ac_name_end_portable(text, at, limit);
}
