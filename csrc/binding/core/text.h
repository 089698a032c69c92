/* A str as the hot path needs it: bytes, length and hash. The common case makes no call. */
#ifndef MU_TEXT_H
#define MU_TEXT_H

#include "core/args.h"

struct mu_py_name {
    const char *bytes; /* borrowed from the str */
    Py_ssize_t length;
    uint64_t hash; /* Python's own, the same for the same text in one process */
};

/* Any str; the slow path of mu_py_name_of. */
int mu_py_name_slow(PyObject *value, const char *argument, struct mu_py_name *out);

/* 0, or -1 with TypeError or ValueError. */
static inline int mu_py_name_of(PyObject *value, const char *argument, struct mu_py_name *out) {
    if (__builtin_expect(PyUnicode_CheckExact(value) && PyUnicode_IS_COMPACT_ASCII(value), 1)) {
        /* Another thread may be storing the same hash. */
        Py_hash_t hash = __atomic_load_n(&((PyASCIIObject *)value)->hash, __ATOMIC_RELAXED);
        if (__builtin_expect(hash != -1, 1)) {
            out->bytes = (const char *)PyUnicode_1BYTE_DATA(value);
            out->length = PyUnicode_GET_LENGTH(value);
            out->hash = (uint64_t)hash;
            return 0;
        }
    }
    return mu_py_name_slow(value, argument, out);
}

#endif
