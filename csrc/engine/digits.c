#include "digits.h"

static const char digit_pairs[] = "00010203040506070809101112131415161718192021222324"
                                  "25262728293031323334353637383940414243444546474849"
                                  "50515253545556575859606162636465666768697071727374"
                                  "75767778798081828384858687888990919293949596979899";

/* 1 when the sum stays within int64. `value` is never negative. */
static int append_digit(uint64_t *value, unsigned digit) {
    if (*value > ((uint64_t)INT64_MAX - digit) / 10) {
        return 0;
    }
    *value = *value * 10 + digit;
    return 1;
}

int mu_digits_parse(const char *text, size_t length, int scale, int64_t *value) {
    const char *end = text + length;
    int negative = length > 0 && *text == '-';
    text += negative;
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
        if (!append_digit(&sum, digit)) {
            return 0;
        }
        decimals += decimals >= 0;
    }
    for (int i = decimals < 0 ? 0 : decimals; i < scale; i++) {
        if (!append_digit(&sum, 0)) {
            return 0;
        }
    }
    if (digits) {
        *value = negative ? -(int64_t)sum : (int64_t)sum;
    }
    return digits;
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__

/* Eight ASCII digits in three multiplications; 0 in `*ok` when one is no digit. Method: D. Lemire,
 * "Quickly parsing eight digits", 2018. */
static uint64_t eight_digits(const char *text, int *ok) {
    uint64_t word;
    memcpy(&word, text, sizeof(word));
    *ok &= ((word & 0xF0F0F0F0F0F0F0F0u) |
            (((word + 0x0606060606060606u) & 0xF0F0F0F0F0F0F0F0u) >> 4)) == 0x3333333333333333u;
    word = (word & 0x0F0F0F0F0F0F0F0Fu) * 2561 >> 8;
    word = (word & 0x00FF00FF00FF00FFu) * 6553601 >> 16;
    return (word & 0x0000FFFF0000FFFFu) * 42949672960001u >> 32;
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

static unsigned digit_count(uint64_t value) {
    unsigned count = 1;
    for (; value >= 10000; value /= 10000) {
        count += 4;
    }
    return count + (value >= 10) + (value >= 100) + (value >= 1000);
}

char *mu_digits_put_u64(char *out, uint64_t value) {
    unsigned count = digit_count(value);
    char *at = out + count;
    while (value >= 100) {
        at -= 2;
        memcpy(at, digit_pairs + value % 100 * 2, 2);
        value /= 100;
    }
    if (value >= 10) {
        memcpy(at - 2, digit_pairs + value * 2, 2);
    } else {
        at[-1] = (char)('0' + value);
    }
    return out + count;
}

char *mu_digits_put_i64(char *out, int64_t value) {
    if (value < 0) {
        *out++ = '-';
        return mu_digits_put_u64(out, 0 - (uint64_t)value);
    }
    return mu_digits_put_u64(out, (uint64_t)value);
}

char *mu_digits_put_us(char *out, int64_t ns) {
    uint64_t size = ns < 0 ? 0 - (uint64_t)ns : (uint64_t)ns;
    if (ns < 0) {
        *out++ = '-';
    }
    out = mu_digits_put_u64(out, size / 1000);
    unsigned rest = (unsigned)(size % 1000);
    out[0] = '.';
    out[1] = (char)('0' + rest / 100);
    memcpy(out + 2, digit_pairs + rest % 100 * 2, 2);
    return out + 4;
}
