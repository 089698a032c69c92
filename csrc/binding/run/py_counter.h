/* Counters of an iteration, as one row. */
#ifndef MU_PY_COUNTER_H
#define MU_PY_COUNTER_H

#include "stages/thread_buffer.h"

/* Appends "key" and the number; `key` holds the comma and the sign of equality. Returns the end. */
char *mu_py_counter_put(char *at, const char *key, int64_t value);

/* Writes the text between `text` and `end` as the row `name` of the iteration. */
void mu_py_counter_write(struct mu_thread_buffer *buffer, const char *name, const char *text,
                         const char *end, int64_t iteration);

#endif
