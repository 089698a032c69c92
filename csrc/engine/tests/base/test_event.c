#include "base/event.h"

#include "tests/check.h"

/* The numbers stand in journals and the names in CSVs, so both are fixed for good. */
static const struct {
    int type;
    const char *name;
} known[] = {
    {1, "START"},       {2, "END"},       {3, "INSTANT"},    {4, "COUNTER"},
    {5, "ASYNC_START"}, {6, "ASYNC_END"}, {7, "FLOW_START"}, {8, "FLOW_END"},
};

static void test_known(void) {
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        CHECK_STR(mu_event_name(known[i].type), known[i].name);
        CHECK_INT(mu_event_from_name(known[i].name, strlen(known[i].name)), known[i].type);
    }
}

static void test_unknown_numbers(void) {
    CHECK(mu_event_name(0) == NULL);
    CHECK(mu_event_name(-1) == NULL);
    CHECK(mu_event_name(9) == NULL);
    CHECK(mu_event_name(INT32_MAX) == NULL);
}

static void test_unknown_names(void) {
    CHECK_INT(mu_event_from_name("", 0), 0);
    CHECK_INT(mu_event_from_name("start", 5), 0);
    CHECK_INT(mu_event_from_name("STAR", 4), 0);
    CHECK_INT(mu_event_from_name("START ", 6), 0);
    CHECK_INT(mu_event_from_name("START\0END", 9), 0);
}

static void test_name_without_end(void) {
    CHECK_INT(mu_event_from_name("END,1.5", 3), MU_EVENT_END);
}

int main(void) {
    test_known();
    test_unknown_numbers();
    test_unknown_names();
    test_name_without_end();
    return check_report();
}
