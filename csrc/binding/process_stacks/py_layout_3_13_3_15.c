/* The layout of Python 3.13 to 3.15, by the table of offsets that they keep at the beginning of
 * _PyRuntime. */
#define Py_BUILD_CORE 1
#include "process_stacks/py_layout.h"

#if PY_VERSION_HEX >= 0x030D0000 && PY_VERSION_HEX < 0x03100000

#include <internal/pycore_frame.h>
#include <internal/pycore_runtime.h>
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe_structs.h>
#endif

#include <stddef.h>
#include <string.h>

/* From 3.14 on a frame refers to its code by a pointer whose two lowest bits are a tag, and frames
 * of the interpreter itself have an owner below that of the C stack. */
#if PY_VERSION_HEX >= 0x030E0000
enum { OWNER_NO_FUNCTION = FRAME_OWNED_BY_INTERPRETER, CODE_TAG = 3 };
#else
enum { OWNER_NO_FUNCTION = FRAME_OWNED_BY_CSTACK, CODE_TAG = 0 };
#endif

static void fill_threads(struct mu_python_layout *layout, const _Py_DebugOffsets *offsets) {
    layout->interpreters =
        (uint64_t)(uintptr_t)&_PyRuntime + offsets->runtime_state.interpreters_head;
    layout->interpreter.next = (uint32_t)offsets->interpreter_state.next;
    layout->interpreter.threads = (uint32_t)offsets->interpreter_state.threads_head;
    layout->thread.next = (uint32_t)offsets->thread_state.next;
    layout->thread.previous = (uint32_t)offsets->thread_state.prev;
    layout->thread.interpreter = (uint32_t)offsets->thread_state.interp;
    layout->thread.native_id = (uint32_t)offsets->thread_state.native_thread_id;
    layout->thread.chunk = (uint32_t)offsets->thread_state.datastack_chunk;
    layout->thread.frame = (uint32_t)offsets->thread_state.current_frame;
    layout->thread.has_cframe = false;
    layout->chunk.size = offsetof(_PyStackChunk, size);
}

static void fill_code(struct mu_python_layout *layout, const _Py_DebugOffsets *offsets) {
    layout->frame.previous = (uint32_t)offsets->interpreter_frame.previous;
    layout->frame.code = (uint32_t)offsets->interpreter_frame.executable;
    layout->frame.instruction = (uint32_t)offsets->interpreter_frame.instr_ptr;
    layout->frame.owner = (uint32_t)offsets->interpreter_frame.owner;
    layout->frame.owner_no_function = OWNER_NO_FUNCTION;
    layout->frame.code_tag = CODE_TAG;
    layout->code.qualname = (uint32_t)offsets->code_object.qualname;
    layout->code.filename = (uint32_t)offsets->code_object.filename;
    layout->code.first_line = (uint32_t)offsets->code_object.firstlineno;
    layout->code.line_table = (uint32_t)offsets->code_object.linetable;
    layout->code.bytecode = (uint32_t)offsets->code_object.co_code_adaptive;
}

const char *mu_py_layout(struct mu_python_layout *layout) {
    const _Py_DebugOffsets *offsets = &_PyRuntime.debug_offsets;
    if (memcmp(offsets->cookie, _Py_Debug_Cookie, sizeof(offsets->cookie)) != 0 ||
        offsets->version >> 16 != PY_VERSION_HEX >> 16) {
        return "Python's table of offsets is not the one that this module was built for";
    }
    if (offsets->free_threaded) {
        return "stacks of a free-threaded Python are not read";
    }
    mu_py_layout_public(layout);
    fill_threads(layout, offsets);
    fill_code(layout, offsets);
    return NULL;
}

#endif
