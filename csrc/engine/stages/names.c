#include "stages/names.h"

#include <string.h>

#include "base/invariant.h"

void mu_names_init(struct mu_names *names, struct mu_journal *journal) {
    memset(names, 0, sizeof(*names));
    names->journal = journal;
    names->path_count = MU_PATH_OTHER + 1;
    names->by_bytes.slots = names->name_slots;
    names->by_bytes.mask = sizeof(names->name_slots) / sizeof(names->name_slots[0]) - 1;
    names->by_parent_and_name.slots = names->path_slots;
    names->by_parent_and_name.mask = sizeof(names->path_slots) / sizeof(names->path_slots[0]) - 1;
}

uint64_t mu_name_hash(const char *bytes, size_t length) {
    uint64_t hash = mu_hash_bytes(bytes, length);
    return hash == 0 ? 1 : hash;
}

static bool is_name(const void *keys, uint32_t number, const void *key) {
    const struct mu_names *names = keys;
    const struct mu_hash_text *wanted = key;
    size_t length;
    const char *bytes = mu_journal_string(names->journal, number, &length);
    return length == wanted->length && memcmp(bytes, wanted->bytes, length) == 0;
}

uint16_t mu_names_intern(struct mu_names *names, const char *bytes, size_t length, uint64_t hash) {
    struct mu_hash_text name = {bytes, length};
    uint32_t id = mu_hash_table_find(&names->by_bytes, hash, is_name, names, &name);
    if (id != 0) {
        return (uint16_t)id;
    }
    if (mu_journal_add_string(names->journal, bytes, length, &id, NULL) != MU_OK) {
        return MU_NAME_NONE;
    }
    MU_INVARIANT(id > MU_NAME_NONE && id < MU_STRINGS_MAX);
    mu_hash_table_put(&names->by_bytes, hash, id);
    return (uint16_t)id;
}

static bool is_path(const void *keys, uint32_t number, const void *key) {
    const struct mu_path *path = (const struct mu_path *)keys + number, *wanted = key;
    return path->parent == wanted->parent && path->name == wanted->name;
}

uint16_t mu_names_path(struct mu_names *names, uint16_t parent, uint16_t name) {
    MU_INVARIANT(parent < names->path_count && names->path_count <= MU_PATHS_MAX);
    if (name == MU_NAME_NONE || parent == MU_PATH_OTHER) {
        return MU_PATH_OTHER;
    }
    struct mu_path path = {parent, name};
    uint64_t hash = mu_hash_u64((uint32_t)parent << 16 | name);
    uint32_t id =
        mu_hash_table_find(&names->by_parent_and_name, hash, is_path, names->paths, &path);
    if (id != 0) {
        return (uint16_t)id;
    }
    if (names->path_count == MU_PATHS_MAX) {
        return MU_PATH_OTHER;
    }
    id = names->path_count++;
    names->paths[id] = path;
    mu_hash_table_put(&names->by_parent_and_name, hash, id);
    return (uint16_t)id;
}
