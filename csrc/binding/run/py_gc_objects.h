/* How many objects collections of garbage look at.
 */
#ifndef MU_PY_GC_OBJECTS_H
#define MU_PY_GC_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

enum { MU_GC_NOT_CHECKED, MU_GC_KNOWN, MU_GC_UNKNOWN };

/* The objects that the last full collection left, as Python itself counts them; -1 where its layout
 * is not known. layout: MU_GC_NOT_CHECKED before the first call, kept between calls. Needs the GIL;
 * some nanoseconds, and a microsecond at the first call. */
Py_ssize_t mu_py_gc_survivors(int *layout);

#endif
