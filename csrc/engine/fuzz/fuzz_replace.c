/* Rules and a text out of arbitrary bytes, against the plain way of replacing.
 *
 * The input is lines, the last of them the text with all that follows a NUL. A line is a rule:
 * its first byte says the tier (bit 0) and whether it watches (bit 1); `from` ends at a tab. A line
 * that begins with `w` makes the tier of its second byte one of whole names. */
#include "replace/replace.h"

#include "tests/replace/replace_oracle.h"

#include <stdint.h>

enum { RULES_MAX = 64, TEXT_MAX = 4096 };

struct fuzz_rules {
    struct mu_replace_rule rules[2][RULES_MAX];
    struct mu_replace_tier tiers[2];
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void add_rule(struct fuzz_rules *rules, const char *line, size_t length) {
    if (length < 2) {
        return;
    }
    struct mu_replace_tier *tier = &rules->tiers[line[0] & 1];
    if (line[0] == 'w') {
        rules->tiers[line[1] & 1].whole = true;
        return;
    }
    if (tier->count == RULES_MAX) {
        return;
    }
    const char *from = line + 1, *tab = memchr(from, '\t', length - 1);
    size_t from_length = tab == NULL ? length - 1 : (size_t)(tab - from);
    const char *to = tab == NULL ? from : tab + 1;
    size_t to_length = tab == NULL ? 0 : length - 2 - from_length;
    bool is_watch = line[0] & 2;
    rules->rules[line[0] & 1][tier->count++] =
        (struct mu_replace_rule){from, from_length, is_watch ? NULL : to, to_length};
}

static void check(const struct fuzz_rules *rules, const char *text, size_t length) {
    struct mu_replacer *replacer;
    struct mu_replaced out;
    if (mu_replacer_new(rules->tiers, 2, &replacer, NULL) != MU_OK) {
        return;
    }
    if (mu_replacer_run(replacer, text, length, &out, NULL) == MU_OK &&
        !oracle_agrees(rules->tiers, 2, text, length, &out)) {
        abort();
    }
    mu_replaced_reset(&out);
    mu_replacer_free(replacer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_rules rules = {0};
    rules.tiers[0].rules = rules.rules[0];
    rules.tiers[1].rules = rules.rules[1];
    const char *at = (const char *)data, *end = at + size;
    const char *nul = size == 0 ? NULL : memchr(at, '\0', size);
    const char *text = nul == NULL ? end : nul + 1, *stop = nul == NULL ? end : nul;
    while (at < stop) {
        const char *line_end = memchr(at, '\n', (size_t)(stop - at));
        line_end = line_end == NULL ? stop : line_end;
        add_rule(&rules, at, (size_t)(line_end - at));
        at = line_end < stop ? line_end + 1 : stop;
    }
    size_t length = (size_t)(end - text);
    check(&rules, text, length < TEXT_MAX ? length : TEXT_MAX);
    return 0;
}
