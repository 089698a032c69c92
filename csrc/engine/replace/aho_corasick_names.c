#include "replace/aho_corasick_names.h"

#include <stdlib.h>
#include <string.h>

/* The words of `count` names of `bytes` bytes together. */
static size_t words_for(size_t count, size_t bytes) {
    size_t fixed = sizeof(struct mu_ac_name) + 1 + sizeof(uint32_t) - 1; /* NUL, rounding up */
    return (count * fixed + bytes) / sizeof(uint32_t);
}

int mu_ac_names_init(struct mu_ac_names *names, size_t count, size_t bytes, struct mu_error *err) {
    *names = (struct mu_ac_names){.used = 1};
    names->words = calloc(1 + words_for(count, bytes), sizeof(*names->words));
    if (names->words == NULL) {
        return mu_error_no_memory(err, "automaton");
    }
    return mu_hash_table_init(&names->by_bytes, count, err);
}

void mu_ac_names_reset(struct mu_ac_names *names) {
    mu_hash_table_reset(&names->by_bytes);
    free(names->words);
    *names = (struct mu_ac_names){0};
}

static struct mu_ac_name *name_at(const struct mu_ac_names *names, uint32_t number) {
    return (struct mu_ac_name *)(void *)(names->words + number);
}

static bool is_name(const void *keys, uint32_t number, const void *key) {
    const char *known = name_at(keys, number)->bytes;
    const struct mu_hash_text *wanted = key;
    return strncmp(known, wanted->bytes, wanted->length) == 0 && known[wanted->length] == '\0';
}

struct mu_ac_name *mu_ac_names_add(struct mu_ac_names *names, const char *bytes, size_t length) {
    struct mu_hash_text key = {bytes, length};
    uint64_t hash = mu_hash_bytes(bytes, length);
    uint32_t number = mu_hash_table_find(&names->by_bytes, hash, is_name, names, &key);
    if (number == 0) {
        number = (uint32_t)names->used;
        memcpy(name_at(names, number)->bytes, bytes, length);
        names->used += words_for(1, length);
        mu_hash_table_put(&names->by_bytes, hash, number);
    }
    return name_at(names, number);
}

const struct mu_ac_name *mu_ac_names_find(const struct mu_ac_names *names, const char *bytes,
                                          size_t length) {
    struct mu_hash_text key = {bytes, length};
    uint32_t number =
        mu_hash_table_find(&names->by_bytes, mu_hash_bytes(bytes, length), is_name, names, &key);
    return number == 0 ? NULL : name_at(names, number);
}
