#include "process_stacks/frame_names.h"

#include <stdlib.h>
#include <string.h>

#include "process_stacks/line_table.h"

enum {
    CAPACITY_FIRST = 256,
    CODE_RECORD_BYTES = 256, /* the most that is read of a code object */
    TEXT_RECORD_BYTES = 96,  /* and of a str without its characters */
    FRAMES_AT_ONCE = MU_MEMORY_PARTS_MAX,
};

/* PyASCIIObject.state, in all versions from 3.11 to 3.15. */
enum { KIND_SHIFT = 2, KIND_MASK = 7, COMPACT = 1 << 5, ASCII = 1 << 6 };

int mu_frame_names_init(struct mu_frame_names *names, struct mu_error *err) {
    memset(names, 0, sizeof(*names));
    int code = mu_hash_table_init(&names->code_table, CAPACITY_FIRST, err);
    if (code == MU_OK) {
        code = mu_hash_table_init(&names->place_table, CAPACITY_FIRST, err);
    }
    if (code != MU_OK) {
        mu_frame_names_reset(names);
    }
    return code;
}

void mu_frame_names_reset(struct mu_frame_names *names) {
    free(names->codes);
    free(names->places);
    mu_hash_table_reset(&names->code_table);
    mu_hash_table_reset(&names->place_table);
    memset(names, 0, sizeof(*names));
}

/* Makes room for one more item; false when there is none. */
static bool grow(void **items, uint32_t count, uint32_t *capacity, uint32_t most,
                 size_t item_bytes) {
    if (count < *capacity) {
        return true;
    }
    uint32_t wanted = *capacity == 0 ? CAPACITY_FIRST : *capacity * 2;
    void *grown = wanted > most ? NULL : realloc(*items, wanted * item_bytes);
    if (grown == NULL) {
        return false;
    }
    *items = grown;
    *capacity = wanted;
    return true;
}

/* --- text ------------------------------------------------------------------------------------ */

static size_t put_character(char *out, uint32_t c) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if ((c >= 0xd800 && c < 0xe000) || c > 0x10ffff) {
        out[0] = '?';
        return 1;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

static uint32_t character(const unsigned char *bytes, size_t at, uint32_t kind) {
    uint32_t c = 0; /* little-endian, as all machines that this builds for */
    memcpy(&c, bytes + at * kind, kind);
    return c;
}

/* As UTF-8. A text of other characters than ASCII may keep fewer of them. */
static uint16_t encode(char out[MU_FRAME_TEXT_MAX], const unsigned char *bytes, size_t count,
                       uint32_t kind) {
    size_t length = 0;
    for (size_t i = 0; i < count && length + 4 <= MU_FRAME_TEXT_MAX; i++) {
        length += put_character(out + length, character(bytes, i, kind));
    }
    return (uint16_t)length;
}

struct text {
    uint64_t data;
    uint64_t length; /* in characters */
    uint32_t kind;   /* bytes a character */
};

static bool read_text_head(const struct mu_python_layout *layout, struct mu_own_memory *memory,
                           uint64_t address, struct text *text) {
    unsigned char record[TEXT_RECORD_BYTES];
    uint64_t type;
    uint32_t state;
    size_t end = layout->text.ascii_data;
    if (address == 0 || end > sizeof(record) || layout->text.state + sizeof(state) > end ||
        !mu_own_memory_read(memory, address, record, end)) {
        return false;
    }
    memcpy(&type, record + layout->object_type, sizeof(type));
    memcpy(&text->length, record + layout->text.length, sizeof(text->length));
    memcpy(&state, record + layout->text.state, sizeof(state));
    text->kind = state >> KIND_SHIFT & KIND_MASK;
    text->data = address + (state & ASCII ? layout->text.ascii_data : layout->text.other_data);
    bool is_kind = text->kind == 1 || text->kind == 2 || text->kind == 4;
    return type == layout->text_type && (state & COMPACT) && is_kind && text->length <= INT32_MAX;
}

/* Reads at most MU_FRAME_TEXT_MAX characters. */
static uint16_t read_text(const struct mu_python_layout *layout, struct mu_own_memory *memory,
                          uint64_t address, bool keep_end, char out[MU_FRAME_TEXT_MAX]) {
    unsigned char bytes[MU_FRAME_TEXT_MAX * 4];
    struct text text;
    if (!read_text_head(layout, memory, address, &text)) {
        return 0;
    }
    uint64_t most = text.kind == 1 ? MU_FRAME_TEXT_MAX - 3 : MU_FRAME_TEXT_MAX / 4;
    uint64_t count = text.length < most ? text.length : most;
    uint64_t from = keep_end ? text.length - count : 0;
    if (!mu_own_memory_read(memory, text.data + from * text.kind, bytes, count * text.kind)) {
        return 0;
    }
    return encode(out, bytes, count, text.kind);
}

/* --- code objects ---------------------------------------------------------------------------- */

static size_t code_end(const struct mu_python_layout *layout) {
    uint32_t last = layout->code.qualname;
    last = layout->code.filename > last ? layout->code.filename : last;
    last = layout->code.line_table > last ? layout->code.line_table : last;
    last = layout->code.first_line > last ? layout->code.first_line : last;
    return last + sizeof(uint64_t);
}

/* False when the bytes are not those of a code object. */
static bool take_key(const struct mu_python_layout *layout, uint64_t address,
                     const unsigned char *record, struct mu_code_key *key) {
    uint64_t type;
    int32_t first_line;
    memcpy(&type, record + layout->object_type, sizeof(type));
    memcpy(&key->qualname, record + layout->code.qualname, sizeof(key->qualname));
    memcpy(&key->filename, record + layout->code.filename, sizeof(key->filename));
    memcpy(&key->line_table, record + layout->code.line_table, sizeof(key->line_table));
    memcpy(&first_line, record + layout->code.first_line, sizeof(first_line));
    key->address = address;
    key->first_line = first_line;
    return type == layout->code_type;
}

static bool same_code(const void *keys, uint32_t number, const void *key) {
    const struct mu_code_name *codes = keys;
    return memcmp(&codes[number - 1].key, key, sizeof(struct mu_code_key)) == 0;
}

/* The number of the code, which is read when it is new; 0 where that fails. */
static uint32_t code_number(struct mu_frame_names *names, const struct mu_python_layout *layout,
                            struct mu_own_memory *memory, const struct mu_code_key *key) {
    uint64_t hash = mu_hash_bytes((const char *)key, sizeof(*key));
    uint32_t found = mu_hash_table_find(&names->code_table, hash, same_code, names->codes, key);
    if (found != 0) {
        return found;
    }
    void *codes = names->codes;
    bool has_room = grow(&codes, names->code_count, &names->code_capacity, MU_FRAME_CODES_MAX,
                         sizeof(*names->codes));
    names->codes = codes;
    if (!has_room || mu_hash_table_reserve(&names->code_table, NULL) != MU_OK) {
        return 0;
    }
    struct mu_code_name *name = &names->codes[names->code_count];
    name->key = *key;
    name->function_length = read_text(layout, memory, key->qualname, false, name->function);
    name->file_length = read_text(layout, memory, key->filename, true, name->file);
    if (name->function_length == 0) {
        return 0;
    }
    mu_hash_table_put(&names->code_table, hash, ++names->code_count);
    return names->code_count;
}

/* --- places ---------------------------------------------------------------------------------- */

static bool same_place(const void *keys, uint32_t number, const void *key) {
    const struct mu_frame_place *place = (const struct mu_frame_place *)keys + (number - 1);
    const struct mu_frame_place *wanted = key;
    return place->code == wanted->code && place->instruction == wanted->instruction;
}

static int read_line(const struct mu_python_layout *layout, struct mu_own_memory *memory,
                     const struct mu_code_key *key, int64_t instruction) {
    uint64_t type, length;
    struct mu_memory_part parts[] = {
        {key->line_table + layout->object_type, &type, sizeof(type)},
        {key->line_table + layout->bytes.length, &length, sizeof(length)},
    };
    if (key->line_table == 0 || !mu_own_memory_read_parts(memory, parts, 2) ||
        type != layout->bytes_type) {
        return 0;
    }
    return mu_line_of(memory, key->line_table + layout->bytes.data, length, (int)key->first_line,
                      instruction);
}

static uint32_t place_number(struct mu_frame_names *names, const struct mu_python_layout *layout,
                             struct mu_own_memory *memory, uint32_t code, int64_t instruction) {
    struct mu_frame_place place = {.code = code, .instruction = instruction};
    uint64_t hash = mu_hash_u64(mu_hash_u64(code) ^ (uint64_t)instruction);
    uint32_t found =
        mu_hash_table_find(&names->place_table, hash, same_place, names->places, &place);
    if (found != 0 || code == 0) {
        return found;
    }
    void *places = names->places;
    bool has_room = grow(&places, names->place_count, &names->place_capacity, MU_FRAME_PLACES_MAX,
                         sizeof(*names->places));
    names->places = places;
    if (!has_room || mu_hash_table_reserve(&names->place_table, NULL) != MU_OK) {
        return 0;
    }
    place.line = read_line(layout, memory, &names->codes[code - 1].key, instruction);
    names->places[names->place_count++] = place;
    mu_hash_table_put(&names->place_table, hash, names->place_count);
    return names->place_count;
}

/* Up to FRAMES_AT_ONCE frames, whose code objects are read by one call. */
static void name_frames(struct mu_frame_names *names, const struct mu_python_layout *layout,
                        struct mu_own_memory *memory, const struct mu_raw_frame *frames,
                        uint32_t count, uint32_t *numbers) {
    unsigned char records[FRAMES_AT_ONCE][CODE_RECORD_BYTES];
    struct mu_memory_part parts[FRAMES_AT_ONCE] = {{0}};
    size_t end = code_end(layout);
    if (end > CODE_RECORD_BYTES) {
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        parts[i] = (struct mu_memory_part){frames[i].code, records[i], end};
    }
    bool all = mu_own_memory_read_parts(memory, parts, count);
    for (uint32_t i = 0; i < count; i++) {
        struct mu_code_key key;
        if ((all || mu_own_memory_read_parts(memory, &parts[i], 1)) &&
            take_key(layout, frames[i].code, records[i], &key)) {
            uint32_t code = code_number(names, layout, memory, &key);
            numbers[i] = place_number(names, layout, memory, code, frames[i].instruction);
        }
    }
}

void mu_frame_names_of(struct mu_frame_names *names, const struct mu_python_layout *layout,
                       struct mu_own_memory *memory, const struct mu_raw_stack *stack,
                       uint32_t numbers[MU_STACK_DEPTH_MAX]) {
    memset(numbers, 0, stack->count * sizeof(*numbers));
    for (uint32_t at = 0; at < stack->count; at += FRAMES_AT_ONCE) {
        uint32_t left = stack->count - at;
        name_frames(names, layout, memory, stack->frames + at,
                    left < FRAMES_AT_ONCE ? left : FRAMES_AT_ONCE, numbers + at);
    }
}
