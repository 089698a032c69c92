/* Numbers in text, decimal unless said otherwise, to and from integers; nothing here goes through a
 * float.
 *
 * Parsing takes exactly the bytes given: a sign, digits, a point and digits. Exponents, spaces,
 * `inf` and `nan` are refused. Decimals beyond the scale are cut off towards zero.
 * No function touches more than MU_DIGITS_MAX bytes from where it starts to write.
 */
#ifndef MU_DIGITS_H
#define MU_DIGITS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MU_DIGITS_MAX = 40 };

/* `value` becomes the number times 10^scale (0 <= scale <= 18). 0 when it is not a number or does
 * not fit; `value` is then untouched. */
int mu_digits_parse(const char *text, size_t length, int scale, int64_t *value);

/* The usual Unix time, `1750000000.123456789`, is parsed eight digits at a time; all else as
 * mu_digits_parse with scale 9. */
int mu_digits_parse_seconds(const char *text, size_t length, int64_t *value_ns);

char *mu_digits_put_u64(char *out, uint64_t value);
char *mu_digits_put_i64(char *out, int64_t value);

/* Nanoseconds as microseconds with three decimals: 1500 is "1.500". */
char *mu_digits_put_us(char *out, int64_t ns);

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__

/* The value of eight decimal digits, each `0` to `9` or a NUL, the first in the lowest byte. Takes
 * three multiplications. Method: D. Lemire, "Quickly parsing eight digits", 2018. */
static inline uint64_t mu_digits_of_word(uint64_t word) {
    word = (word & 0x0F0F0F0F0F0F0F0Fu) * 2561 >> 8;
    word = (word & 0x00FF00FF00FF00FFu) * 6553601 >> 16;
    return (word & 0x0000FFFF0000FFFFu) * 42949672960001u >> 32;
}

/* How many of the eight bytes are digits, up to the first byte that is not. */
static inline unsigned mu_digits_in_word(uint64_t word) {
    uint64_t from_zero = word ^ 0x3030303030303030u; /* a digit is now 0 to 9 */
    uint64_t other = (from_zero | (from_zero + 0x0606060606060606u)) & 0xF0F0F0F0F0F0F0F0u;
    return other == 0 ? 8 : (unsigned)__builtin_ctzll(other) / 8;
}

/* The value of the `count` digits at `text`, -1 when they are not all digits. Eight bytes must be
 * readable there. */
static inline int64_t mu_digits_of_few(const char *text, size_t count) {
    uint64_t word;
    memcpy(&word, text, sizeof(word));
    if (count - 1 > 7 || mu_digits_in_word(word) < count) {
        return -1;
    }
    return (int64_t)mu_digits_of_word(word << 8 * (8 - count));
}

#endif

/* -1 when it is not a hexadecimal digit. */
static inline int mu_digits_hex(char digit) {
    if (digit >= '0' && digit <= '9') {
        return digit - '0';
    }
    char lower = (char)(digit | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* Parses a non-negative integer of at most 18 digits. Returns -1 for any other bytes. */
static inline int64_t mu_digits_small(const char *text, size_t length) {
    if (length - 1 > 17) {
        return -1;
    }
    int64_t value = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned digit = (unsigned char)text[i] - '0';
        if (digit > 9) {
            return -1;
        }
        value = value * 10 + digit;
    }
    return value;
}

#endif
