#include "stages/names.h"

#include <string.h>

#include "base/id_map.h"

void mu_names_init(struct mu_names *names, struct mu_journal *journal) {
    memset(names, 0, sizeof(*names));
    names->journal = journal;
    names->path_count = MU_PATH_OTHER + 1;
}

uint64_t mu_name_hash(const char *bytes, size_t length) {
    uint64_t hash = mu_hash_bytes(bytes, length);
    return hash == 0 ? 1 : hash;
}

static bool same_name(const struct mu_names *names, uint16_t id, const char *bytes, size_t length) {
    size_t known;
    const char *text = mu_journal_string(names->journal, id, &known);
    return known == length && memcmp(text, bytes, length) == 0;
}

uint16_t mu_names_intern(struct mu_names *names, const char *bytes, size_t length, uint64_t hash) {
    uint32_t bucket = (uint32_t)(hash ^ (hash >> 32)) % MU_NAME_BUCKETS;
    for (; names->ids[bucket] != 0; bucket = (bucket + 1) % MU_NAME_BUCKETS) {
        if (names->hashes[bucket] == hash && same_name(names, names->ids[bucket], bytes, length)) {
            return names->ids[bucket];
        }
    }
    uint32_t id;
    if (mu_journal_add_string(names->journal, bytes, length, &id, NULL) != MU_OK) {
        return MU_NAME_NONE;
    }
    names->hashes[bucket] = hash;
    names->ids[bucket] = (uint16_t)id;
    return (uint16_t)id;
}

uint16_t mu_names_path(struct mu_names *names, uint16_t parent, uint16_t name) {
    if (name == MU_NAME_NONE || parent == MU_PATH_OTHER) {
        return MU_PATH_OTHER;
    }
    uint32_t key = ((uint32_t)parent << 16 | name) * UINT32_C(2654435761);
    uint32_t bucket = (key >> 16) % MU_PATH_BUCKETS;
    for (; names->path_ids[bucket] != 0; bucket = (bucket + 1) % MU_PATH_BUCKETS) {
        const struct mu_path *path = &names->paths[names->path_ids[bucket]];
        if (path->parent == parent && path->name == name) {
            return names->path_ids[bucket];
        }
    }
    if (names->path_count == MU_PATHS_MAX) {
        return MU_PATH_OTHER;
    }
    uint16_t id = (uint16_t)names->path_count++;
    names->paths[id].parent = parent;
    names->paths[id].name = name;
    names->path_ids[bucket] = id;
    return id;
}
