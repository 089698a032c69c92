#include "cuda/color.h"
#include "tests/check.h"

static uint32_t parse(const char *text) {
    uint32_t argb = 1;
    CHECK_INT(mu_color_parse(text, strlen(text), &argb, NULL), MU_OK);
    return argb;
}

static void test_names(void) {
    CHECK_INT(parse("blue"), 0xff0000ff);
    CHECK_INT(parse("Red"), 0xffff0000);
    CHECK_INT(parse("GREEN"), 0xff008000);
    CHECK_INT(parse("grey"), parse("gray"));
}

static void test_hex(void) {
    CHECK_INT(parse("#1a2B3c"), 0xff1a2b3c);
    CHECK_INT(parse("#f0A"), 0xffff00aa);
    CHECK_INT(parse("#000000"), 0xff000000);
}

static void test_ints(void) {
    uint32_t argb;
    CHECK_INT(mu_color_from_int(0x123456, &argb, NULL), MU_OK);
    CHECK_INT(argb, 0xff123456);
    CHECK_INT(mu_color_from_int(0, &argb, NULL), MU_OK);
    CHECK_INT(argb, 0xff000000);
    CHECK_INT(mu_color_from_int(0x80123456, &argb, NULL), MU_OK);
    CHECK_INT(argb, 0x80123456);
}

static void test_refusals(void) {
    struct mu_error err;
    uint32_t argb = 7;
    const char *const wrong[] = {"", "#", "#12", "#12345", "#12345g", "#1234567", "blu", "bluee"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CHECK_INT(mu_color_parse(wrong[i], strlen(wrong[i]), &argb, &err), MU_ERR_ARGUMENT);
    }
    CHECK_INT(argb, 7);
    CHECK_STR(err.message, "color must be a name (red, green, blue, yellow, orange, purple, ...), "
                           "'#rgb', '#rrggbb' or an int, not 'bluee'");
    CHECK_INT(mu_color_from_int(-1, &argb, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message,
              "color must be from 0 to 0xffffff (RGB) or to 0xffffffff (ARGB), not -1");
    CHECK_INT(mu_color_from_int(0x100000000, &argb, NULL), MU_ERR_ARGUMENT);
}

int main(void) {
    test_names();
    test_hex();
    test_ints();
    test_refusals();
    return check_report();
}
