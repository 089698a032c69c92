/* Frames of the interpreter, which only its internal headers describe. */
#define Py_BUILD_CORE 1
#include "stages/py_caller.h"

#include <internal/pycore_frame.h>
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe_structs.h>
#endif

bool mu_py_frame_calls(const void *frame) {
    const struct mu_stage_owner caller = mu_py_owner(NULL);
    const struct _PyInterpreterFrame *here = caller.frame;
    while (here != NULL && here != frame) {
        here = here->previous;
    }
    return here != NULL;
}
