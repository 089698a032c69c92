#include "replace/aho_corasick_starts.h"
#include "replace/replace.h"
#include "replace/replace_names.h"
#include "tests/check.h"
#include "tests/replace/replace_oracle.h"

#include <stdio.h>

#define RULE(from, to) {from, sizeof(from) - 1, to, sizeof(to) - 1}
#define WATCH(from) {from, sizeof(from) - 1, NULL, 0}
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define TIER(rules, whole) {rules, COUNT(rules), whole}

static const struct mu_replace_rule names[] = {
    RULE("cudaMalloc", "musaMalloc"),
    RULE("cudaMallocAsync", "musaMallocAsync"),
    RULE("at::cuda::getCurrentCUDAStream", "c10::musa::getCurrentMUSAStream"),
    RULE("at::cuda", "at::musa"),
    RULE("<cuda.h>", "<musa.h>"),
    RULE("kept", "kept"),
    WATCH("cuda"),
    WATCH("cudaMalloc"),
};

/* The result as a string; to be freed. NULL when it is the input. */
static char *replaced(const struct mu_replace_tier *tiers, size_t count, const char *text,
                      uint64_t *watched) {
    struct mu_replacer *replacer;
    struct mu_replaced out;
    char *result = NULL;
    if (!CHECK_INT(mu_replacer_new(tiers, count, &replacer, NULL), MU_OK)) {
        return NULL;
    }
    CHECK_INT(mu_replacer_run(replacer, text, strlen(text), &out, NULL), MU_OK);
    CHECK(oracle_agrees(tiers, count, text, strlen(text), &out));
    if (out.count > 0) {
        result = strndup(out.bytes, out.length);
    }
    *watched = out.watched_count;
    mu_replaced_reset(&out);
    mu_replacer_free(replacer);
    return result;
}

static void check_replaced(const struct mu_replace_tier *tiers, size_t count, const char *text,
                           const char *wanted) {
    uint64_t watched;
    char *got = replaced(tiers, count, text, &watched);
    CHECK_STR(got, wanted);
    free(got);
}

static void test_whole_names(void) {
    const struct mu_replace_tier tier[] = {TIER(names, true)};
    check_replaced(tier, 1, "p = cudaMalloc(n);", "p = musaMalloc(n);");
    check_replaced(tier, 1, "cudaMalloc", "musaMalloc");
    check_replaced(tier, 1, "cudaMallocAsync(cudaMalloc)", "musaMallocAsync(musaMalloc)");
    check_replaced(tier, 1, "my_cudaMalloc cudaMallocs cudaMalloc2 xcudaMalloc", NULL);
    check_replaced(tier, 1, "at::cuda::getCurrentCUDAStream()",
                   "c10::musa::getCurrentMUSAStream()");
    check_replaced(tier, 1, "at::cuda::getCurrentCUDAStreams at::cuda",
                   "at::musa::getCurrentCUDAStreams at::musa");
    check_replaced(tier, 1, "what::cuda::x", NULL);
    check_replaced(tier, 1, "#include<cuda.h>\r\n", "#include<musa.h>\r\n");
    check_replaced(tier, 1,
                   "\xe7\x94\xa8"
                   "cudaMalloc"
                   "\xe5",
                   "\xe7\x94\xa8"
                   "musaMalloc"
                   "\xe5");
    check_replaced(tier, 1, "", NULL);
}

static void test_watches(void) {
    const struct mu_replace_tier tier[] = {TIER(names, true)};
    const struct mu_replace_rule part[] = {RULE("Foo", "Bar")};
    const struct mu_replace_tier both[] = {TIER(part, false), TIER(names, true)};
    uint64_t watched;
    free(replaced(tier, 1, "cudaFree cuda mycudaFree cudaMalloc cudaMallocs cuda_", &watched));
    CHECK_INT(watched, 3);
    free(replaced(tier, 1, "kept cuda", &watched));
    CHECK_INT(watched, 0);
    free(replaced(both, 2, "cudaFoo cudaGoo", &watched));
    CHECK_INT(watched, 1);
}

/* Names that fill blocks of the AVX2 search, and rules that go on behind a name. */
static void test_long_names(void) {
    static const struct mu_replace_rule rules[] = {
        RULE("a_name_of_thirty_two_letters_abc", "n32"),
        RULE("a_name_of_thirty_two_letters_abc_and_of_33_more_of_them_up_to_65_", "n65"),
        RULE("a_name_of_thirty_two_letters_abc.x", "x"),
        RULE("space::a_name_of_thirty_two_letters_abc", "in_space"),
        RULE("space", "room"),
        WATCH("a_name"),
        WATCH("a_name_of_thirty_two_letters"),
        WATCH("space::a_name"),
    };
    const struct mu_replace_tier tier[] = {TIER(rules, true)};
    uint64_t watched;
    check_replaced(tier, 1, "(a_name_of_thirty_two_letters_abc) ................................",
                   "(n32) ................................");
    check_replaced(tier, 1, "a_name_of_thirty_two_letters_abc", "n32");
    check_replaced(tier, 1, "a_name_of_thirty_two_letters_abc_and_of_33_more_of_them_up_to_65_+",
                   "n65+");
    check_replaced(tier, 1, "a_name_of_thirty_two_letters_abc.x a_name_of_thirty_two_letters_abc.y",
                   "x n32.y");
    check_replaced(tier, 1, "space::a_name_of_thirty_two_letters_abc space::space space",
                   "in_space room::room room");
    free(replaced(tier, 1,
                  "a_name a_names a_name_of_thirty_two_letters a_name_of_thirty_two_letters_ab "
                  "a_name_of_thirty_two_letters_abc_and_of_33_more_of_them_up_to_65_ of_a_name "
                  "space::a_name_of_thirty_two_letters_abcd spaces::a_name.a_name_",
                  &watched));
    CHECK_INT(watched, 5);
}

/* What an earlier tier takes out of a name leaves no rest that is a name. */
static void test_names_cut_by_an_earlier_tier(void) {
    const struct mu_replace_rule part[] = {RULE("Async", "Later"), RULE("Cut", "")};
    const struct mu_replace_tier tiers[] = {TIER(part, false), TIER(names, true)};
    uint64_t watched;
    check_replaced(tiers, 2, "cudaMallocCut Cutcuda CutcudaMalloc cudaMallocCut",
                   "cudaMalloc cuda cudaMalloc cudaMalloc");
    check_replaced(tiers, 2, "at::cudaCut cudaMalloc", "at::cuda musaMalloc");
    free(replaced(tiers, 2, "cudaFreeCut cudaFree_ Cutcuda_", &watched));
    CHECK_INT(watched, 1);
}

static void test_names_that_were_watched(void) {
    const struct mu_replace_tier tier = TIER(names, true);
    const char text[] = "cudaFree\ncudaGet cudaMalloc cudaFree\n\ncudaFrees cudaFree";
    static const struct mu_replace_name wanted[] = {
        {{0, 8}, 3, 1}, {{9, 16}, 1, 2}, {{38, 47}, 1, 4}};
    struct mu_replacer *replacer;
    struct mu_replaced out;
    struct mu_replace_name *found;
    size_t count;
    CHECK_INT(mu_replacer_new(&tier, 1, &replacer, NULL), MU_OK);
    CHECK_INT(mu_replacer_run(replacer, text, sizeof(text) - 1, &out, NULL), MU_OK);
    CHECK_INT(mu_replace_names(&out, text, &found, &count, NULL), MU_OK);
    CHECK_INT(count, COUNT(wanted));
    for (size_t i = 0; i < count && i < COUNT(wanted); i++) {
        CHECK_INT(found[i].span.start, wanted[i].span.start);
        CHECK_INT(found[i].span.end, wanted[i].span.end);
        CHECK_INT(found[i].count, wanted[i].count);
        CHECK_INT(found[i].line, wanted[i].line);
    }
    free(found);
    mu_replaced_reset(&out);
    CHECK_INT(mu_replacer_run(replacer, "cudaMalloc", 10, &out, NULL), MU_OK);
    CHECK_INT(mu_replace_names(&out, "cudaMalloc", &found, &count, NULL), MU_OK);
    CHECK_INT(count, 0);
    CHECK(found == NULL);
    mu_replaced_reset(&out);
    mu_replacer_free(replacer);
}

static void test_substrings(void) {
    const struct mu_replace_rule rules[] = {
        RULE("cuda", "musa"), RULE("cudaMalloc", "mine"), RULE("abcd", "1"),
        RULE("bc", "2"),      RULE("bcdef", "3"),         RULE("gone", ""),
    };
    const struct mu_replace_tier tier[] = {TIER(rules, false)};
    check_replaced(tier, 1, "xcudacuda cudaMallocs", "xmusamusa mines");
    check_replaced(tier, 1, "abcdef xbcdef abc", "1ef x3 a2");
    check_replaced(tier, 1, "gonegone", "");
    check_replaced(tier, 1, "bbcdecuda", "b2demusa");
}

static void test_earlier_tiers_win(void) {
    const struct mu_replace_rule mine[] = {RULE("cudaMalloc", "own"), RULE("Async", "Later")};
    const struct mu_replace_tier tiers[] = {TIER(mine, false), TIER(names, true)};
    check_replaced(tiers, 2, "cudaMalloc cudaMallocAsync at::cuda", "own ownLater at::musa");
    const struct mu_replace_rule again[] = {RULE("a", "b"), RULE("a", "c")};
    const struct mu_replace_tier equal[] = {TIER(again, false)};
    check_replaced(equal, 1, "aa", "bb");
}

static void test_refusals(void) {
    const struct mu_replace_rule empty[] = {RULE("", "x")}, watch[] = {WATCH("cuda")};
    const struct mu_replace_tier tiers[] = {TIER(empty, true), TIER(watch, false),
                                            TIER(names, true), TIER(names, true),
                                            TIER(names, true)};
    struct mu_replacer *replacer;
    struct mu_error err;
    CHECK_INT(mu_replacer_new(tiers, 1, &replacer, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, "rule 0 has nothing to look for");
    CHECK_INT(mu_replacer_new(tiers + 1, 1, &replacer, &err), MU_ERR_ARGUMENT);
    CHECK_STR(err.message, "rule 0 watches, but not for names");
    CHECK_INT(mu_replacer_new(tiers, 5, &replacer, &err), MU_ERR_ARGUMENT);
    CHECK(replacer == NULL);
    CHECK_INT(mu_replacer_new(NULL, 0, &replacer, &err), MU_OK);
    mu_replacer_free(replacer);
    mu_replacer_free(NULL);
}

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void random_text(uint32_t *state, char *text, size_t length, const char *letters) {
    for (size_t i = 0; i < length; i++) {
        text[i] = letters[next_random(state) % strlen(letters)];
    }
}

/* Rules and texts of few letters, so that matches touch, nest, and fail only near their end. */
static void test_against_the_plain_way(void) {
    enum { RULES = 12, TEXT = 120 }; /* some blocks of the AVX2 search, and a rest */
    uint32_t state = 1;
    int agreed = 0;
    for (int trial = 0; trial < 4000; trial++) {
        static char from[2][RULES][8], to[2][RULES][4];
        struct mu_replace_rule rules[2][RULES];
        struct mu_replace_tier tiers[2];
        const char *letters = trial % 2 ? "ab:" : "aab_: ";
        char text[TEXT];
        for (int t = 0; t < 2; t++) {
            tiers[t] = (struct mu_replace_tier){rules[t], next_random(&state) % (RULES + 1),
                                                next_random(&state) % 2};
            for (int i = 0; i < RULES; i++) {
                size_t length = 1 + next_random(&state) % 7, put = next_random(&state) % 4;
                random_text(&state, from[t][i], length, letters);
                random_text(&state, to[t][i], put, "xab");
                bool is_watch = tiers[t].whole && next_random(&state) % 4 == 0;
                rules[t][i] =
                    (struct mu_replace_rule){from[t][i], length, is_watch ? NULL : to[t][i], put};
            }
        }
        random_text(&state, text, TEXT, letters);
        struct mu_replacer *replacer;
        struct mu_replaced out;
        CHECK_INT(mu_replacer_new(tiers, 2, &replacer, NULL), MU_OK);
        CHECK_INT(mu_replacer_run(replacer, text, TEXT, &out, NULL), MU_OK);
        agreed += CHECK(oracle_agrees(tiers, 2, text, TEXT, &out));
        mu_replaced_reset(&out);
        mu_replacer_free(replacer);
    }
    CHECK_INT(agreed, 4000);
}

/* Every start is found by each variant, and none inside a name; all bytes, and texts of all sizes.
 */
static void check_starts(const struct mu_ac_starts *starts, mu_ac_next_start *variant,
                         const unsigned char *text, size_t length) {
    size_t next = 0;
    for (size_t at = 0; at < length; at = next + 1) {
        size_t wanted = mu_ac_next_start_portable(starts, text, at, length);
        next = variant(starts, text, at, length);
        bool is_name = next < length && starts->is_name[text[next]];
        bool inside = is_name && next > 0 && starts->is_name[text[next - 1]];
        if (!CHECK(next <= wanted) || !CHECK(!(starts->whole && inside))) {
            return;
        }
    }
}

static void test_variants(void) {
#ifdef __aarch64__
    CHECK(mu_ac_next_start_best() == mu_ac_next_start_neon);
    CHECK(mu_ac_name_end_best() == mu_ac_name_end_neon);
#endif
}

static void test_starts(void) {
    enum { TEXT = 300 };
    static const unsigned char letters[] = "ab_ :Zz{@[`/9\xff";
    uint32_t state = 7;
    for (int trial = 0; trial < 2000; trial++) {
        unsigned char text[TEXT];
        struct mu_ac_starts starts;
        size_t length = next_random(&state) % (TEXT + 1);
        for (size_t i = 0; i < length; i++) {
            uint32_t any = next_random(&state);
            text[i] = trial % 3 == 0 ? (unsigned char)any : letters[any % (sizeof(letters) - 1)];
        }
        mu_ac_starts_init(&starts, trial % 2);
        for (size_t i = 0; i < 3 && i + 5 < length; i++) {
            mu_ac_starts_add(&starts, (const char *)text + i, 1 + i + trial % 3);
        }
        check_starts(&starts, mu_ac_next_start_best(), text, length);
        check_starts(&starts, mu_ac_next_start_portable, text, length);
    }
}

static void test_ends_of_names(void) {
    enum { TEXT = 80 };
    unsigned char text[TEXT];
    for (int byte = 0; byte < 256; byte++) {
        for (size_t end = 0; end < TEXT; end++) {
            size_t wanted = mu_is_name_byte(byte) ? TEXT : end;
            memset(text, 'a', TEXT);
            text[end] = (unsigned char)byte;
            CHECK_INT(mu_ac_name_end_best()(text, 0, TEXT), wanted);
            CHECK_INT(mu_ac_name_end_portable(text, 0, TEXT), wanted);
            CHECK_INT(mu_ac_name_end_best()(text, 0, end), end);
        }
    }
}

/* Enough states for many blocks, and every name must be found by its own rule. */
static void test_many_rules(void) {
    enum { RULES = 20000, WIDTH = 32 };
    char (*from)[WIDTH] = calloc(RULES, WIDTH), (*to)[WIDTH] = calloc(RULES, WIDTH);
    struct mu_replace_rule *rules = calloc(RULES, sizeof(*rules));
    struct mu_replacer *replacer;
    if (!CHECK(from != NULL && to != NULL && rules != NULL)) {
        return;
    }
    for (int i = 0; i < RULES; i++) {
        int length = snprintf(from[i], WIDTH, "cuda%x_%d", (unsigned)i * 2654435761u, i % 7);
        snprintf(to[i], WIDTH, "n%d", i);
        rules[i] = (struct mu_replace_rule){from[i], (size_t)length, to[i], strlen(to[i])};
    }
    const struct mu_replace_tier tier = {rules, RULES, true};
    if (CHECK_INT(mu_replacer_new(&tier, 1, &replacer, NULL), MU_OK)) {
        int found = 0;
        for (int i = 0; i < RULES; i++) {
            struct mu_replaced out;
            CHECK_INT(mu_replacer_run(replacer, from[i], rules[i].from_length, &out, NULL), MU_OK);
            found += out.count == 1 && out.length == rules[i].to_length &&
                     memcmp(out.bytes, to[i], out.length) == 0;
            mu_replaced_reset(&out);
        }
        CHECK_INT(found, RULES);
        mu_replacer_free(replacer);
    }
    free(from);
    free(to);
    free(rules);
}

int main(void) {
    test_whole_names();
    test_watches();
    test_long_names();
    test_names_cut_by_an_earlier_tier();
    test_names_that_were_watched();
    test_substrings();
    test_earlier_tiers_win();
    test_refusals();
    test_against_the_plain_way();
    test_variants();
    test_starts();
    test_ends_of_names();
    test_many_rules();
    return check_report();
}
