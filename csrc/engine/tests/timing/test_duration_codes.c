/* Durations as codes: exact where they can be, rounded as promised, refused off the scale. */
#include "timing/duration_codes.h"

#include <math.h>
#include <stdlib.h>

#include "tests/check.h"

enum { MANY = 4000 };

/* What is lost at most, as a share, of durations spread from `low` to `high`. */
static double worst(int64_t low, int64_t high) {
    static int64_t ns[MANY];
    static uint16_t codes[MANY];
    static double back[MANY];
    const int64_t count = MANY;
    struct mu_coded_names names = {1, &count, &low, &high};
    for (int i = 0; i < MANY; i++) {
        double spread = (double)low * pow((double)high / (double)low, (double)i / MANY);
        ns[i] = (int64_t)spread < low ? low : (int64_t)spread;
    }
    ns[MANY - 1] = high;
    CHECK(mu_durations_encode(&names, ns, codes));
    CHECK(mu_durations_decode(&names, codes, back));
    double most = 0;
    for (int i = 0; i < MANY; i++) {
        most = fmax(most, fabs(back[i] - (double)ns[i]) / (double)ns[i]);
        CHECK(i == 0 || codes[i] >= codes[i - 1] || i == MANY - 1);
    }
    CHECK_INT(codes[0], 0);
    return most;
}

static void test_rounding(void) {
    CHECK(worst(1, 1) == 0);
    CHECK(worst(1, 65536) == 0);
    CHECK(worst(1000000000, 1000065535) == 0);
    CHECK(worst(1000000, 15999999) <= 0x1p-15);
    CHECK(worst(1000, 65535999) <= 0x1p-13);
    CHECK(worst(1, INT64_C(1) << 62) <= 0x1p-11);
}

static const int64_t values[] = {2, 0, 3};
static const int64_t shortest[] = {0, 5, 1000000};
static const int64_t longest[] = {7, 5, 9000000};

static void test_several_names(void) {
    struct mu_coded_names names = {3, values, shortest, longest};
    const int64_t ns[] = {7, 0, 9000000, 1000000, 3000000};
    uint16_t codes[5];
    double back[5];
    CHECK(mu_coded_names_agree(&names, 5));
    CHECK(mu_durations_encode(&names, ns, codes));
    CHECK(mu_durations_decode(&names, codes, back));
    CHECK(back[0] == 7 && back[1] == 0);
    CHECK(back[2] <= 9e6 && back[2] > 9e6 - 300);
    CHECK(back[3] >= 1e6 && back[3] < 1e6 + 40);
    CHECK(fabs(back[4] - 3e6) < 100);

    const int64_t outside[] = {8, 0, 9000000, 1000000, 3000000};
    CHECK(!mu_durations_encode(&names, outside, codes));
    codes[0] = 8;
    CHECK(!mu_durations_decode(&names, codes, back));
    CHECK(back[0] == 7);
}

static void test_lies(void) {
    struct mu_coded_names right = {3, values, shortest, longest};
    CHECK(!mu_coded_names_agree(&right, 4));
    CHECK(!mu_coded_names_agree(&right, 6));

    struct mu_coded_names names = right;
    names.longest = shortest;
    names.shortest = longest;
    CHECK(!mu_coded_names_agree(&names, 5));

    const int64_t negative[] = {2, -1, 4};
    names = right;
    names.values = negative;
    CHECK(!mu_coded_names_agree(&names, 5));
    names = right;
    names.shortest = negative;
    CHECK(!mu_coded_names_agree(&names, 5));

    const int64_t huge[] = {INT64_MAX, INT64_MAX, 7};
    names = right;
    names.values = huge;
    CHECK(!mu_coded_names_agree(&names, 5));
}

int main(void) {
    test_rounding();
    test_several_names();
    test_lies();
    return check_report();
}
