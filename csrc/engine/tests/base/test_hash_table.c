/* The hash table against a search through all keys, also where many keys share a slot. */
#include "base/hash_table.h"

#include <stdlib.h>

#include "tests/check.h"

enum { KEYS = 5000 };

static uint64_t keys_of_test[KEYS + 1]; /* from 1 on */
static int compared;

static bool is_key(const void *keys, uint32_t number, const void *key) {
    compared++;
    return ((const uint64_t *)keys)[number] == *(const uint64_t *)key;
}

static uint32_t find(const struct mu_hash_table *table, uint64_t hash, uint64_t key) {
    return mu_hash_table_find(table, hash, is_key, keys_of_test, &key);
}

typedef uint64_t hash_function(uint64_t key);

static uint64_t same_for_all(uint64_t key) {
    (void)key;
    return 7;
}

static uint64_t same_low_bits(uint64_t key) {
    return key << 20;
}

/* Half of the keys are put in, one after the other; the others are never found. */
static void check_keys(hash_function *hash, uint32_t count, bool grows) {
    struct mu_hash_table table;
    CHECK_INT(mu_hash_table_init(&table, grows ? 0 : count, NULL), MU_OK);
    const struct mu_hash_slot *at_first = table.slots;
    for (uint32_t number = 1; number <= count; number++) {
        keys_of_test[number] = 2 * (uint64_t)number;
        CHECK_INT(find(&table, hash(keys_of_test[number]), keys_of_test[number]), 0);
        CHECK(!grows || mu_hash_table_reserve(&table, NULL) == MU_OK);
        mu_hash_table_put(&table, hash(keys_of_test[number]), number);
    }
    CHECK_INT(table.count, count);
    CHECK(2 * table.count <= table.mask + 1);
    CHECK(grows || table.slots == at_first);
    for (uint64_t key = 2; key <= 2 * (uint64_t)count; key++) {
        CHECK_INT(find(&table, hash(key), key), key % 2 == 0 ? key / 2 : 0);
    }
    mu_hash_table_reset(&table);
    CHECK(table.slots == NULL);
    mu_hash_table_reset(&table);
}

static void test_finds_what_was_put(void) {
    check_keys(mu_hash_u64, KEYS, true);
    check_keys(mu_hash_u64, KEYS, false);
    check_keys(mu_hash_u64, 1, true);
    check_keys(same_low_bits, 500, true);
    check_keys(same_for_all, 200, true);
    check_keys(same_for_all, 200, false);
}

/* Keys are compared only where the hashes agree. */
static void test_compares_seldom(void) {
    struct mu_hash_table table;
    CHECK_INT(mu_hash_table_init(&table, KEYS, NULL), MU_OK);
    for (uint32_t number = 1; number <= KEYS; number++) {
        keys_of_test[number] = number;
        mu_hash_table_put(&table, mu_hash_u64(number), number);
    }
    compared = 0;
    for (uint64_t key = 1; key <= KEYS; key++) {
        CHECK_INT(find(&table, mu_hash_u64(key), key), key);
    }
    CHECK_INT(compared, KEYS);
    mu_hash_table_reset(&table);
}

static void test_hash_of_bytes_takes_all_of_them(void) {
    char text[40] = {0};
    for (size_t length = 1; length <= sizeof(text); length++) {
        uint64_t zeros = mu_hash_bytes(text, length);
        CHECK(zeros != mu_hash_bytes(text, length - 1));
        for (size_t at = 0; at < length; at++) {
            text[at] = 1;
            CHECK(zeros != mu_hash_bytes(text, length));
            text[at] = 0;
        }
    }
}

int main(void) {
    test_finds_what_was_put();
    test_compares_seldom();
    test_hash_of_bytes_takes_all_of_them();
    return check_report();
}
