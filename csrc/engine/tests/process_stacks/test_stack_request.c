/* Requests for stacks in a control file: which are read, and what is passed over. */
#include "process_stacks/stack_request.h"

#include <stdlib.h>

#include "tests/check.h"

struct found {
    int count;
    struct mu_stack_request last;
};

static void keep(void *context, const struct mu_stack_request *request) {
    struct found *found = context;
    found->count++;
    found->last = *request;
}

static struct found find(const char *text, int rank) {
    struct found found = {0};
    size_t length = strlen(text);
    char *bytes = malloc(length + 1); /* of their exact size, so that ASan sees a step too far */
    memcpy(bytes, text, length);
    mu_stack_requests(bytes, length, rank, keep, &found);
    free(bytes);
    return found;
}

static void test_found(void) {
    struct found found =
        find("{\"my_utils\": \"control\", \"version\": 1,\n \"requests\": [{\"id\": "
             "\"a]\\\"\", \"window\": {\"x\": [1, -2.5e3, null]}}],\n"
             " \"stacks\": [\"d-1 * 0 100\", \"p.2 0,3-7 10000 50\"]}\n",
             5);
    CHECK_INT(found.count, 2);
    CHECK_STR(found.last.id, "p.2");
    CHECK_INT(found.last.milliseconds, 10000);
    CHECK_INT(found.last.hz, 50);
}

static void check_rank(const char *ranks, int rank, int wanted) {
    char text[128];
    snprintf(text, sizeof(text), "{\"stacks\":[\"a %s 0 1\"]}", ranks);
    CHECK_INT(find(text, rank).count, wanted);
}

static void test_ranks(void) {
    check_rank("*", 12, 1);
    check_rank("3", 3, 1);
    check_rank("3", 30, 0);
    check_rank("0,3-7,9", 7, 1);
    check_rank("0,3-7,9", 8, 0);
    check_rank("0,3-7,9", 9, 1);
    check_rank("3-", 3, 0);
    check_rank("-3", 3, 0);
    check_rank("3;4", 4, 0);
    check_rank("99999999999", 3, 0);
}

static void test_passed_over(void) {
    static const char *const texts[] = {
        "",
        "{",
        "{}",
        "[]",
        "{\"stacks\"",
        "{\"stacks\":",
        "{\"stacks\":[",
        "{\"stacks\":[\"",
        "{\"stacks\":[\"a * 0 1",
        "{\"stacks\":[1]}",
        "{\"stacks\":\"a * 0 1\"}",
        "{\"stacks\":[\"a * 0\"]}",
        "{\"stacks\":[\"a * 0 0\"]}",
        "{\"stacks\":[\"a * 0 1001\"]}",
        "{\"stacks\":[\"a * 600001 1\"]}",
        "{\"stacks\":[\"../a * 0 1\"]}",
        "{\"stacks\":[\".a * 0 1\"]}",
        "{\"stacks\":[\" \"]}",
        "{\"x\\\"stacks\":[\"a * 0 1\"]}",
        "{\"x\":{\"stacks\":[\"a * 0 1\"]}}",
        "{\"x\":\"\\",
        "{\"x\":[[[}",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        CHECK_INT(find(texts[i], 0).count, 0);
    }
}

/* However a good file is cut, nothing is read beyond its end. */
static void test_cut(void) {
    static const char whole[] = "{\"a\": [{\"b\": \"\\\"\"}, 1.5], \"stacks\": [\"a * 0 1\"]}";
    for (size_t length = 0; length < sizeof(whole); length++) {
        char text[sizeof(whole)];
        memcpy(text, whole, length);
        text[length] = '\0';
        CHECK(find(text, 0).count <= 1);
    }
    CHECK_INT(find(whole, 0).count, 1);
}

static bool alone(const char *text) {
    size_t length = strlen(text);
    char *bytes = malloc(length + 1);
    memcpy(bytes, text, length);
    bool found = mu_stack_requests_alone(bytes, length);
    free(bytes);
    return found;
}

static void test_alone(void) {
    CHECK(alone("{\"version\": 1,\n \"requests\": [ ],\n \"stacks\": [\"a * 0 1\"]}"));
    CHECK(alone("{\"stacks\":[\"a * 0 1\"],\"requests\":[]}"));
    CHECK(!alone("{\"requests\": [{\"id\": \"a\"}], \"stacks\": [\"a * 0 1\"]}"));
    CHECK(!alone("{\"requests\": []}"));
    CHECK(!alone("{\"stacks\": [\"a * 0 1\"]}"));
    CHECK(!alone("{\"requests\": [], \"stacks\": 1}"));
    CHECK(!alone("{\"requests\": [, \"stacks\": [\"a * 0 1\"]}"));
    CHECK(!alone(""));
}

int main(void) {
    test_alone();
    test_found();
    test_ranks();
    test_passed_over();
    test_cut();
    return check_report();
}
