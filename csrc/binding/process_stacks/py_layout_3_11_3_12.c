/* The layout of Python 3.11 and 3.12: they have no table of offsets, so their internal headers say
 * them. */
#define Py_BUILD_CORE 1
#include "process_stacks/py_layout.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030D0000

#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>

#include <stddef.h>

#if PY_VERSION_HEX >= 0x030C0000
enum { OWNER_NO_FUNCTION = FRAME_OWNED_BY_CSTACK };
#else
enum { OWNER_NO_FUNCTION = MU_LAYOUT_NO_OWNER };
#endif

static void fill_threads(struct mu_python_layout *layout) {
    layout->interpreters = (uint64_t)(uintptr_t)&_PyRuntime.interpreters.head;
    layout->interpreter.next = offsetof(PyInterpreterState, next);
    layout->interpreter.threads = offsetof(PyInterpreterState, threads.head);
    layout->thread.next = offsetof(PyThreadState, next);
    layout->thread.previous = offsetof(PyThreadState, prev);
    layout->thread.interpreter = offsetof(PyThreadState, interp);
    layout->thread.native_id = offsetof(PyThreadState, native_thread_id);
    layout->thread.chunk = offsetof(PyThreadState, datastack_chunk);
    layout->thread.frame = offsetof(PyThreadState, cframe);
    layout->thread.has_cframe = true;
    layout->thread.frame_in_cframe = offsetof(_PyCFrame, current_frame);
    layout->chunk.size = offsetof(_PyStackChunk, size);
}

static void fill_code(struct mu_python_layout *layout) {
    layout->frame.previous = offsetof(_PyInterpreterFrame, previous);
    layout->frame.code = offsetof(_PyInterpreterFrame, f_code);
    layout->frame.instruction = offsetof(_PyInterpreterFrame, prev_instr);
    layout->frame.owner = offsetof(_PyInterpreterFrame, owner);
    layout->frame.owner_no_function = OWNER_NO_FUNCTION;
    layout->frame.code_tag = 0;
    layout->code.qualname = offsetof(PyCodeObject, co_qualname);
    layout->code.filename = offsetof(PyCodeObject, co_filename);
    layout->code.first_line = offsetof(PyCodeObject, co_firstlineno);
    layout->code.line_table = offsetof(PyCodeObject, co_linetable);
    layout->code.bytecode = offsetof(PyCodeObject, co_code_adaptive);
}

const char *mu_py_layout(struct mu_python_layout *layout) {
    mu_py_layout_public(layout);
    fill_threads(layout);
    fill_code(layout);
    return NULL;
}

#endif
