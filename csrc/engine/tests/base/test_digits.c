/* Decimal numbers in text to integers and back. */
#include "base/digits.h"

#include "tests/check.h"

static void parses(const char *text, int scale, int64_t want) {
    int64_t value = -1;
    CHECK(mu_digits_parse(text, strlen(text), scale, &value));
    CHECK_INT(value, want);
}

static void refuses(const char *text, int scale) {
    int64_t value = 7;
    CHECK(!mu_digits_parse(text, strlen(text), scale, &value));
    CHECK_INT(value, 7);
}

static void test_parse(void) {
    parses("0", 0, 0);
    parses("-12", 0, -12);
    parses("1.5", 9, 1500000000);
    parses("-0.000000001", 9, -1);
    parses("1.9999999999", 9, 1999999999);
    parses("5.", 3, 5000);
    parses(".25", 6, 250000);
    parses("9223372036.854775807", 9, INT64_MAX);
    parses("-9223372036854775808", 0, INT64_MIN);
    refuses("9223372036.854775808", 9);
    refuses("", 9);
    refuses("-", 9);
    refuses(".", 9);
    refuses("1e9", 9);
    refuses("inf", 9);
    refuses("1.2.3", 9);
    refuses(" 1", 9);
}

static void test_seconds(void) {
    static const char *const texts[] = {"1750000000.123456789", "1750000000.1234567890",
                                        "9999999999.000000000", "17500000x0.123456789",
                                        "1750000000.12345678x", "0175000000.000000001"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        int64_t fast = 0, slow = 0;
        int fast_ok = mu_digits_parse_seconds(texts[i], strlen(texts[i]), &fast);
        int slow_ok = mu_digits_parse(texts[i], strlen(texts[i]), 9, &slow);
        CHECK_INT(fast_ok, slow_ok);
        CHECK_INT(fast, slow);
    }
}

static void puts_us(int64_t ns, const char *want) {
    char text[MU_DIGITS_MAX + 1];
    *mu_digits_put_us(text, ns) = 0;
    CHECK_STR(text, want);
}

static void test_put(void) {
    char text[MU_DIGITS_MAX + 1], want[MU_DIGITS_MAX + 1];
    uint64_t value = 1;
    for (int i = 0; i < 20; i++, value = value * 10 + (uint64_t)i % 10) {
        *mu_digits_put_u64(text, value) = 0;
        snprintf(want, sizeof(want), "%" PRIu64, value);
        CHECK_STR(text, want);
    }
    *mu_digits_put_i64(text, INT64_MIN) = 0;
    CHECK_STR(text, "-9223372036854775808");
    puts_us(0, "0.000");
    puts_us(1, "0.001");
    puts_us(1500, "1.500");
    puts_us(-1, "-0.001");
    puts_us(1234567890123, "1234567890.123");
}

int main(void) {
    test_parse();
    test_seconds();
    test_put();
    return check_report();
}
