#include "trace/trace_names.h"

#include "base/utf8.h"

#include <stdlib.h>

enum { NAMES_AT_FIRST = 64 };

int mu_trace_names_init(struct mu_trace_names *names, struct mu_error *err) {
    memset(names, 0, sizeof(*names));
    return mu_hash_table_init(&names->by_bytes, NAMES_AT_FIRST, err);
}

void mu_trace_names_reset(struct mu_trace_names *names) {
    for (int i = 0; i < names->count; i++) {
        free(names->all[i]);
    }
    free(names->all);
    names->all = NULL;
    names->last = NULL;
    names->count = names->capacity = 0;
    mu_hash_table_reset(&names->by_bytes);
}

/* One block: the struct, the raw bytes, the clean ones, the escaped ones. */
static struct mu_trace_name *make(const char *text, size_t length, uint64_t hash) {
    size_t clean_max = length * MU_UTF8_CLEAN_FACTOR;
    size_t size = sizeof(struct mu_trace_name) + length + clean_max +
                  clean_max * MU_UTF8_JSON_FACTOR + MU_NAME_PADDING;
    struct mu_trace_name *name = malloc(size);
    if (name == NULL) {
        return NULL;
    }
    memset(name, 0, sizeof(*name));
    char *raw = (char *)(name + 1), *clean = raw + length;
    memcpy(raw, text, length);
    size_t clean_length = mu_utf8_clean(clean, text, length, &name->bad_bytes);
    char *json = clean + clean_length;
    size_t json_length = (size_t)(mu_utf8_put_json(json, clean, clean_length) - json);
    memset(json + json_length, 0, MU_NAME_PADDING);
    name->number = MU_NAME_UNNUMBERED;
    name->wanted = 1;
    name->hash = hash;
    name->raw = raw;
    name->clean = clean;
    name->json = json;
    name->raw_length = (uint32_t)length;
    name->clean_length = (uint32_t)clean_length;
    name->json_length = (uint32_t)json_length;
    struct mu_trace_name *fitted =
        realloc(name, sizeof(*name) + length + clean_length + json_length + MU_NAME_PADDING);
    if (fitted != NULL && fitted != name) {
        fitted->raw = (char *)(fitted + 1);
        fitted->clean = fitted->raw + length;
        fitted->json = fitted->clean + clean_length;
    }
    return fitted == NULL ? name : fitted;
}

MU_MUST_CHECK static int keep(struct mu_trace_names *names, struct mu_trace_name *name) {
    if (names->count == names->capacity) {
        int capacity = names->capacity == 0 ? NAMES_AT_FIRST : names->capacity * 2;
        struct mu_trace_name **all = realloc(names->all, (size_t)capacity * sizeof(*all));
        if (all == NULL) {
            return MU_ERR_NO_MEMORY;
        }
        names->all = all;
        names->capacity = capacity;
    }
    int code = mu_hash_table_reserve(&names->by_bytes, NULL);
    if (code == MU_OK) {
        name->number = names->count;
        names->all[names->count++] = name;
        mu_hash_table_put(&names->by_bytes, name->hash, (uint32_t)names->count);
    }
    return code;
}

static bool is_name(const void *keys, uint32_t number, const void *key) {
    const struct mu_trace_names *names = keys;
    const struct mu_hash_text *wanted = key;
    return mu_trace_name_is(names->all[number - 1], wanted->bytes, wanted->length);
}

struct mu_trace_name *mu_trace_names_get(struct mu_trace_names *names, const char *text,
                                         size_t length) {
    if (names->last != NULL && mu_trace_name_is(names->last, text, length)) {
        return names->last;
    }
    struct mu_hash_text wanted = {text, length};
    uint64_t hash = mu_hash_bytes(text, length) | 1; /* ids in traces are made of it */
    uint32_t found = mu_hash_table_find(&names->by_bytes, hash, is_name, names, &wanted);
    if (found != 0) {
        names->last = names->all[found - 1];
        return names->last;
    }
    struct mu_trace_name *name = make(text, length, hash);
    if (name == NULL) {
        return NULL;
    }
    if (names->filter != NULL) {
        name->wanted = names->filter(names->filter_context, name->clean, name->clean_length);
    }
    if (names->count < MU_TRACE_NAMES_MAX && keep(names, name) != MU_OK) {
        free(name);
        return NULL;
    }
    return name;
}

void mu_trace_names_release(struct mu_trace_name *name) {
    if (name != NULL && name->number == MU_NAME_UNNUMBERED) {
        free(name);
    }
}
