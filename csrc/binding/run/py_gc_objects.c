#define Py_BUILD_CORE 1
#include "run/py_gc_objects.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x03100000
#include <internal/pycore_interp.h>

/* The list of callbacks is right before the count that is read, so if it is where it should be, so
 * is the count. */
static int check_layout(const struct _gc_runtime_state *gc) {
    PyObject *module = PyImport_ImportModule("gc");
    PyObject *callbacks = module == NULL ? NULL : PyObject_GetAttrString(module, "callbacks");
    int layout = callbacks != NULL && gc->callbacks == callbacks ? MU_GC_KNOWN : MU_GC_UNKNOWN;
    PyErr_Clear();
    Py_XDECREF(callbacks);
    Py_XDECREF(module);
    return layout;
}

Py_ssize_t mu_py_gc_survivors(int *layout) {
    const struct _gc_runtime_state *gc = &PyInterpreterState_Get()->gc;
    if (*layout == MU_GC_NOT_CHECKED) {
        *layout = check_layout(gc);
    }
    return *layout == MU_GC_KNOWN ? gc->long_lived_total : -1;
}

#else

Py_ssize_t mu_py_gc_survivors(int *layout) {
    *layout = MU_GC_UNKNOWN;
    return -1;
}

#endif
