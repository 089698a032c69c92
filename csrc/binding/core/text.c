#include "core/text.h"

int mu_py_name_slow(PyObject *value, const char *argument, struct mu_py_name *out) {
    struct mu_py_text text;
    if (mu_py_utf8(value, argument, &text) < 0) {
        return -1;
    }
    Py_hash_t hash = PyUnicode_Type.tp_hash(value);
    if (hash == -1) {
        return -1;
    }
    out->bytes = text.bytes;
    out->length = text.length;
    out->hash = (uint64_t)hash;
    return 0;
}
