/* The part of the layout that Python's public headers give, and versions that are not known. */
#include "process_stacks/py_layout.h"

#include <stddef.h>

void mu_py_layout_public(struct mu_python_layout *layout) {
    layout->code_type = (uint64_t)(uintptr_t)&PyCode_Type;
    layout->text_type = (uint64_t)(uintptr_t)&PyUnicode_Type;
    layout->bytes_type = (uint64_t)(uintptr_t)&PyBytes_Type;
    layout->object_type = offsetof(PyObject, ob_type);
    layout->text.length = offsetof(PyASCIIObject, length);
    layout->text.state = offsetof(PyASCIIObject, state);
    layout->text.ascii_data = sizeof(PyASCIIObject);
    layout->text.other_data = sizeof(PyCompactUnicodeObject);
    layout->bytes.length = offsetof(PyVarObject, ob_size);
    layout->bytes.data = offsetof(PyBytesObject, ob_sval);
}

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x03100000

const char *mu_py_layout(struct mu_python_layout *Py_UNUSED(layout)) {
    return "stacks are read of Python 3.11 to 3.15 only";
}

#endif
