#include "cuda/color.h"

#include "base/digits.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

static const uint32_t OPAQUE = 0xff000000u;

struct color_name {
    const char *name;
    uint32_t rgb;
};

/* The sixteen of HTML 4 and CSS 2.1 first; the others have their CSS values too. */
static const struct color_name color_names[] = {
    {"aqua", 0x00ffff},   {"black", 0x000000},     {"blue", 0x0000ff},   {"fuchsia", 0xff00ff},
    {"gray", 0x808080},   {"green", 0x008000},     {"lime", 0x00ff00},   {"maroon", 0x800000},
    {"navy", 0x000080},   {"olive", 0x808000},     {"purple", 0x800080}, {"red", 0xff0000},
    {"silver", 0xc0c0c0}, {"teal", 0x008080},      {"white", 0xffffff},  {"yellow", 0xffff00},
    {"brown", 0xa52a2a},  {"coral", 0xff7f50},     {"cyan", 0x00ffff},   {"darkgreen", 0x006400},
    {"gold", 0xffd700},   {"grey", 0x808080},      {"indigo", 0x4b0082}, {"magenta", 0xff00ff},
    {"orange", 0xffa500}, {"pink", 0xffc0cb},      {"salmon", 0xfa8072}, {"skyblue", 0x87ceeb},
    {"tomato", 0xff6347}, {"turquoise", 0x40e0d0}, {"violet", 0xee82ee},
};

enum { COLOR_NAME_COUNT = sizeof(color_names) / sizeof(color_names[0]) };

static bool find_name(const char *text, size_t length, uint32_t *argb) {
    for (size_t i = 0; i < COLOR_NAME_COUNT; i++) {
        const char *name = color_names[i].name;
        if (strlen(name) == length && strncasecmp(name, text, length) == 0) {
            *argb = OPAQUE | color_names[i].rgb;
            return true;
        }
    }
    return false;
}

static bool parse_hex(const char *digits, size_t length, uint32_t *argb) {
    uint32_t rgb = 0;
    for (size_t i = 0; i < length; i++) {
        int digit = mu_digits_hex(digits[i]);
        if (digit < 0) {
            return false;
        }
        uint32_t value = (uint32_t)digit;
        rgb = length == 3 ? rgb << 8 | value << 4 | value : rgb << 4 | value;
    }
    *argb = OPAQUE | rgb;
    return true;
}

int mu_color_parse(const char *text, size_t length, uint32_t *argb, struct mu_error *err) {
    if ((length == 4 || length == 7) && text[0] == '#' && parse_hex(text + 1, length - 1, argb)) {
        return MU_OK;
    }
    if (find_name(text, length, argb)) {
        return MU_OK;
    }
    int shown = length < 64 ? (int)length : 64;
    return mu_error_set(err, MU_ERR_ARGUMENT,
                        "color must be a name (red, green, blue, yellow, orange, purple, ...), "
                        "'#rgb', '#rrggbb' or an int, not '%.*s'",
                        shown, text);
}

int mu_color_from_int(int64_t number, uint32_t *argb, struct mu_error *err) {
    if (number < 0 || number > UINT32_MAX) {
        return mu_error_set(err, MU_ERR_ARGUMENT,
                            "color must be from 0 to 0xffffff (RGB) or to 0xffffffff (ARGB), "
                            "not %" PRId64,
                            number);
    }
    uint32_t word = (uint32_t)number;
    *argb = word <= 0xffffff ? OPAQUE | word : word;
    return MU_OK;
}
