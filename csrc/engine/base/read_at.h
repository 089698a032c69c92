/* Reading a piece of an open file. Thread-safe, also in a signal handler. */
#ifndef MU_READ_AT_H
#define MU_READ_AT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

/* Reads `bytes` from `offset` on, whatever signals come. Returns how many there were: fewer at the
 * end of the file. -1 with errno. */
MU_MUST_CHECK ssize_t mu_read_at(int fd, void *to, size_t bytes, uint64_t offset);

#endif
