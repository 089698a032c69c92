/* Numbers of the metadata column, of any length, in the middle and at the end. */
#include "csv/metadata.h"

#include "tests/check.h"

#include <stdlib.h>

enum { DIGITS_MAX = 18 };

/* In memory of exactly its length, so that reading beyond it is seen. */
static struct mu_metadata parsed(const char *text) {
    struct mu_metadata metadata;
    size_t length = strlen(text);
    char *copy = malloc(length);
    CHECK(copy != NULL);
    if (copy != NULL) {
        memcpy(copy, text, length);
    }
    mu_metadata_parse((struct mu_span){copy, copy == NULL ? 0 : length}, &metadata);
    free(copy);
    return metadata;
}

static void test_numbers_of_any_length(void) {
    const char *digits = "90817263544536271809";
    for (int count = 1; count <= 20; count++) {
        char text[128];
        int64_t wanted = -1; /* too long to be one of ours */
        if (count <= DIGITS_MAX) {
            snprintf(text, sizeof(text), "%.*s", count, digits);
            wanted = strtoll(text, NULL, 10);
        }
        snprintf(text, sizeof(text), "node_id=%.*s,parent_id=%.*s,tid=%.*s", count, digits, count,
                 digits, count, digits);
        struct mu_metadata metadata = parsed(text);
        CHECK_INT(metadata.node, wanted);
        CHECK_INT(metadata.parent, wanted);
        CHECK_INT(metadata.tid, wanted);
    }
}

static void test_what_is_no_number(void) {
    const char *const texts[] = {"", "x", "12345678x", "123456789012x", "-1", "1.5", "1234567 "};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        char text[128];
        snprintf(text, sizeof(text), "node_id=%s,tid=7", texts[i]);
        struct mu_metadata metadata = parsed(text);
        CHECK_INT(metadata.node, -1);
        CHECK_INT(metadata.tid, 7);
    }
}

int main(void) {
    test_numbers_of_any_length();
    test_what_is_no_number();
    return check_report();
}
