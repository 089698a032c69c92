#include "base/digits.h"

/* 1 when the sum is at most `limit`. */
static int append_digit(uint64_t *value, unsigned digit, uint64_t limit) {
    if (*value > (limit - digit) / 10) {
        return 0;
    }
    *value = *value * 10 + digit;
    return 1;
}

int mu_digits_parse(const char *text, size_t length, int scale, int64_t *value) {
    const char *end = text + length;
    int negative = length > 0 && *text == '-';
    text += negative;
    const uint64_t limit = (uint64_t)INT64_MAX + (negative ? 1 : 0);
    uint64_t sum = 0;
    int digits = 0, decimals = -1; /* -1: no point yet */
    for (; text < end; text++) {
        unsigned digit = (unsigned char)*text - '0';
        if (*text == '.' && decimals < 0) {
            decimals = 0;
            continue;
        }
        if (digit > 9) {
            return 0;
        }
        digits = 1;
        if (decimals >= scale) {
            continue;
        }
        if (!append_digit(&sum, digit, limit)) {
            return 0;
        }
        decimals += decimals >= 0;
    }
    for (int i = decimals < 0 ? 0 : decimals; i < scale; i++) {
        if (!append_digit(&sum, 0, limit)) {
            return 0;
        }
    }
    if (digits) {
        *value = (int64_t)(negative ? 0 - sum : sum);
    }
    return digits;
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__

/* Sets `*ok` to 0 when one of the eight bytes is not a digit. */
static uint64_t eight_digits(const char *text, int *ok) {
    uint64_t word;
    memcpy(&word, text, sizeof(word));
    *ok &= ((word & 0xF0F0F0F0F0F0F0F0u) |
            (((word + 0x0606060606060606u) & 0xF0F0F0F0F0F0F0F0u) >> 4)) == 0x3333333333333333u;
    return mu_digits_of_word(word);
}

int mu_digits_parse_seconds(const char *text, size_t length, int64_t *value_ns) {
    enum { SECONDS = 10, ALL = 20 };
    if (length != ALL || text[SECONDS] != '.') {
        return mu_digits_parse(text, length, 9, value_ns);
    }
    unsigned tens = (unsigned char)text[8] - '0', ones = (unsigned char)text[9] - '0';
    unsigned last = (unsigned char)text[19] - '0';
    int ok = tens <= 9 && ones <= 9 && last <= 9;
    uint64_t seconds = eight_digits(text, &ok) * 100 + tens * 10 + ones;
    uint64_t decimals = eight_digits(text + SECONDS + 1, &ok) * 10 + last;
    if (!ok || seconds > 9223372035u) { /* the last whole second that fits */
        return mu_digits_parse(text, length, 9, value_ns);
    }
    *value_ns = (int64_t)(seconds * 1000000000u + decimals);
    return 1;
}

#else

int mu_digits_parse_seconds(const char *text, size_t length, int64_t *value_ns) {
    return mu_digits_parse(text, length, 9, value_ns);
}

#endif

/* The eight decimal digits of a number below 10^8, the first in the lowest byte; without '0'.
 * Method: P. Khuong, "How to print integers really fast", 2017. */
static uint64_t digits_of(uint32_t value) {
    uint64_t halves = value / 10000 | (uint64_t)(value % 10000) << 32;
    uint64_t hundreds = (halves * 10486 >> 20) & 0x0000007F0000007Fu;
    uint64_t pairs = ((halves - 100 * hundreds) << 16) + hundreds;
    uint64_t tens = (pairs * 103 >> 10) & 0x000F000F000F000Fu;
    return tens + ((pairs - 10 * tens) << 8);
}

static char *put_bytes(char *out, uint64_t bytes, unsigned count) {
    for (unsigned i = 0; i < 8; i++) { /* one store on a little-endian machine */
        out[i] = (char)(bytes >> 8 * i);
    }
    return out + count;
}

static const uint64_t zeros = 0x3030303030303030u;

/* Eight bytes are written, the digits without leading zeros are kept. */
static char *put_below_1e8(char *out, uint32_t value) {
    uint64_t digits = digits_of(value);
    unsigned leading = digits == 0 ? 7 : (unsigned)__builtin_ctzll(digits) / 8;
    return put_bytes(out, (digits | zeros) >> 8 * leading, 8 - leading);
}

char *mu_digits_put_u64(char *out, uint64_t value) {
    const uint32_t split = 100000000;
    if (value < split) {
        return put_below_1e8(out, (uint32_t)value);
    }
    uint64_t high = value / split;
    out = high < split ? put_below_1e8(out, (uint32_t)high) : mu_digits_put_u64(out, high);
    return put_bytes(out, digits_of((uint32_t)(value % split)) | zeros, 8);
}

char *mu_digits_put_i64(char *out, int64_t value) {
    if (value < 0) {
        *out++ = '-';
        return mu_digits_put_u64(out, 0 - (uint64_t)value);
    }
    return mu_digits_put_u64(out, (uint64_t)value);
}

char *mu_digits_put_us(char *out, int64_t ns) {
    enum { WHOLE = 5, DECIMALS = 3 }; /* of the last eight digits */
    const uint32_t split = 100000000;
    uint64_t size = ns < 0 ? 0 - (uint64_t)ns : (uint64_t)ns;
    if (ns < 0) {
        *out++ = '-';
    }
    uint64_t digits = digits_of((uint32_t)(size % split));
    unsigned leading = 0;
    if (size >= split) {
        out = mu_digits_put_u64(out, size / split);
    } else { /* the last whole digit stays, be it 0 */
        leading = (unsigned)__builtin_ctzll(digits | (uint64_t)1 << 8 * (WHOLE - 1)) / 8;
    }
    digits |= zeros;
    out = put_bytes(out, digits >> 8 * leading, WHOLE - leading);
    return put_bytes(out, '.' | digits >> 8 * WHOLE << 8, 1 + DECIMALS);
}
