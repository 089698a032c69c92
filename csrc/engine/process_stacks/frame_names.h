/* The names of frames: function, file and line, each kept once, by a number.
 *
 * Names come from code objects, which may be freed or half made while they are read. An object
 * counts as one only when its type says so. What cannot be read has the number 0.
 */
#ifndef MU_FRAME_NAMES_H
#define MU_FRAME_NAMES_H

#include "base/error.h"
#include "base/hash_table.h"
#include "process_stacks/walk.h"

#include <stddef.h>
#include <stdint.h>

enum {
    MU_FRAME_TEXT_MAX = 240, /* bytes; of a longer path the end is kept, of a name the beginning */
    MU_FRAME_CODES_MAX = 65536,
    MU_FRAME_PLACES_MAX = 262144,
};

/* A code object, by what it pointed to: another object at the same address differs in that. */
struct mu_code_key {
    uint64_t address, qualname, filename, line_table;
    int64_t first_line;
};

struct mu_code_name {
    struct mu_code_key key;
    uint16_t function_length, file_length;
    char function[MU_FRAME_TEXT_MAX], file[MU_FRAME_TEXT_MAX]; /* UTF-8 */
};

struct mu_frame_place {
    uint32_t code; /* number of the code, from 1 */
    int32_t line;  /* 0: not known */
    int64_t instruction;
};

struct mu_frame_names {
    struct mu_code_name *codes;    /* owned; number 1 is codes[0] */
    struct mu_frame_place *places; /* owned; number 1 is places[0] */
    uint32_t code_count, code_capacity, place_count, place_capacity;
    struct mu_hash_table code_table, place_table;
};

MU_MUST_CHECK int mu_frame_names_init(struct mu_frame_names *names, struct mu_error *err);
void mu_frame_names_reset(struct mu_frame_names *names);

/* The numbers of the frames' places, 0 for those that are not known, or no memory was left for. */
void mu_frame_names_of(struct mu_frame_names *names, const struct mu_python_layout *layout,
                       struct mu_own_memory *memory, const struct mu_raw_stack *stack,
                       uint32_t numbers[MU_STACK_DEPTH_MAX]);

#endif
