/* Texts that are UTF-8 and such that are not, against the rules of RFC 3629 written out here. */
#include "base/utf8.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/check.h"

enum { LONGEST = 4, CODE_POINTS = 0x110000, ESCAPE_BYTES = 4 };

/* With as many bytes as asked for, whether or not that many are right. */
static void encode(uint32_t code, size_t length, unsigned char *out) {
    static const unsigned char marks[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = length - 1; i > 0; i--) {
        out[i] = (unsigned char)(0x80 | (code & 0x3F));
        code >>= 6;
    }
    out[0] = (unsigned char)(marks[length] | code);
}

static size_t length_of(uint32_t code) {
    return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
}

/* Whether it comes back as it is; else each of its bytes is escaped. */
static bool is_clean(const unsigned char *text, size_t length) {
    char out[LONGEST * ESCAPE_BYTES];
    size_t bad = 0;
    size_t written = mu_utf8_clean(out, (const char *)text, length, &bad);
    if (bad == 0) {
        CHECK_INT(written, length);
        CHECK_BYTES(out, text, length);
    } else {
        CHECK_INT(bad, length);
        CHECK_INT(written, ESCAPE_BYTES * length);
    }
    return bad == 0;
}

static void test_each_code_point(void) {
    int wrong = 0;
    for (uint32_t code = 0; code < CODE_POINTS; code++) {
        unsigned char text[LONGEST];
        bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
        encode(code, length_of(code), text);
        wrong += is_clean(text, length_of(code)) == is_surrogate;
    }
    CHECK_INT(wrong, 0);
}

static void test_too_long_forms(void) {
    int wrong = 0;
    for (uint32_t code = 0; code < 0x10000; code++) {
        for (size_t length = length_of(code) + 1; length <= LONGEST; length++) {
            unsigned char text[LONGEST];
            encode(code, length, text);
            wrong += is_clean(text, length);
        }
    }
    CHECK_INT(wrong, 0);
}

static void test_beyond_unicode(void) {
    unsigned char text[LONGEST];
    encode(CODE_POINTS, LONGEST, text);
    CHECK(!is_clean(text, LONGEST));
    encode(0x1FFFFF, LONGEST, text);
    CHECK(!is_clean(text, LONGEST));
}

static void test_cut_off(void) {
    static const uint32_t last_of_length[] = {0x7FF, 0xFFFD, 0x1F600};
    for (size_t i = 0; i < 3; i++) {
        unsigned char text[LONGEST];
        size_t length = length_of(last_of_length[i]);
        encode(last_of_length[i], length, text);
        for (size_t kept = 1; kept < length; kept++) {
            CHECK(!is_clean(text, kept));
        }
    }
}

int main(void) {
    test_each_code_point();
    test_too_long_forms();
    test_beyond_unicode();
    test_cut_off();
    return check_report();
}
