/* What a process has read from storage, as the kernel counts it. */
#ifndef MU_PROCESS_IO_H
#define MU_PROCESS_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "host/proc_text.h"

/* Bytes that all of its threads had read from storage, not what was in memory already. file: its
 * `io`. False where the kernel does not say, and *out stays. */
bool mu_process_io_read_bytes(const struct mu_proc_file *file, uint64_t *out);

#endif
