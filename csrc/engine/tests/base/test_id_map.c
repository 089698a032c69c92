/* The hash map against a plain array. */
#include "base/id_map.h"

#include "tests/check.h"

enum { KEYS = 500, ROUNDS = 20000 };

int main(void) {
    struct mu_id_map map;
    struct mu_error err;
    static int values[KEYS];
    int present[KEYS] = {0};
    size_t count = 0;
    uint64_t random = 1;
    CHECK_INT(mu_id_map_init(&map, &err), MU_OK);
    for (int i = 0; i < ROUNDS; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int key = (int)(random >> 40) % KEYS;
        if (random >> 63) {
            CHECK_INT(mu_id_map_put(&map, (uint64_t)key + 1, &values[key], &err), MU_OK);
            count += !present[key];
            present[key] = 1;
        } else {
            CHECK(mu_id_map_remove(&map, (uint64_t)key + 1) ==
                  (present[key] ? &values[key] : NULL));
            count -= (size_t)present[key];
            present[key] = 0;
        }
    }
    CHECK_INT(map.count, count);
    for (int key = 0; key < KEYS; key++) {
        CHECK(mu_id_map_find(&map, (uint64_t)key + 1) == (present[key] ? &values[key] : NULL));
    }
    for (int key = 0; key < KEYS; key++) {
        if (present[key]) {
            mu_id_map_replace(&map, (uint64_t)key + 1, &values[0]);
            CHECK(mu_id_map_find(&map, (uint64_t)key + 1) == &values[0]);
        }
    }
    mu_id_map_reset(&map);
    return check_report();
}
