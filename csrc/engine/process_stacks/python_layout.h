/* Where CPython keeps what a stack is made of: addresses of this process, and offsets in bytes.
 *
 * The binding fills it for the version of Python that it runs in. The engine knows no version.
 */
#ifndef MU_PYTHON_LAYOUT_H
#define MU_PYTHON_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

enum { MU_LAYOUT_NO_OWNER = 0xff };

struct mu_python_layout {
    uint64_t interpreters; /* the address of the pointer to the first interpreter */
    uint64_t code_type, text_type, bytes_type; /* addresses of PyCode_Type and so on */
    uint32_t object_type;                      /* ob_type in every object */
    struct {
        uint32_t next, threads; /* threads: the pointer to the first */
    } interpreter;
    struct {
        uint32_t next, previous, interpreter, native_id, chunk;
        uint32_t frame;  /* the pointer to the innermost frame, or to a cframe */
        bool has_cframe; /* until 3.12 */
        uint32_t frame_in_cframe;
    } thread;
    struct {
        uint32_t previous, code, owner;
        uint32_t instruction;      /* a pointer into the code */
        uint8_t owner_no_function; /* frames of this owner and of those above it belong to no
                                      function; or NO_OWNER */
        uint8_t code_tag;          /* bits of the pointer to the code that are not part of it */
    } frame;
    struct {
        uint32_t size; /* data that one stack may have, header included */
    } chunk;
    struct {
        uint32_t qualname, filename, first_line, line_table, bytecode;
    } code;
    struct {
        uint32_t length, state;
        uint32_t ascii_data, other_data; /* where the characters begin */
    } text;
    struct {
        uint32_t length, data;
    } bytes;
};

#endif
