/* What a process has read from storage, as the kernel counts it. */
#ifndef MU_PROCESS_IO_H
#define MU_PROCESS_IO_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes that all of its threads had read from storage, not what was in memory already. file: its
 * `io`, a descriptor or -1. False where the kernel does not say, and *out stays. */
bool mu_process_io_read_bytes(int file, uint64_t *out);

#endif
