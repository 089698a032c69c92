#include "timing/window_table.h"

#include <stdlib.h>
#include <string.h>

enum { AT_FIRST = 64, TRACKS_MAX = 1 << 16, PATHS_MAX = 1 << 20 };

static const char other_name[] = "(other)";

MU_MUST_CHECK static int grow(void **array, size_t *capacity, size_t wanted, size_t element,
                              struct mu_error *err) {
    if (wanted <= *capacity) {
        return MU_OK;
    }
    size_t size = *capacity == 0 ? AT_FIRST : 2 * *capacity;
    while (size < wanted) {
        size *= 2;
    }
    void *grown = realloc(*array, size * element);
    if (grown == NULL) {
        return mu_error_no_memory(err, "windows of steps");
    }
    *array = grown;
    *capacity = size;
    return MU_OK;
}

MU_MUST_CHECK static int add_path(struct mu_window_table *table, uint32_t parent, const char *name,
                                  size_t length, struct mu_error *err) {
    int code = grow((void **)&table->paths, &table->path_capacity, table->path_count + 1,
                    sizeof(*table->paths), err);
    char *copy = code == MU_OK ? malloc(length + 1) : NULL;
    if (copy == NULL) {
        return code == MU_OK ? mu_error_no_memory(err, "the name of a stage") : code;
    }
    memcpy(copy, name, length);
    table->paths[table->path_count++] = (struct mu_window_path){parent, (uint32_t)length, copy};
    return MU_OK;
}

int mu_window_table_init(struct mu_window_table *table, struct mu_error *err) {
    memset(table, 0, sizeof(*table));
    int code = mu_hash_table_init(&table->tracks_by_number, AT_FIRST, err);
    if (code == MU_OK) {
        code = add_path(table, MU_WINDOW_NO_PARENT, other_name, sizeof(other_name) - 1, err);
    }
    if (code != MU_OK) {
        mu_window_table_reset(table);
    }
    return code;
}

void mu_window_table_reset(struct mu_window_table *table) {
    for (size_t i = 0; i < table->path_count; i++) {
        free(table->paths[i].name);
    }
    free(table->heads);
    free(table->entries);
    free(table->paths);
    free(table->tracks);
    mu_hash_table_reset(&table->tracks_by_number);
    memset(table, 0, sizeof(*table));
}

/* What is left of a payload. */
struct rest {
    const char *at;
    size_t bytes;
};

static bool take(struct rest *rest, void *out, size_t bytes) {
    if (rest->bytes < bytes) {
        return false;
    }
    memcpy(out, rest->at, bytes);
    rest->at += bytes;
    rest->bytes -= bytes;
    return true;
}

/* --- names --- */

static bool is_track(const void *keys, uint32_t number, const void *key) {
    const struct mu_table_track *track = (const struct mu_table_track *)keys + (number - 1);
    const struct mu_window_head *head = key;
    return track->attempt == head->attempt && track->track == head->track;
}

/* The place of the block's track, which may be new. */
MU_MUST_CHECK static int reach_track(struct mu_window_table *table,
                                     const struct mu_window_head *head, size_t *place,
                                     struct mu_error *err) {
    struct mu_hash_table *numbers = &table->tracks_by_number;
    uint64_t hash = mu_hash_u64((uint64_t)head->attempt << 32 | head->track);
    uint32_t known = mu_hash_table_find(numbers, hash, is_track, table->tracks, head);
    *place = known == 0 ? table->track_count : known - 1;
    if (known != 0) {
        return MU_OK;
    }
    if (table->track_count == TRACKS_MAX) {
        return mu_error_set(err, MU_ERR_LIMIT, "more than %d tracks in windows", TRACKS_MAX);
    }
    int code = grow((void **)&table->tracks, &table->track_capacity, table->track_count + 1,
                    sizeof(*table->tracks), err);
    if (code == MU_OK) {
        code = mu_hash_table_reserve(numbers, err);
    }
    if (code == MU_OK) {
        table->tracks[table->track_count++] =
            (struct mu_table_track){.attempt = head->attempt, .track = head->track};
        mu_hash_table_put(numbers, hash, (uint32_t)table->track_count);
    }
    return code;
}

/* One name: path, parent, length and the text. */
MU_MUST_CHECK static int add_name(struct mu_window_table *table, struct mu_table_track *track,
                                  struct rest *rest, bool *whole, struct mu_error *err) {
    uint16_t numbers[3];
    char name[MU_WINDOW_NAME_MAX];
    *whole = take(rest, numbers, sizeof(numbers)) && numbers[0] < MU_WINDOW_PATHS_MAX &&
             numbers[2] <= sizeof(name) && take(rest, name, numbers[2]);
    if (!*whole || numbers[0] == 0 || track->paths[numbers[0]] != 0 ||
        table->path_count == PATHS_MAX) {
        return MU_OK;
    }
    uint32_t parent =
        numbers[1] < MU_WINDOW_PATHS_MAX ? track->paths[numbers[1]] : MU_WINDOW_NO_PARENT;
    track->paths[numbers[0]] = (uint32_t)table->path_count;
    return add_path(table, parent, name, numbers[2], err);
}

MU_MUST_CHECK static int add_names(struct mu_window_table *table, const struct mu_window_head *head,
                                   struct rest rest, struct mu_error *err) {
    uint16_t tag_length;
    size_t place;
    int code = reach_track(table, head, &place, err);
    if (code != MU_OK) {
        return code;
    }
    struct mu_table_track *track = &table->tracks[place];
    bool whole = take(&rest, &track->tid, sizeof(track->tid)) &&
                 take(&rest, &tag_length, sizeof(tag_length)) && tag_length <= sizeof(track->tag) &&
                 take(&rest, track->tag, tag_length);
    track->tag_length = whole ? tag_length : 0;
    for (uint32_t i = 0; code == MU_OK && whole && i < head->cells; i++) {
        code = add_name(table, track, &rest, &whole, err);
    }
    return code;
}

/* --- windows --- */

static bool is_sound(const struct mu_window_head *head) {
    return head->steps > 0 && head->width > 0 && head->cells <= MU_WINDOW_PATHS_MAX &&
           head->first_step >= 0 && head->last_step >= head->first_step;
}

MU_MUST_CHECK static int add_cells(struct mu_window_table *table,
                                   const struct mu_table_track *track,
                                   const struct mu_window_head *head, struct rest rest,
                                   struct mu_error *err) {
    uint32_t bits[MU_WINDOW_PATHS_MAX / 32] = {0};
    size_t cell_bytes = (size_t)head->cells * MU_WINDOW_CELL_BYTES;
    if (rest.bytes < cell_bytes || rest.bytes - cell_bytes > sizeof(bits) ||
        !take(&rest, bits, rest.bytes - cell_bytes)) {
        return MU_OK;
    }
    int code = grow((void **)&table->entries, &table->entry_capacity,
                    table->entry_count + head->cells, sizeof(*table->entries), err);
    for (uint32_t path = 0; code == MU_OK && path < MU_WINDOW_PATHS_MAX; path++) {
        char cell[MU_WINDOW_CELL_BYTES];
        if ((bits[path / 32] >> path % 32 & 1) != 0 && take(&rest, cell, sizeof(cell))) {
            struct mu_window_entry *entry = &table->entries[table->entry_count++];
            entry->window = (uint32_t)table->head_count;
            entry->path = track->paths[path];
            mu_window_cell_decode(cell, &entry->cell);
        }
    }
    return code;
}

MU_MUST_CHECK static int add_window(struct mu_window_table *table,
                                    const struct mu_window_head *head, struct rest rest,
                                    struct mu_error *err) {
    size_t place;
    if (!is_sound(head) || table->head_count >= UINT32_MAX) {
        return MU_OK;
    }
    int code = reach_track(table, head, &place, err);
    if (code == MU_OK) {
        code = grow((void **)&table->heads, &table->head_capacity, table->head_count + 1,
                    sizeof(*table->heads), err);
    }
    if (code == MU_OK) {
        code = add_cells(table, &table->tracks[place], head, rest, err);
    }
    if (code == MU_OK) {
        table->heads[table->head_count] = *head;
        table->heads[table->head_count++].track = (uint32_t)place;
    }
    return code;
}

MU_MUST_CHECK static int add_block(struct mu_window_table *table, const struct mu_window_head *head,
                                   const char *block, struct mu_error *err) {
    const struct rest payload = {block + MU_WINDOW_HEAD_BYTES,
                                 head->bytes - MU_WINDOW_HEAD_BYTES - MU_WINDOW_END_BYTES};
    if (head->version > MU_WINDOW_VERSION) {
        table->newer_blocks++;
        return MU_OK;
    }
    return head->kind == MU_WINDOW_STEPS   ? add_window(table, head, payload, err)
           : head->kind == MU_WINDOW_NAMES ? add_names(table, head, payload, err)
                                           : MU_OK;
}

int mu_window_table_add(struct mu_window_table *table, const char *bytes, size_t length,
                        struct mu_error *err) {
    struct mu_window_head head;
    size_t at = 0, before = 0;
    int code = MU_OK, limit = MU_OK;
    const char *block;
    while (code == MU_OK && (block = mu_window_block_next(bytes, length, &at, &head)) != NULL) {
        table->damaged_bytes += at - before - head.bytes;
        before = at;
        code = add_block(table, &head, block, err);
        if (code == MU_ERR_LIMIT) {
            limit = code;
            code = MU_OK;
        }
    }
    table->damaged_bytes += code == MU_OK ? length - before : 0;
    return code == MU_OK ? limit : code;
}
